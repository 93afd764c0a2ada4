"""Launches of every kind of operator, of `data/operator_work.toml`."""

from collections.abc import Mapping
from typing import Any

from tables import table

from medusa_sim.operators.kinds import KIND_OF
from medusa_sim.operators.operator import Operator

CASES: dict[str, dict[str, Any]] = table("operator_work")


def made(given: Mapping[str, object]) -> Operator:
    """The operator of a case's fields."""
    fields = {name: float(value) if isinstance(value, int) else value for name, value in given.items()}
    return KIND_OF[str(given["kind"])].operator(name="", **fields)
