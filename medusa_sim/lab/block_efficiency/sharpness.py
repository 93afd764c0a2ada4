"""How the sharpness of contexts moves along one block of drafted tokens.

    (D10) x_t = mean + C + W_t
          C ~ N(0, block_share spread^2), constant in a block
          W_1 ~ N(0, (1 - block_share) spread^2),  W_t+1 = r W_t - surprisal_cost s_t + sqrt(1 - r^2) fresh

r is the correlation, s_t the surprisal of the token between them, `fresh` distributed as W_1.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from medusa_sim.arrays import FloatArray
from medusa_sim.lab.block_efficiency.contexts import ContextModel

BLOCK_NODES = 5
"""Gauss-Hermite nodes over C."""
SPREAD_MIN = 0.12
"""Standard deviation of W is kept at or above this, less than half a level of the contexts."""


@dataclass(frozen=True)
class SharpnessProcess:
    """Sharpness of the contexts of one (target, draft, task) (D10).

    mean, spread: the two numbers that are fitted to a user's observations; spread is the standard deviation.
    """

    model: ContextModel
    mean: float
    spread: float

    @property
    def block_spread(self) -> float:
        """Standard deviation of C."""
        return float(self.spread * np.sqrt(self.model.block_share))

    @property
    def position_spread(self) -> float:
        """Standard deviation of W."""
        return max(float(self.spread * np.sqrt(1.0 - self.model.block_share)), SPREAD_MIN)

    @cached_property
    def blocks(self) -> tuple[FloatArray, FloatArray]:
        """(values of mean + C, weights): Gauss-Hermite quadrature."""
        nodes, weights = np.polynomial.hermite_e.hermegauss(BLOCK_NODES)
        return np.asarray(self.mean + self.block_spread * nodes), np.asarray(weights / weights.sum())

    def start(self, centre: float, x: FloatArray) -> FloatArray:
        """(levels,) probabilities of the levels x at the first position of a block with mean + C = centre."""
        return _normal(x, np.asarray(centre), self.position_spread)

    def step(self, centre: float, x: FloatArray, surprisal: FloatArray) -> FloatArray:
        """(levels, levels) probabilities of the next level given this one.

        surprisal: (levels,) mean of the tokens between them.
        """
        r = self.model.correlation
        mean = centre + r * (x - centre) - self.model.surprisal_cost * surprisal
        return _normal(x[None, :], mean[:, None], self.position_spread * np.sqrt(1.0 - r**2))


def _normal(x: FloatArray, mean: FloatArray, spread: float) -> FloatArray:
    """Normal densities at x, scaled to sum 1 along the last axis."""
    exponent = -0.5 * ((x - mean) / spread) ** 2
    mass = np.exp(exponent - exponent.max(axis=-1, keepdims=True))
    return np.asarray(mass / mass.sum(axis=-1, keepdims=True))
