"""How the ease of contexts moves along one block of drafted tokens."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from statistics import NormalDist

import numpy as np

from medusa_sim.acceptance.draft_model.contexts import ContextBank, ContextFamily
from medusa_sim.arrays import FloatArray

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
