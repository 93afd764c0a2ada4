"""Contexts of graded sharpness, with a draft and a target distribution each.

A draft model's acceptance is one number only for a chain. What a second child, an independent second draw or
a beam adds depends on the distributions behind it, so this module makes some: for each sharpness of the
target a sample of contexts whose draft and target differ as those of two language models do, on every one of
which the calculators of `rejection` run.

    (D8)  target = softmax(e^x E_(i)),  draft = softmax(e^x E_(i) + noise z_i)
          E_(i) falling order statistics of exponentials, z normal: probabilities fall as powers of the rank
    (D9)  support(x) = alpha(x)^support_exponent,  alpha(x) = mean of sum min(draft, target)

The sharpness x is the logarithm of the inverse temperature. Where the target is sharp both agree, where it is
flat they part. With probability 1 - support the target's token is none that the draft proposes: without this
the second child is right far more often than is measured.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from typing import NamedTuple

import numpy as np

from medusa_sim.arrays import FloatArray
from medusa_sim.lab.block_efficiency.rejection import k_seq_holders, recursive_children_of_draws

SURPRISAL_MAX = 4.0
"""A token's surprisal -ln draft(x) counts up to this: e^-4 is already a token the draft did not expect."""

GAMMA_BISECTIONS = 24
"""Gamma to 4e-7 in thousands of contexts, far below what their sampling resolves."""


@dataclass(frozen=True)
class ContextModel:
    """Constants of (D8) to (D12), common to every (target, draft, task); fitted on the RSD paper's tables.

    * `noise`: standard deviation of the draft's logits around the target's;
    * `support_exponent`: of alpha, in the share of contexts where the draft can propose the target's token;
    * `surprisal_cost`: sharpness that a token of surprisal 1 costs the contexts after it;
    * `correlation`: of sharpness from one position to the next;
    * `block_share`: share of the variance of sharpness that stays for a whole block;
    * `spread_prior`: mean and standard deviation of ln(spread) over (target, draft, task);
    * `softness_spread`: standard deviation of ln(softness) over them (`softened`; 1 for the paper's pairs);
    * `observation_error`: relative standard error of one published block efficiency.
    """

    noise: float = 4.0
    support_exponent: float = 0.3
    surprisal_cost: float = 0.45
    correlation: float = 0.8
    block_share: float = 0.5
    spread_prior: tuple[float, float] = (0.45, 0.35)
    softness_spread: float = 0.22
    observation_error: float = 0.012
    levels: int = 24
    sharpness_range: tuple[float, float] = (-1.5, 5.5)
    contexts: int = 200
    vocabulary: int = 150
    seed: int = 7

    def softened(self, softness: float) -> ContextModel:
        """(D12) The model of pairs that part less sharply: noise and exponent over `softness`.

        A soft pair agrees a little everywhere, where the paper's agree in most contexts and not at all in
        others; chains hardly tell the two apart, what a second child adds does.
        """
        return replace(self, noise=self.noise / softness, support_exponent=self.support_exponent / softness)


class Draws(NamedTuple):
    """Draws without replacement, best perturbed first, each (levels, contexts, draws).

    Gumbel-top-k: the order of log draft + Gumbel is that of drawing without replacement.
    """

    log_draft: FloatArray
    perturbed: FloatArray
    """log draft + Gumbel."""
    accepted: FloatArray
    """Probability that this draw is the accepted one."""


def _softmax(logits: FloatArray) -> FloatArray:
    mass = np.exp(logits - logits.max(axis=-1, keepdims=True))
    return np.asarray(mass / mass.sum(axis=-1, keepdims=True))


