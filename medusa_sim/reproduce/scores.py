"""How far the predictions are from what the papers print: mean and worst error of each target."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from medusa_sim.data import DataDir
from medusa_sim.reproduce.targets import reproduction

if TYPE_CHECKING:
    import pandas as pd

READABLE_SPEEDUP = 0.5
"""Below this the reading of the plots (about 0.05) is itself wrong by 10 % and more."""


def scores(data_dir: DataDir = None) -> pd.DataFrame:
    """One row a target and quantity: target, quantity, baseline, cells, mean_error, worst_error, worst_cell.

    Errors are absolute values of predicted / published - 1; `speedup difference` rows are absolute
    differences. Cells at one candidate are left out of ratios and speedups: they are 1 by convention.
    """
    import pandas as pd

    rows: list[dict[str, object]] = []
    for name, line in (("table6", "seq_len"), ("table8", "batch")):
        table = reproduction(name, data_dir)
        rows.append(_score(table.name, "time", "", table.frame, "error", line))
        several = table.frame[table.frame["candidates"] > 1]
        rows.append(_score(table.name, "T(candidates) / T(1)", "", several, "ratio_error", line))
    for figure in (reproduction(name, data_dir) for name in ("figure21", "figure22")):
        printed = figure.frame.dropna(subset="published_speedup")
        printed = printed[printed["candidates"] > 1]
        readable = printed[printed["published_speedup"] >= READABLE_SPEEDUP]
        for baseline in ("fixed", "same"):
            rows.append(
                _score(
                    figure.name, "speedup difference", baseline, printed, f"difference_{baseline}", "batch"
                )
            )
            quantity = f"speedup from {READABLE_SPEEDUP}"
            rows.append(_score(figure.name, quantity, baseline, readable, f"error_{baseline}", "batch"))
    for name, line in (("rsd-figure4", "draft_length"), ("rsd-figure5", "budget")):
        figure = reproduction(name, data_dir)
        drafted = figure.frame[figure.frame["decoder"] != "SD"]
        rows.append(_score(figure.name, "block efficiency of trees", "", drafted, "error", "pair", line))
    return pd.DataFrame(rows)


def _score(
    target: str,
    quantity: str,
    baseline: str,
    frame: pd.DataFrame,
    column: str,
    line: str,
    place: str = "candidates",
) -> dict[str, object]:
    errors = frame[column].abs().to_numpy(dtype=np.float64)
    worst = int(np.argmax(errors))
    return {
        "target": target,
        "quantity": quantity,
        "baseline": baseline,
        "cells": len(errors),
        "mean_error": float(np.mean(errors)),
        "worst_error": float(errors[worst]),
        "worst_cell": ", ".join(f"{name} {frame[name].to_numpy()[worst]}" for name in (line, place)),
    }
