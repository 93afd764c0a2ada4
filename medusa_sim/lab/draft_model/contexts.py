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

`EaseProcess` moves the ease along one block of drafted tokens; `beam_block_efficiency` is stochastic beam
search over the contexts: tokens per step of RSD-S (RSD paper 3.2.1, Algorithm 7).
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import cached_property
from statistics import NormalDist

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


BLOCK_NODES = 5
"""Gauss-Hermite nodes over the part of ease that stays for a whole block."""
SPREAD_MIN = 0.12
"""Spread from position to position is kept at or above this, less than half a grade of the bank."""


@dataclass(frozen=True)
class EaseProcess:
    """Ease of the contexts of one (target, draft, task): x_t = mean + B + W_t.

    B is normal with variance `block_share spread^2` and stays for a block; W_t is autoregressive with
    the family's persistence and the remaining variance, and drops by `drift` times the surprisal of the
    token that led here. `mean` and `spread` are the two numbers fitted to a user's observations.
    """

    family: ContextFamily
    mean: float
    spread: float

    @property
    def block_spread(self) -> float:
        """Standard deviation of B."""
        return float(self.spread * np.sqrt(self.family.block_share))

    @property
    def position_spread(self) -> float:
        """Standard deviation of W."""
        return max(float(self.spread * np.sqrt(1.0 - self.family.block_share)), SPREAD_MIN)

    @cached_property
    def blocks(self) -> tuple[FloatArray, FloatArray]:
        """(values of mean + B, weights): Gauss-Hermite quadrature."""
        nodes, weights = np.polynomial.hermite_e.hermegauss(BLOCK_NODES)
        return np.asarray(self.mean + self.block_spread * nodes), np.asarray(weights / weights.sum())

    def start(self, centre: float, ease: FloatArray) -> FloatArray:
        """(grades,) distribution of ease at the first position of a block with mean + B = centre."""
        exponent = -0.5 * ((ease - centre) / self.position_spread) ** 2
        mass = np.exp(exponent - exponent.max())
        return np.asarray(mass / mass.sum())

    def step(self, centre: float, ease: FloatArray, surprisal: FloatArray) -> FloatArray:
        """(grades, grades) distribution of the next ease given this one.

        surprisal: (grades,) mean of the tokens between them.
        """
        phi = self.family.persistence
        mean = centre + phi * (ease - centre) - self.family.drift * surprisal
        spread = self.position_spread * np.sqrt(1.0 - phi**2)
        exponent = -0.5 * ((ease[None, :] - mean[:, None]) / spread) ** 2
        mass = np.exp(exponent - exponent.max(axis=1, keepdims=True))
        return np.asarray(mass / mass.sum(axis=1, keepdims=True))


def branch_block_efficiency(bank: ContextBank, process: EaseProcess, branches: tuple[int, ...]) -> float:
    """Expected tokens per step of RSD-C with those branching factors; a chain is all ones (SD).

    First-child and later-child acceptances are tracked separately: a later child has a higher
    surprisal and leads to harder contexts.
    """
    efficiency = 1.0
    for centre, weight in zip(*process.blocks, strict=True):
        here = process.start(float(centre), bank.ease)
        first, later = bank.surprisal
        on = process.step(float(centre), bank.ease, first)
        for children in branches:
            accepted = here * bank.coverage[:, 0]
            efficiency += weight * accepted.sum()
            after = accepted @ on
            if children > 1:
                rescued = here * (bank.coverage[:, children - 1] - bank.coverage[:, 0])
                efficiency += weight * rescued.sum()
                surprisal = later[:, children - 1]
                after = after + rescued @ process.step(float(centre), bank.ease, surprisal)
            here = after
    return float(efficiency)


