"""Work of one launch of every kind of operator: what moves, what is computed, turns, to nine digits.

Sizes are of kernels of models that ship, before 300 and before 5,000 tokens and in a prompt of 5,000.
"""

import numpy as np
import pytest
from work_cases import CASES, made

from medusa_sim.operators.operator import Operator

SMS = 132
"""Multiprocessors of the GPU whose turns are counted."""


def counted(operator: Operator) -> dict[str, float]:
    found = {"flops": operator.flops, "bytes": operator.bytes, "size": operator.size}
    for what in ("loads", "work", "footprint"):
        each = getattr(operator, what, {})
        found |= {f"{what} {name}": value for name, value in each.items()}
    if hasattr(operator, "steps"):
        found |= {f"steps {name}": value for name, value in operator.steps(SMS).items()}
    for what in ("weight_bytes", "activation_bytes", "kv_bytes", "attended_pairs", "copies", "weights"):
        if hasattr(operator, what):
            found[what] = getattr(operator, what)
    if operator.link_bytes is not None:
        found["link_bytes"] = operator.link_bytes
    return {name: float(np.sum(value)) for name, value in found.items()}


@pytest.mark.parametrize("case", CASES)
def test_a_launch_does_its_work(case):
    """And is timed by kernels of these formats, the best first."""
    operator = made(CASES[case]["of"])
    assert counted(operator) == pytest.approx(CASES[case]["work"], rel=1e-8)
    assert " ".join(operator.forms) == CASES[case]["forms"]
