"""Curves of tokens per step by candidates."""

import numpy as np
import pytest
from scipy.interpolate import PchipInterpolator

from medusa_sim.acceptance.curve import TableCurve


def test_a_table_is_joined_by_monotone_cubics_of_the_logarithm():
    points = ((2, 1.6), (5, 2.3), (16, 3.0), (64, 3.4))
    curve = TableCurve(name="measured", points=points)
    counts = np.arange(1, 65)
    knots = np.log([1.0, *(n for n, _ in points)])
    expected = PchipInterpolator(knots, [1.0, *(tokens for _, tokens in points)])(np.log(counts))
    assert curve.tokens_per_step(counts) == pytest.approx(np.minimum(expected, counts), rel=1e-12)
