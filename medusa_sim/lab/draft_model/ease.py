"""How the ease of contexts moves along one block of drafted tokens."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from medusa_sim.arrays import FloatArray
from medusa_sim.lab.draft_model.contexts import ContextFamily

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