def k_seq_block_efficiency(bank: ContextBank, process: EaseProcess, sequences: int, length: int) -> float:
    """Expected tokens per step of SpecTr with `sequences` independent drafts of `length` tokens.

    The state is the number of drafts that share the accepted path (drafts that left it are lost).
    """
    followers = np.zeros((bank.ease.size, sequences + 1, sequences + 1))
    for n in range(1, sequences + 1):
        followers[:, n, : n + 1] = bank.followers(n)
    accepted = followers.sum(axis=2)
    first, later = bank.surprisal[0], bank.surprisal[1][:, min(3, bank.draws) - 1]
    own = np.minimum(1.0, bank.coverage[:, :1] / np.maximum(accepted, 1e-12))  # not rescued by a second draft
    efficiency = 1.0
    for centre, weight in zip(*process.blocks, strict=True):
        on = process.step(float(centre), bank.ease, first)
        after_rescue = process.step(float(centre), bank.ease, later)
        here = np.zeros((bank.ease.size, sequences + 1))
        here[:, sequences] = process.start(float(centre), bank.ease)
        for _ in range(length):
            straight = np.einsum("gn,gnm->gm", here * own, followers)
            rescued = np.einsum("gn,gnm->gm", here * (1.0 - own), followers)
            efficiency += weight * (straight.sum() + rescued.sum())
            here = on.T @ straight + after_rescue.T @ rescued
    return float(efficiency)


def stratified_normal(count: int, rng: np.random.Generator) -> FloatArray:
    """`count` standard normal values, one from the middle of each equal share of them all, shuffled."""
    quantile = NormalDist().inv_cdf
    return rng.permutation(np.array([quantile((i + 0.5) / count) for i in range(count)]))


BLOCKS = 800
"""Simulated blocks. Every node of a beam carries its exact probability of being reached, so that the
standard error is 0.5 % of the block efficiency or less."""


def truncate_perturbed(parent: FloatArray, perturbed: FloatArray) -> FloatArray:
    """`T(psi_parent, perturbed)` of equation 11 over the last axis (largest perturbed first).

    `-log(e^-u - e^-Z + e^-phi)` with u the parent's psi and Z the largest child's perturbed value, in
    the stable form of Kool et al. (2019), appendix B.3; the largest child gets u itself.
    """
    largest = perturbed[..., :1]
    gap = np.minimum(perturbed - largest, 0.0)
    with np.errstate(divide="ignore"):
        v = parent[..., None] - perturbed + np.log1p(-np.exp(gap))
    v = np.where(gap < 0.0, v, -np.inf)
    return np.asarray(parent[..., None] - np.maximum(v, 0.0) - np.log1p(np.exp(-np.abs(v))))


def beam_block_efficiency(bank: ContextBank, process: EaseProcess, width: int, length: int) -> float:
    """Expected tokens per step of RSD-S with beam `width` and draft `length`.

    Deterministic: the same bank and process give the same number (fixed seed).
    """
    family = bank.family
    rng = np.random.default_rng(family.seed + 2)
    block = process.block_spread * stratified_normal(BLOCKS, rng)
    apart = process.position_spread * stratified_normal(BLOCKS, rng)[:, None]
    phi = np.zeros((BLOCKS, 1))  # log draft of the sequence
    psi = np.zeros((BLOCKS, 1))  # its truncated perturbed log draft
    reached = np.ones((BLOCKS, 1))
    grade_step = float(bank.ease[1] - bank.ease[0])
    kept = min(width, bank.draws)
    efficiency = 1.0
    for _ in range(length):
        ease = process.mean + block[:, None] + apart
        grade = np.clip(np.rint((ease - bank.ease[0]) / grade_step), 0, bank.ease.size - 1).astype(np.int64)
        context = rng.integers(0, family.contexts, size=ease.shape)
        log_draft = bank.log_draft[grade, context, :kept]
        children = truncate_perturbed(psi, phi[..., None] + bank.perturbed[grade, context, :kept])
        chosen = np.argsort(-children.reshape(BLOCKS, -1), axis=1, kind="stable")[:, :width]

        def pick(values: FloatArray, chosen: np.ndarray = chosen) -> FloatArray:
            return np.asarray(np.take_along_axis(values.reshape(BLOCKS, -1), chosen, axis=1))

        reached = pick(reached[..., None] * bank.accepted[grade, context, :kept])
        efficiency += float(reached.sum()) / BLOCKS
        phi, psi = pick(phi[..., None] + log_draft), pick(children)
        surprisal = np.minimum(-pick(log_draft), SURPRISAL_MAX)
        before = np.take_along_axis(apart, chosen // kept, axis=1)
        fresh = process.position_spread * np.sqrt(1.0 - family.persistence**2) * rng.normal(size=before.shape)
        apart = family.persistence * before + fresh - family.drift * surprisal
    return efficiency
