"""Scores of predicted times, and the simulator against the decoder, as tables for people."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

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
    columns: dict[str, Callable[[Score], str]] = {
        "operator": lambda score: score.op,
        "dtype": lambda score: score.kernels if ":" in score.kernels else score.dtype,
        "size": lambda score: score.size,
        "rows": lambda score: str(score.rows),
        "mean": lambda score: percent(score.mean),
        "median": lambda score: percent(score.median),
        "p90": lambda score: percent(score.p90),
        "worst": lambda score: percent(score.worst, 0),
        "bias": lambda score: NOTHING if math.isnan(score.bias) else f"{100.0 * score.bias:+.1f} %",
        "T(m)/T(1)": lambda score: percent(score.ratio),
        "in band": lambda score: percent(score.within_band, 0),
        "worst row": lambda score: score.worst_at,
    }
    words = ("operator", "dtype", "size", "worst row")
    title = f"{file}: error of the predicted time"
    return TextTable.by_row(
        scores, columns, words=words, title=title, expendable=("T(m)/T(1)", "median", "bias", "dtype")
    )


def tree_table(summary: Mapping[str, Mapping[str, float]], comparison: pd.DataFrame) -> TextTable:
    """Tokens per step of trees, one line a kind: signed, absolute and worst error, and the worst run."""
    kept = comparison[comparison["left_out"] == ""]

    def worst_run(kind: str) -> str:
        of_kind = kept if kind == "all" else kept[kept["kind"] == kind]
        worst = of_kind.to_dict("records")[int(of_kind["error"].abs().to_numpy().argmax())]
        run = f"{worst['draft']}, {worst['growmap']}, T {worst['temperature']:g}"
        return f"{run}: {worst['predicted']:.3f} for {worst['measured']:.3f}"

    columns: dict[str, Callable[[str], str]] = {
        "trees": lambda kind: kind,
        "runs": lambda kind: f"{summary[kind]['runs']:.0f}",
        "signed mean": lambda kind: f"{100.0 * summary[kind]['signed_mean']:+.1f} %",
        "mean": lambda kind: percent(summary[kind]["mean_absolute"]),
        "worst": lambda kind: percent(summary[kind]["worst"]),
        "worst run": worst_run,
    }
    title = "error of the predicted tokens per step"
    return TextTable.by_row(summary, columns, words=("trees", "worst run"), title=title)


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
    columns: dict[str, Callable[[Mapping[Any, Any]], str]] = {
        "gpu": lambda run: str(run["gpu"]),
        "GPUs": lambda run: f"{float(run['tp'] or 1):.0f}",
        "model": lambda run: str(run["model"]),
        "weights": lambda run: str(run["weights"]),
        "runtime": lambda run: str(run["runtime"]),
        "requests": lambda run: f"{run['concurrency']:g}",
        "tokens": lambda run: f"{run['prompt']:g} + {run['output']:g}",
        "measured": lambda run: f"{run['measured_ms']:.2f} ms",
        "predicted": lambda run: f"{run['predicted_ms']:.2f} ms",
        "80 %": lambda run: f"{run['low_ms']:.2f} to {run['high_ms']:.2f}",
        "error": lambda run: f"{100.0 * run['error']:+.1f} %",
        "in band": lambda run: "yes" if run["held"] else "no",
        "class": lambda run: str(run["class"]),
        "expected": lambda run: percent(run["expected_error"]) if run["expected_error"] else NOTHING,
    }
    words = ("gpu", "model", "weights", "runtime", "in band", "class")
    rows = runs.astype(object).where(runs.notna(), None).to_dict("records")
    return TextTable.by_row(rows, columns, words=words, title="time per token of your server")


def regret_table(regrets: Sequence[Regret]) -> TextTable:
    """Speedup given away, one line a model."""
    columns: dict[str, Callable[[Regret], str]] = {
        "model": lambda regret: regret.model,
        "batches": lambda regret: str(regret.cases),
        "mean": lambda regret: percent(regret.mean),
        "worst": lambda regret: percent(regret.worst),
        "chosen for best": lambda regret: regret.worst_at,
        "always 64": lambda regret: percent(regret.always_64, 0),
    }
    title = "choice regret: share of the attainable speedup lost by choosing with predicted times"
    return TextTable.by_row(regrets, columns, words=("model", "chosen for best"), title=title)


def comparison_table(validation: DecoderValidation) -> TextTable:
    """Steps: one line a quantity, errors in per cent of the measured value."""
    title = f"{validation.meta.environment.device}: error of the prediction"
    return comparisons_table(validation.comparisons, title)


def comparisons_table(comparisons: Sequence[Deviation], title: str) -> TextTable:
    """One line a quantity, errors in per cent of the measured value."""
    columns: dict[str, Callable[[Deviation], str]] = {
        "quantity": lambda each: each.quantity,
        "cells": lambda each: str(each.cells),
        "mean": lambda each: percent(each.mean),
        "worst": lambda each: percent(each.worst, 0),
        "bias": lambda each: f"{100.0 * each.bias:+.1f} %",
        "passes differ": lambda each: percent(each.floor),
        f"within that + {percent(ALLOWANCE, 0)}": lambda each: percent(each.within, 0),
        "worst cell": lambda each: each.worst_at,
    }
    return TextTable.by_row(comparisons, columns, words=("quantity", "worst cell"), title=title)


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
    columns: dict[str, Callable[[CountChoice], str]] = {
        "model": lambda each: each.model,
        "batch": lambda each: str(each.batch),
        "predicted best": lambda each: _count(each.predicted),
        "measured best": lambda each: _count(each.measured),
        "grid steps": lambda each: str(each.grid_steps),
        "regret": lambda each: percent(each.regret),
    }
    if any(each.floor is not None for each in choices):
        columns |= {
            "gain of the best tree": lambda each: f"{each.gain or 0.0:.2f}x",
            "passes differ": lambda each: percent(each.floor or 0.0),
            "verdict": lambda each: each.verdict,
        }
    return TextTable.by_row(choices, columns, words=("model", "verdict"), title="candidates to choose")


def _count(candidates: int) -> str:
    return "do not enable" if candidates == 1 else str(candidates)
