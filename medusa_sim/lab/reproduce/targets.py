"""Every table and figure that is reproduced, by the name that the command line spells, and how far off it is.

A further paper adds its targets to `profiles/published/targets.toml`, and here what predicts their rows.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from itertools import product
from typing import TYPE_CHECKING

import msgspec
import numpy as np

from medusa_sim.data import DataDir
from medusa_sim.errors import UsageError, unknown_name
from medusa_sim.lab.reproduce.charts import (
    bernoulli_charts,
    efficiency_charts,
    figure21_charts,
    operator_charts,
    point_charts,
    speedup_charts,
    table_charts,
)
from medusa_sim.lab.reproduce.decoding import table1, table3
from medusa_sim.lab.reproduce.published import PAPER_GPU, PUBLISHED, Draw, Reproduction, cited, shipped
from medusa_sim.lab.reproduce.recursive import block_efficiencies, rsd_figure1
from medusa_sim.lab.reproduce.simulation import figure21, figure22, figure23
from medusa_sim.lab.reproduce.tables import operator_figure, points, printed_table, table7
from medusa_sim.lab.reproduce.token_rates import baseline_rates, figure7b, rsd_token_rates
from medusa_sim.reading.documents import read_toml
from medusa_sim.reading.strict import Schema, Text, convert

if TYPE_CHECKING:
    import pandas as pd

READABLE_SPEEDUP = 0.5
"""Below this the reading of the plots (about 0.05) is itself wrong by 10 % and more."""


_SEVERAL = "candidates > 1"
"""Cells at one candidate are left out of ratios and speedups: they are 1 by convention."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Score:
    """How far off a target is: a column of signed errors, over the rows for which `where` holds (all: empty).

    cell: columns that name the worst one. baseline: what speedups are over.
    """

    quantity: str
    cell: tuple[str, ...]
    column: str = "error"
    where: str = ""
    baseline: str = ""

    def row(self, target: str, frame: pd.DataFrame) -> dict[str, object]:
        """The row of `scores`."""
        kept = frame.query(self.where) if self.where else frame
        errors = kept[self.column].abs().to_numpy(dtype=np.float64)
        worst = int(np.argmax(errors))
        return {
            "target": target,
            "quantity": self.quantity,
            "baseline": self.baseline,
            "cells": len(errors),
            "mean_error": float(np.mean(errors)),
            "worst_error": float(errors[worst]),
            "worst_cell": ", ".join(f"{name} {kept[name].to_numpy()[worst]}" for name in self.cell),
        }


