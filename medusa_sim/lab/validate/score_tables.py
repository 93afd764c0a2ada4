"""Scores of predicted times, and the simulator against the decoder, as tables for people."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

from medusa_sim.lab.validate.comparison import ALLOWANCE, CountChoice, Deviation
from medusa_sim.lab.validate.operators import Score
from medusa_sim.lab.validate.regrets import Regret
from medusa_sim.lab.validate.steps import DecoderValidation
from medusa_sim.report.table import TextTable
from medusa_sim.report.words.numbers import NOTHING, percent

if TYPE_CHECKING:
    import pandas as pd


def score_table(scores: Sequence[Score], file: str) -> TextTable:
    """One line for each group of rows, errors in per cent."""
    columns: dict[str, list[str]] = {
        "operator": [score.op for score in scores],
        "dtype": [score.kernels if ":" in score.kernels else score.dtype for score in scores],
        "size": [score.size for score in scores],
        "rows": [str(score.rows) for score in scores],
        "mean": [percent(score.mean) for score in scores],
        "median": [percent(score.median) for score in scores],
        "p90": [percent(score.p90) for score in scores],
        "worst": [percent(score.worst, 0) for score in scores],
        "bias": [NOTHING if math.isnan(score.bias) else f"{100.0 * score.bias:+.1f} %" for score in scores],
        "T(m)/T(1)": [percent(score.ratio) for score in scores],
        "in band": [percent(score.within_band, 0) for score in scores],
        "worst row": [score.worst_at for score in scores],
    }
    words = ("operator", "dtype", "size", "worst row")
    title = f"{file}: error of the predicted time"
    return TextTable.by_column(
        columns, words=words, title=title, expendable=("T(m)/T(1)", "median", "bias", "dtype")
    )


def served_sentence(runs: pd.DataFrame) -> str:
    """Mean error and bias of runs of a server, how many lie in their bands, and their classes."""
    size, bias, held = runs["error"].abs().mean(), 100.0 * runs["error"].mean(), int(runs["held"].sum())
    classes = runs["class"].value_counts()
    where = ", ".join(f"{name} {count}" for name, count in classes.items())
    return (
        f"{len(runs)} runs: mean error {percent(size)}, bias {bias:+.1f} %; {held} of {len(runs)} "
        f"in the 80 % band. New about their set-ups: {where}."
    )


def served_table(runs: pd.DataFrame) -> TextTable:
    """A line a run."""
    rows = runs.astype(object).where(runs.notna(), None).to_dict("records")
    columns: dict[str, list[str]] = {
        "gpu": [str(run["gpu"]) for run in rows],
        "GPUs": [f"{float(run['tp'] or 1):.0f}" for run in rows],
        "model": [str(run["model"]) for run in rows],
        "weights": [str(run["weights"]) for run in rows],
        "runtime": [str(run["runtime"]) for run in rows],
        "requests": [f"{run['concurrency']:g}" for run in rows],
        "tokens": [f"{run['prompt']:g} + {run['output']:g}" for run in rows],
        "measured": [f"{run['measured_ms']:.2f} ms" for run in rows],
        "predicted": [f"{run['predicted_ms']:.2f} ms" for run in rows],
        "80 %": [f"{run['low_ms']:.2f} to {run['high_ms']:.2f}" for run in rows],
        "error": [f"{100.0 * run['error']:+.1f} %" for run in rows],
        "in band": ["yes" if run["held"] else "no" for run in rows],
        "class": [str(run["class"]) for run in rows],
        "expected": [percent(run["expected_error"]) if run["expected_error"] else NOTHING for run in rows],
    }
    words = ("gpu", "model", "weights", "runtime", "in band", "class")
    return TextTable.by_column(columns, words=words, title="time per token of your server")


def regret_table(regrets: Sequence[Regret]) -> TextTable:
    """Speedup given away, one line a model."""
    columns: dict[str, list[str]] = {
        "model": [regret.model for regret in regrets],
        "batches": [str(regret.cases) for regret in regrets],
        "mean": [percent(regret.mean) for regret in regrets],
        "worst": [percent(regret.worst) for regret in regrets],
        "chosen for best": [regret.worst_at for regret in regrets],
        "always 64": [percent(regret.always_64, 0) for regret in regrets],
    }
    title = "choice regret: share of the attainable speedup lost by choosing with predicted times"
    return TextTable.by_column(columns, words=("model", "chosen for best"), title=title)


def comparison_table(validation: DecoderValidation) -> TextTable:
    """Steps: one line a quantity, errors in per cent of the measured value."""
    title = f"{validation.meta.environment.device}: error of the prediction"
    return comparisons_table(validation.comparisons, title)


def comparisons_table(comparisons: Sequence[Deviation], title: str) -> TextTable:
    """One line a quantity, errors in per cent of the measured value."""
    columns: dict[str, list[str]] = {
        "quantity": [each.quantity for each in comparisons],
        "cells": [str(each.cells) for each in comparisons],
        "mean": [percent(each.mean) for each in comparisons],
        "worst": [percent(each.worst, 0) for each in comparisons],
        "bias": [f"{100.0 * each.bias:+.1f} %" for each in comparisons],
        "passes differ": [percent(each.floor) for each in comparisons],
        f"within that + {percent(ALLOWANCE, 0)}": [percent(each.within, 0) for each in comparisons],
        "worst cell": [each.worst_at for each in comparisons],
    }
    return TextTable.by_column(columns, words=("quantity", "worst cell"), title=title)


def floor_line(validation: DecoderValidation) -> str:
    """How exactly these steps can judge anything, in one line."""
    speedups = [each for each in validation.comparisons if each.quantity == "speedup"]
    passes = max(len(cell.passes_us) for cell in validation.cells)
    if not speedups or passes == 1:
        return (
            "one pass over the grid: how far a second would differ is not known, nothing can be judged here"
        )
    floor, effect = speedups[0].floor, validation.effect
    text = (
        f"halves of the {passes} passes differ by {percent(floor)} on average over the speedups; "
        f"the best tree of a batch changes its throughput by {percent(effect)}"
    )
    return f"{text}: cannot be judged here" if floor >= effect else text


def choice_table(choices: Sequence[CountChoice]) -> TextTable:
    """Best counts, predicted and measured; 1 is "do not enable". A verdict where passes were compared."""
    columns: dict[str, list[str]] = {
        "model": [each.model for each in choices],
        "batch": [str(each.batch) for each in choices],
        "predicted best": [_count(each.predicted) for each in choices],
        "measured best": [_count(each.measured) for each in choices],
        "grid steps": [str(each.grid_steps) for each in choices],
        "regret": [percent(each.regret) for each in choices],
    }
    if any(each.floor is not None for each in choices):
        columns |= {
            "gain of the best tree": [f"{each.gain or 0.0:.2f}x" for each in choices],
            "passes differ": [percent(each.floor or 0.0) for each in choices],
            "verdict": [each.verdict for each in choices],
        }
    return TextTable.by_column(columns, words=("model", "verdict"), title="candidates to choose")


def _count(candidates: int) -> str:
    return "do not enable" if candidates == 1 else str(candidates)