@dataclass(frozen=True)
class Contexts:
    """Sampled contexts of every level of sharpness, and what each method accepts in them.

    children: how many of a context are followed. The same seed gives the same contexts.
    """

    model: ContextModel
    children: int

    @cached_property
    def sharpness(self) -> FloatArray:
        """(levels,) x, evenly spaced."""
        return np.linspace(*self.model.sharpness_range, self.model.levels)

    @cached_property
    def draft_and_target(self) -> tuple[FloatArray, FloatArray]:
        """(D8) Both distributions, (levels, contexts, vocabulary)."""
        size = (self.model.contexts, self.model.vocabulary)
        rng = np.random.default_rng(self.model.seed)
        order = np.sort(rng.exponential(size=size), axis=1)[:, ::-1]
        normal = rng.normal(size=size)
        logits = np.exp(self.sharpness)[:, None, None] * order
        return _softmax(logits + self.model.noise * normal), _softmax(logits)

    @cached_property
    def alpha(self) -> FloatArray:
        """(levels,) (D1) mean of sum min(draft, target) over the contexts with support."""
        return np.asarray(np.minimum(*self.draft_and_target).sum(axis=-1).mean(axis=-1))

    @cached_property
    def support(self) -> FloatArray:
        """(levels,) (D9) share of contexts where the draft can propose the target's token."""
        return np.asarray(self.alpha**self.model.support_exponent)

    @cached_property
    def draws(self) -> Draws:
        """Children of every context and what recursive rejection (D4) accepts of them."""
        draft, target = self.draft_and_target
        rng = np.random.default_rng(self.model.seed + 1)
        log_draft = np.log(np.maximum(draft, 1e-300))
        perturbed = log_draft + rng.gumbel(size=draft.shape[1:])
        tokens = np.argsort(-perturbed, axis=-1)[..., : self.children]
        flat = (-1, self.model.vocabulary)
        accepted = recursive_children_of_draws(
            draft.reshape(flat), target.reshape(flat), tokens.reshape(-1, self.children)
        )
        return Draws(
            np.take_along_axis(log_draft, tokens, axis=-1),
            np.take_along_axis(perturbed, tokens, axis=-1),
            accepted.reshape(tokens.shape) * self.support[:, None, None],
        )

    @cached_property
    def acceptance(self) -> FloatArray:
        """(levels, children) probability that one of the first 1, 2, ... distinct children is accepted.

        The mean over the sampled draws, moved so that the first child has its exact `support alpha` (the
        sampled one carries the noise of one draw a context).
        """
        sampled = np.cumsum(self.draws.accepted, axis=-1).mean(axis=1)
        first = self.support * self.alpha
        room = (self.support - first) / np.maximum(self.support - sampled[:, 0], 1e-12)
        return np.asarray(first[:, None] + (sampled - sampled[:, :1]) * room[:, None])

    @cached_property
    def surprisal(self) -> tuple[FloatArray, FloatArray]:
        """Mean surprisal of the accepted token where it is the first child (levels,), and where it is a
        later one of the first 1, 2, ... (levels, children; the first column repeats the first child's).
        """
        s, accepted = np.minimum(-self.draws.log_draft, SURPRISAL_MAX), self.draws.accepted
        weight, weighted = accepted.sum(axis=1), (s * accepted).sum(axis=1)
        first = weighted[:, 0] / np.maximum(weight[:, 0], 1e-12)
        later = np.cumsum(weighted[:, 1:], axis=1) / np.maximum(np.cumsum(weight[:, 1:], axis=1), 1e-12)
        return first, np.hstack([first[:, None], later])

    @lru_cache(maxsize=64)  # noqa: B019  # as many contexts are kept by `contexts_of`
    def followers(self, drafts: int) -> FloatArray:
        """(levels, drafts + 1) P(one is accepted and m of the independent drafts hold its token), by m.

        K-SEQ (D2) with its own gamma in every context (`k_seq_holders`).
        """
        holders = k_seq_holders(*self.draft_and_target, drafts, GAMMA_BISECTIONS).mean(axis=1)
        held = holders * self.support[:, None]
        return np.hstack([np.zeros((len(held), 1)), held])


@lru_cache(maxsize=8)
def contexts_of(model: ContextModel, children: int) -> Contexts:
    """The contexts of a model, made once per process."""
    return Contexts(model, children)
