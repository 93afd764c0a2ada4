"""Every table and figure that is reproduced, by the name that the command line spells, and how far off it is.

A further paper adds its targets to `profiles/published/targets.toml`, and here what predicts their rows.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import msgspec
import numpy as np

from medusa_sim.data import DataDir
from medusa_sim.errors import UsageError, unknown_name
from medusa_sim.lab.reproduce.decoding import table1, table3
from medusa_sim.lab.reproduce.published import PUBLISHED, Reproduction, cited, shipped
from medusa_sim.lab.reproduce.recursive import block_efficiencies, rsd_figure1
from medusa_sim.lab.reproduce.simulation import figure21, figure22, figure23
from medusa_sim.lab.reproduce.tables import POINTS, operator_figure, printed_table, table7
from medusa_sim.lab.reproduce.token_rates import baseline_rates, figure7b, rsd_token_rates
from medusa_sim.reading.documents import read_toml
from medusa_sim.reading.strict import Schema, Text, convert

if TYPE_CHECKING:
    import pandas as pd


class Target(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A table or figure of a paper. caveat: one line. rows: a name of `_ROWS`, and what it is told.

    source: paper and place, or the name of the shipped table that says so (`cited`).
    """

    title: Text
    source: Text
    caveat: Text
    rows: tuple[str | int, ...]


class _TargetsToml(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    schema: Schema
    targets: dict[str, Target]


def _points(table: str, data_dir: DataDir = None) -> pd.DataFrame:
    """Figures 18 to 20: the points of a table on the roofline."""
    return reproduction(table, data_dir).frame[POINTS]


_ROWS: dict[str, Callable[..., pd.DataFrame]] = {
    "points": _points,
    **{each.__name__: each for each in (
        printed_table, table7, operator_figure, figure21, figure22, figure23, table1, table3, baseline_rates,
        figure7b, rsd_figure1, block_efficiencies, rsd_token_rates,
    )},
}  # fmt: skip
"""What predicts the rows of a target: one row a cell, predicted beside published.

Columns that hold what the paper prints start with `published_` and are empty where it gives nothing or where
that is kept out of this project as a test.
"""
_FILE = shipped(f"{PUBLISHED}/targets.toml")
TARGETS = convert(read_toml(_FILE), _TargetsToml, _FILE).targets


def reproduction(name: str, data_dir: DataDir = None) -> Reproduction:
    """The table or figure of that name. Raises UsageError for an unknown one, naming the nearest."""
    if name not in TARGETS:
        raise UsageError(unknown_name("table or figure", name, TARGETS))
    target = TARGETS[name]
    source = target.source if " " in target.source else cited(target.source)
    rows, *told = target.rows
    frame = _ROWS[str(rows)](*told, data_dir=data_dir)
    return Reproduction(name=name, title=target.title, source=source, caveat=target.caveat, frame=frame)


READABLE_SPEEDUP = 0.5
"""Below this the reading of the plots (about 0.05) is itself wrong by 10 % and more."""


def scores(data_dir: DataDir = None) -> pd.DataFrame:
    """One row a target and quantity: target, quantity, baseline, cells, mean_error, worst_error, worst_cell.

    Errors are absolute values of predicted / published - 1; `speedup difference` rows are absolute
    differences. Cells at one candidate are left out of ratios and speedups: they are 1 by convention.
    """
    import pandas as pd

    rows: list[dict[str, object]] = []

    def add(
        target: str, quantity: str, frame: pd.DataFrame, column: str, *cell: str, baseline: str = ""
    ) -> None:
        """Errors of a column; cell: columns that name the worst one."""
        errors = frame[column].abs().to_numpy(dtype=np.float64)
        worst = int(np.argmax(errors))
        rows.append(
            {
                "target": target,
                "quantity": quantity,
                "baseline": baseline,
                "cells": len(errors),
                "mean_error": float(np.mean(errors)),
                "worst_error": float(errors[worst]),
                "worst_cell": ", ".join(f"{name} {frame[name].to_numpy()[worst]}" for name in cell),
            }
        )

    for name, line in (("table6", "seq_len"), ("table8", "batch")):
        frame = reproduction(name, data_dir).frame
        add(name, "time", frame, "error", line, "candidates")
        several = frame[frame["candidates"] > 1]
        add(name, "T(candidates) / T(1)", several, "ratio_error", line, "candidates")
    for name in ("figure21", "figure22"):
        printed = reproduction(name, data_dir).frame.dropna(subset="published_speedup")
        printed = printed[printed["candidates"] > 1]
        readable = printed[printed["published_speedup"] >= READABLE_SPEEDUP]
        for baseline in ("fixed", "same"):
            for quantity, kept, kind in (
                ("speedup difference", printed, "difference"),
                (f"speedup from {READABLE_SPEEDUP}", readable, "error"),
            ):
                add(name, quantity, kept, f"{kind}_{baseline}", "batch", "candidates", baseline=baseline)
    for name, line in (("rsd-figure4", "draft_length"), ("rsd-figure5", "budget")):
        frame = reproduction(name, data_dir).frame
        add(name, "block efficiency of trees", frame[frame["decoder"] != "SD"], "error", "pair", line)
    return pd.DataFrame(rows)
