"""How sharpness moves along a draft, by hand: moments of normal laws and of a first-order autoregression."""

import numpy as np
import pytest
from left_out import numbers_left_out

from medusa_sim.lab.block_efficiency.contexts import ContextModel
from medusa_sim.lab.block_efficiency.sharpness import SharpnessProcess

MODEL = ContextModel(block_share=0.36, correlation=0.8, surprisal_cost=0.5)
PROCESS = SharpnessProcess(model=MODEL, mean=1.0, spread=2.0)
LEVELS = np.linspace(-20.0, 20.0, 401)
"""Of 0.1 each: sums over it are integrals."""


def moments(mass: np.ndarray, values: np.ndarray = LEVELS) -> tuple[float, float]:
    """(mean, standard deviation)."""
    mean = float(mass @ values)
    return mean, float(np.sqrt(mass @ (values - mean) ** 2))


def test_variance_is_shared_between_blocks_and_positions():
    """0.36 of 2^2 stays for a block, 0.64 moves: deviations of 1.2 and 1.6."""
    assert (PROCESS.block_spread, PROCESS.position_spread) == pytest.approx((1.2, 1.6))
    values, weights = PROCESS.blocks
    assert weights.sum() == pytest.approx(1.0)
    assert moments(weights, values) == pytest.approx((1.0, 1.2))
    assert float(weights @ (values - 1.0) ** 4) == pytest.approx(3 * 1.2**4)  # as of a normal law
    assert moments(PROCESS.start(0.7, LEVELS)) == pytest.approx((0.7, 1.6), rel=1e-4)


def test_sharpness_returns_to_its_block_and_falls_with_surprise():
    """From 2.7, two above its block, to 0.7 + 0.8 x 2 - 0.5 x 3 with a deviation of 1.6 sqrt(1 - 0.64)."""
    on = PROCESS.step(0.7, LEVELS, np.full(LEVELS.size, 3.0))
    assert on.sum(axis=1) == pytest.approx(np.ones(LEVELS.size))
    here = int(np.argmin(np.abs(LEVELS - 2.7)))
    assert moments(on[here]) == pytest.approx((0.7 + 1.6 - 1.5, 1.6 * 0.6), rel=1e-4)
    # without surprise a block's own law stays as it is
    still, start = PROCESS.step(0.7, LEVELS, np.zeros(LEVELS.size)), PROCESS.start(0.7, LEVELS)
    assert moments(start @ still) == pytest.approx((0.7, 1.6), rel=1e-3)


def test_what_is_left_out_is_nothing_but_for_these():
    """Factors and counts are one, sizes those that most have."""
    assert numbers_left_out("lab.block_efficiency") == {
        "ContextModel.noise": 4.0,
        "ContextModel.support_exponent": 0.3,
        "ContextModel.surprisal_cost": 0.45,
        "ContextModel.correlation": 0.8,
        "ContextModel.block_share": 0.5,
        "ContextModel.softness_spread": 0.22,
        "ContextModel.observation_error": 0.012,
        "ContextModel.levels": 24,
        "ContextModel.contexts": 200,
        "ContextModel.vocabulary": 150,
        "ContextModel.seed": 7,
        "DraftShape.width": 1,
    }
