"""Contexts of graded ease with explicit draft and target distributions, for methods that draw many tokens.

A draft model's acceptance is one number only for a chain. What a second child, an independent second draw or
a beam adds depends on the distributions behind it, so this module makes some: for each grade of ease a sample
of contexts whose draft and target differ as two language models do, and the exact calculators of
`medusa_sim.lab.draft_model` run on every one of them.

Distributions (docs/method-acceptance.md, D8 to D12). The target's logits at ease x are `e^x E_(i)` with E_(i)
the falling order statistics of `vocabulary` exponentials: gaps of E/i, so that probabilities fall as a
power of the rank. The draft's logits are the target's plus `noise` times a standard normal. Where the
target is sure of itself (x large) both agree; where it is not they part. Besides, with probability
1 - a(x)^`reach`, a(x) the mean agreement at that ease, the target's token is out of the draft's reach
and no child can be it: without this the second child is right far more often than is measured.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import cached_property

import numpy as np

from medusa_sim.arrays import FloatArray
from medusa_sim.lab.draft_model.rejection import k_seq_holders, recursive_children_of_draws

SURPRISAL_MAX = 4.0
"""A token's surprisal -ln draft(x) counts up to this: e^-4 is already a token the draft did not expect."""

GAMMA_BISECTIONS = 24
"""Gamma to 4e-7 in a bank of thousands of contexts, far below what its sampling resolves."""


@dataclass(frozen=True)
class ContextFamily:
    """The few constants of the family of distributions and of how ease moves along a sequence.

    Common to every (target, draft, task); fitted on the RSD paper's given tables, see benchmarks/log.

    * `noise`: standard deviation of the draft's logits around the target's;
    * `reach`: exponent of the share of contexts where the draft can propose the target's token at all;
    * `drift`: how much ease a token of surprisal 1 costs the contexts after it;
    * `persistence`: correlation of ease from one position to the next;
    * `block_share`: share of the variance of ease that stays for a whole block;
    * `spread_prior`: mean and standard deviation of ln(spread) over (target, draft, task);
    * `softness_spread`: standard deviation of ln(softness) over them (`softened`; 1 for the paper's pairs);
    * `observation_error`: relative standard error of one published block efficiency.
    """

    noise: float = 4.0
    reach: float = 0.3
    drift: float = 0.45
    persistence: float = 0.8
    block_share: float = 0.5
    spread_prior: tuple[float, float] = (0.45, 0.35)
    softness_spread: float = 0.22
    observation_error: float = 0.012
    grades: int = 24
    ease_range: tuple[float, float] = (-1.5, 5.5)
    contexts: int = 200
    vocabulary: int = 150
    seed: int = 7

    def softened(self, softness: float) -> ContextFamily:
        """The family of pairs that part less sharply: noise and reach over `softness` (1: the same).

        A soft pair agrees a little everywhere, where the paper's agree in most contexts and not at all in
        others; chains hardly tell the two apart, what a second child adds does.
        """
        return replace(self, noise=self.noise / softness, reach=self.reach / softness)


def _softmax(logits: FloatArray) -> FloatArray:
    mass = np.exp(logits - logits.max(axis=-1, keepdims=True))
    return np.asarray(mass / mass.sum(axis=-1, keepdims=True))