class Target(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A table or figure of a paper. caveat: one line.

    source: paper and place, or the name of the shipped table that says so (`cited`).
    """

    title: Text
    source: Text
    caveat: Text


class _TargetsToml(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    schema: Schema
    targets: dict[str, Target]


_FILE = shipped(f"{PUBLISHED}/targets.toml")
TARGETS = convert(read_toml(_FILE), _TargetsToml, _FILE).targets


@dataclass(frozen=True, slots=True)
class Predicted:
    """What predicts, draws and scores a target.

    rows: one a cell, predicted beside published; columns of what the paper prints start with `published_` and
    are empty where it gives nothing or where that is kept out of this project as a test.
    """

    rows: Callable[[DataDir], pd.DataFrame]
    draw: Draw | None = None
    scores: tuple[Score, ...] = ()


def _table_scores(line: str) -> tuple[Score, ...]:
    cell = (line, "candidates")
    return (
        Score(quantity="time", cell=cell),
        Score(quantity="T(candidates) / T(1)", column="ratio_error", cell=cell, where=_SEVERAL),
    )


_SPEEDUPS = tuple(
    Score(
        quantity=quantity,
        column=f"{kind}_{baseline}",
        cell=("batch", "candidates"),
        where=f"{_SEVERAL} and published_speedup >= {least}",
        baseline=baseline,
    )
    for baseline in ("fixed", "same")
    for quantity, kind, least in (
        ("speedup difference", "difference", 0.0),
        (f"speedup from {READABLE_SPEEDUP}", "error", READABLE_SPEEDUP),
    )
)


def _efficiency_scores(line: str) -> tuple[Score, ...]:
    return (Score(quantity="block efficiency of trees", cell=("pair", line), where="decoder != 'SD'"),)


def _rates(*cell: str) -> tuple[Score, ...]:
    return (Score(quantity="tokens/s, not fitted", cell=cell, where="not is_fitted"),)


def _difference(quantity: str, cell: str) -> tuple[Score, ...]:
    return (Score(quantity=f"{quantity} difference", column="difference", cell=(cell,)),)


_TABLE6 = partial(printed_table, "medusa_table6", "seq_len")
_TABLE8 = partial(printed_table, "medusa_table8", "batch")
_OPERATORS = product((PAPER_GPU, "a40", "rtx-a6000"), ("llama-7b", "llama-13b", "llama-33b"))
"""GPU and model of Figures 9 to 17."""
PREDICTED = {
    "table6": Predicted(_TABLE6, table_charts, _table_scores("seq_len")),
    "table7": Predicted(table7, table_charts),
    "table8": Predicted(_TABLE8, table_charts, _table_scores("batch")),
    **{
        f"figure{number}": Predicted(partial(operator_figure, *operators), operator_charts)
        for number, operators in enumerate(_OPERATORS, 9)
    },
    "figure18": Predicted(lambda data_dir: points(_TABLE6(data_dir)), point_charts),
    "figure19": Predicted(lambda data_dir: points(table7(data_dir)), point_charts),
    "figure20": Predicted(lambda data_dir: points(_TABLE8(data_dir)), point_charts),
    "figure21": Predicted(figure21, figure21_charts, _SPEEDUPS),
    "figure22": Predicted(figure22, speedup_charts, _SPEEDUPS),
    "figure23": Predicted(figure23, speedup_charts),
    "table1": Predicted(table1, None, _difference("overhead", "model")),
    "table3": Predicted(table3, None, _difference("speedup", "technique")),
    "table1-rates": Predicted(
        partial(baseline_rates, "medusa_table1", "baseline_tokens_per_s_approx"), None, _rates("model")
    ),
    "table4": Predicted(
        partial(baseline_rates, "medusa_table4", "baseline_tokens_per_s"), None, _rates("model")
    ),
    "figure7b": Predicted(figure7b, None, _rates("draft", "gamma")),
    "rsd-figure1": Predicted(lambda _: rsd_figure1(), bernoulli_charts),
    "rsd-figure4": Predicted(
        lambda _: block_efficiencies(4), efficiency_charts, _efficiency_scores("draft_length")
    ),
    "rsd-figure5": Predicted(
        lambda _: block_efficiencies(5), efficiency_charts, _efficiency_scores("budget")
    ),
    "rsd-token-rates": Predicted(
        lambda _: rsd_token_rates(), None, _rates("target", "task", "decoder", "spec")
    ),
}
"""By the names of TARGETS."""


def reproduction(name: str, data_dir: DataDir = None) -> Reproduction:
    """The table or figure of that name. Raises UsageError for an unknown one, naming the nearest."""
    if name not in TARGETS:
        raise UsageError(unknown_name("table or figure", name, TARGETS))
    target, predicted = TARGETS[name], PREDICTED[name]
    source = target.source if " " in target.source else cited(target.source)
    return Reproduction(
        name=name,
        title=target.title,
        source=source,
        caveat=target.caveat,
        frame=predicted.rows(data_dir),
        draw=predicted.draw,
    )


def scores(data_dir: DataDir = None) -> pd.DataFrame:
    """One row a target and quantity: target, quantity, baseline, cells, mean_error, worst_error, worst_cell.

    Errors are absolute values of predicted / published - 1; rows of a `difference` are absolute differences.
    """
    import pandas as pd

    return pd.DataFrame(
        [
            score.row(name, frame)
            for name, predicted in PREDICTED.items()
            if predicted.scores
            for frame in [predicted.rows(data_dir)]
            for score in predicted.scores
        ]
    )
