"""The papers' tables and figures, predicted beside published.

`TARGETS` is the registry: a name as the command line spells it -> a function of the data directory.
A further paper registers its targets here; nothing else needs to know of them.
"""

from __future__ import annotations

import functools
from collections.abc import Callable

from medusa_sim.data import DataDir
from medusa_sim.errors import UsageError, unknown_name
from medusa_sim.reproduce.decoding import table1, table3
from medusa_sim.reproduce.published import Reproduction
from medusa_sim.reproduce.recursive import rsd_figure1, rsd_figure4, rsd_figure5
from medusa_sim.reproduce.scores import scores
from medusa_sim.reproduce.simulation import figure21, figure22, figure23
from medusa_sim.reproduce.tables import (
    OPERATOR_FIGURES,
    figure18,
    figure19,
    figure20,
    operator_figure,
    table6,
    table7,
    table8,
)
from medusa_sim.reproduce.token_rates import figure7b, rsd_token_rates, table1_rates, table4

__all__ = ["TARGETS", "Reproduction", "reproduction", "scores"]

TARGETS: dict[str, Callable[[DataDir], Reproduction]] = {
    "table6": table6,
    "table7": table7,
    "table8": table8,
    **{name: functools.partial(operator_figure, name) for name in OPERATOR_FIGURES},
    "figure18": figure18,
    "figure19": figure19,
    "figure20": figure20,
    "figure21": figure21,
    "figure22": figure22,
    "figure23": figure23,
    "table1": table1,
    "table3": table3,
    "table1-rates": table1_rates,
    "table4": table4,
    "figure7b": figure7b,
    "rsd-figure1": rsd_figure1,
    "rsd-figure4": rsd_figure4,
    "rsd-figure5": rsd_figure5,
    "rsd-token-rates": rsd_token_rates,
}


def reproduction(name: str, data_dir: DataDir = None) -> Reproduction:
    """The table or figure of that name. Raises UsageError for an unknown one, naming the nearest."""
    if name not in TARGETS:
        raise UsageError(unknown_name("table or figure", name, TARGETS))
    return TARGETS[name](data_dir)