@dataclass(frozen=True)
class ContextBank:
    """Sampled contexts of every grade of ease, and what each method accepts in them.

    `draws`: how many children of a context are followed. Arrays are (grades, contexts, ...); the same
    seed gives the same bank.
    """

    family: ContextFamily
    draws: int
    ease: FloatArray = field(init=False)
    _draft_and_target: tuple[FloatArray, FloatArray] = field(init=False, repr=False)
    _followers: dict[int, FloatArray] = field(init=False, repr=False, default_factory=dict)

    def __post_init__(self) -> None:
        """Draw the distributions."""
        f = self.family
        rng = np.random.default_rng(f.seed)
        ease = np.linspace(*f.ease_range, f.grades)
        order = np.sort(rng.exponential(size=(f.contexts, f.vocabulary)), axis=1)[:, ::-1]
        apart = rng.normal(size=(f.contexts, f.vocabulary))
        target = np.exp(ease)[:, None, None] * order
        object.__setattr__(self, "ease", ease)
        object.__setattr__(self, "_draft_and_target", (_softmax(target + f.noise * apart), _softmax(target)))

    @cached_property
    def agreement(self) -> FloatArray:
        """(grades,) mean of sum min(draft, target) over the contexts within reach."""
        return np.asarray(np.minimum(*self._draft_and_target).sum(axis=-1).mean(axis=-1))

    @cached_property
    def within_reach(self) -> FloatArray:
        """(grades,) share of contexts where the draft can propose the target's token."""
        return np.asarray(self.agreement**self.family.reach)

    @cached_property
    def _drawn(self) -> tuple[FloatArray, FloatArray, FloatArray]:
        """(log draft, perturbed log draft, acceptance) of each context's draws, best perturbed first.

        Gumbel-top-k: the order of log draft + Gumbel is drawing without replacement.
        """
        draft, target = self._draft_and_target
        rng = np.random.default_rng(self.family.seed + 1)
        log_draft = np.log(np.maximum(draft, 1e-300))
        perturbed = log_draft + rng.gumbel(size=draft.shape[1:])
        tokens = np.argsort(-perturbed, axis=-1)[..., : self.draws]
        flat = (-1, self.family.vocabulary)
        accepted = recursive_children_of_draws(
            draft.reshape(flat), target.reshape(flat), tokens.reshape(-1, self.draws)
        )
        accepted = accepted.reshape(tokens.shape) * self.within_reach[:, None, None]
        return (
            np.take_along_axis(log_draft, tokens, axis=-1),
            np.take_along_axis(perturbed, tokens, axis=-1),
            accepted,
        )

    @property
    def log_draft(self) -> FloatArray:
        """(grades, contexts, draws) draft log probability of each draw."""
        return self._drawn[0]

    @property
    def perturbed(self) -> FloatArray:
        """(grades, contexts, draws) log draft + Gumbel, falling along the draws."""
        return self._drawn[1]

    @property
    def accepted(self) -> FloatArray:
        """(grades, contexts, draws) probability that this draw is the accepted one."""
        return self._drawn[2]

    @cached_property
    def coverage(self) -> FloatArray:
        """(grades, draws) probability that one of the first 1, 2, ... distinct children is accepted.

        The mean over the sampled draws, moved so that the first child has its exact acceptance
        `within_reach agreement` (the sampled one carries the noise of one draw a context).
        """
        sampled = np.cumsum(self.accepted, axis=-1).mean(axis=1)
        first = self.within_reach * self.agreement
        room = (self.within_reach - first) / np.maximum(self.within_reach - sampled[:, 0], 1e-12)
        return np.asarray(first[:, None] + (sampled - sampled[:, :1]) * room[:, None])

    @cached_property
    def surprisal(self) -> tuple[FloatArray, FloatArray]:
        """Mean surprisal of the accepted token where it is the first child (grades,), and where it is a
        later one of the first 1, 2, ... (grades, draws; the first column repeats the first child's).
        """
        s = np.minimum(-self.log_draft, SURPRISAL_MAX)
        weight, weighted = self.accepted.sum(axis=1), (s * self.accepted).sum(axis=1)
        first = weighted[:, 0] / np.maximum(weight[:, 0], 1e-12)
        later = np.cumsum(weighted[:, 1:], axis=1) / np.maximum(np.cumsum(weight[:, 1:], axis=1), 1e-12)
        return first, np.hstack([first[:, None], later])

    def followers(self, sequences: int) -> FloatArray:
        """(grades, sequences + 1) P(accepted and m of the `sequences` independent drafts go on), by m.

        K-SEQ with its own gamma in every context (`k_seq_holders`); kept after the first call.
        """
        if sequences not in self._followers:
            holders = k_seq_holders(*self._draft_and_target, sequences, GAMMA_BISECTIONS).mean(axis=1)
            within = holders * self.within_reach[:, None]
            self._followers[sequences] = np.hstack([np.zeros((len(within), 1)), within])
        return self._followers[sequences]
