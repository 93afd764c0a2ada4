"""All pairs: every pair of values is answered once, and given up only where it is itself the reason."""

from itertools import combinations

import pytest
from common.pairs import Pairs

AXES = {"model": range(12), "drafter": range(5), "runtime": range(6), "gpus": (1, 4, 8), "card": range(9)}
NEVER = ({"drafter": 0, "runtime": 1}, {"model": 3, "card": 2}, {"model": 3, "gpus": 1})
"""What is always refused, whatever stands beside it."""


@pytest.mark.parametrize("seed", range(3))
def test_refusals_eat_no_coverage(seed):
    pairs, rows = Pairs(AXES, seed), []
    while drawn := pairs.drawn(8):
        for row in drawn:
            rows.append(row)
            if any(bad.items() <= row.items() for bad in NEVER):
                pairs.was_refused(row, "no")
            else:
                pairs.was_answered(row)
    every = sum(len(AXES[a]) * len(AXES[b]) for a, b in combinations(AXES, 2))
    assert len(pairs.answered) == every - len(NEVER)
    assert (len(pairs.refused), pairs.left) == (len(NEVER), 0)
    assert len(rows) < 2.5 * 12 * 9, "the two longest axes alone need as many as their product"
    told = list(pairs.told())
    assert f"drafter x runtime: {5 * 6 - 1} answered, 1 refused, 0 left" in told
