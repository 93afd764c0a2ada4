"""The papers' figures drawn again: lines are predictions, open markers what the paper prints."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from medusa_sim.arrays import FloatArray
from medusa_sim.errors import UsageError
from medusa_sim.report.figures.recursive import bernoulli_figure, block_efficiency_figure
from medusa_sim.report.figures.roofline import draw_roof
from medusa_sim.report.figures.style import (
    FAINT,
    INK,
    LINES,
    MARKERS,
    drawing,
    label_end,
    shades,
    spread_labels,
)
from medusa_sim.reproduce.kernels import paper_roof
from medusa_sim.reproduce.target import Reproduction
from medusa_sim.specs.gpu import Gpu

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_LINE_NAMES = {"batch": "batch", "seq_len": "length"}


def reproduction_figure(target: Reproduction, gpu: Gpu) -> Figure:
    """The plot that suits the target's columns. Raises UsageError for a target without a plot.

    gpu: the one that the target is about (its roof is drawn).
    """
    columns = set(target.frame.columns)
    if "predicted_acceptance" in columns:
        return bernoulli_figure(target)
    if "published_block_efficiency" in columns:
        return block_efficiency_figure(target)
    if "speedup_fixed" in columns:
        return _curves(target) if _several(target.frame, "batch", "seq_len") else _one_curve(target)
    if "published_us" in columns:
        return _operator_table(target, gpu)
    if {"operational_intensity", "flops_per_s"} <= columns or "predicted_flops_per_s" in columns:
        return _operator_points(target, gpu)
    raise UsageError(f"{target.name} has no plot; leave out --plot, or export its rows with --format csv")


def _several(frame: pd.DataFrame, *columns: str) -> bool:
    return any(len(set(frame[column])) > 1 for column in columns)


def _line_column(frame: pd.DataFrame) -> str:
    return "seq_len" if _several(frame, "seq_len") else "batch"


def _draw_published(axis: Axes, x: pd.Series[float], y: pd.Series[float], marker: str, colour: str) -> None:
    """Open markers: what the paper prints, wherever it prints something."""
    axis.plot(x, y, marker, color=colour, markerfacecolor="white")


def _one_curve(target: Reproduction) -> Figure:
    """Figure 21: acceleration rate, normalised latency and speedup of one batch and length."""
    frame = target.frame
    series = (
        ("tokens per step", "predicted_tokens_per_step", "published_tokens_per_step"),
        ("latency / plain step", "predicted_normalized_latency", "published_normalized_latency"),
        ("speedup", "speedup_fixed", "published_speedup"),
    )
    with drawing(8.2, 4.6) as (figure, axes):
        axis = axes[0]
        labels = []
        for (name, predicted, published), colour, marker, line in zip(
            series, shades(3), MARKERS, LINES, strict=False
        ):
            axis.plot(frame["candidates"], frame[predicted], line, color=colour)
            _draw_published(axis, frame["candidates"], frame[published], marker, colour)
            labels.append((float(frame[predicted].iloc[-1]), name, colour))
        _finish(axis, frame, labels, "tokens, or ratio to a plain step", "")
        figure.suptitle(target.title, x=0.01, ha="left", fontweight="bold", fontsize=10)
    return figure


def _curves(target: Reproduction) -> Figure:
    """Figures 22 and 23: speedup by candidates for each batch or length, with both baselines."""
    frame = target.frame
    column = _line_column(frame)
    panels = (
        ("speedup_fixed", "as plotted in the paper: over one step at batch 1, length 1024"),
        ("speedup_same", "over plain decoding at the same batch and length"),
    )
    with drawing(11.0, 4.6, columns=2) as (figure, axes):
        for axis, (value, title) in zip(axes, panels, strict=True):
            labels = []
            groups = list(frame.groupby(column, sort=True))
            for number, (key, rows) in enumerate(groups):
                colour = shades(len(groups))[number]
                axis.plot(rows["candidates"], rows[value], LINES[number % len(LINES)], color=colour)
                if value == "speedup_fixed":
                    marker = MARKERS[number % len(MARKERS)]
                    _draw_published(axis, rows["candidates"], rows["published_speedup"], marker, colour)
                labels.append((float(rows[value].iloc[-1]), f"{_LINE_NAMES[column]} {key}", colour))
            axis.axhline(1.0, color=INK, linewidth=0.8)
            _finish(axis, frame, labels, "speedup", title)
        axes[1].set_xlabel("candidates")
        figure.suptitle(target.title, x=0.01, ha="left", fontweight="bold", fontsize=10)
    return figure


def _finish(
    axis: Axes, frame: pd.DataFrame, labels: list[tuple[float, str, str]], quantity: str, title: str
) -> None:
    largest = float(frame["candidates"].max())
    spread_labels(axis, largest, labels)
    axis.set_xlim(0, largest * 1.22)
    axis.set_ylim(bottom=0.0)
    axis.set_xlabel("candidates (open markers: published)")
    axis.set_ylabel(quantity)
    axis.set_title(title)


def _operator_table(target: Reproduction, gpu: Gpu) -> Figure:
    """Tables 6 to 8: time by candidates, and the same cells on the roofline."""
    frame = target.frame
    column = _line_column(frame)
    groups = list(frame.groupby(column, sort=True))
    with drawing(11.0, 4.6, columns=2) as (figure, axes):
        labels = []
        for number, (key, rows) in enumerate(groups):
            colour, marker = shades(len(groups))[number], MARKERS[number % len(MARKERS)]
            axes[0].plot(rows["candidates"], rows["predicted_us"], LINES[number % len(LINES)], color=colour)
            _draw_published(axes[0], rows["candidates"], rows["published_us"], marker, colour)
            labels.append((float(rows["predicted_us"].iloc[-1]), f"{_LINE_NAMES[column]} {key}", colour))
        axes[0].set_yscale("log")
        for y, text, colour in labels:
            label_end(axes[0], float(frame["candidates"].max()), y, text, colour)
        axes[0].set_xlim(0, float(frame["candidates"].max()) * 1.22)
        axes[0].set_xlabel("candidates (open markers: published)")
        axes[0].set_ylabel("time of one operator (us)")
        axes[0].set_title("time")
        _cells_on_roof(axes[1], frame, gpu)
        figure.suptitle(target.title, x=0.01, ha="left", fontweight="bold", fontsize=10)
    return figure


def _operator_points(target: Reproduction, gpu: Gpu) -> Figure:
    """Figures 9 to 20: operators on the roofline."""
    with drawing(7.6, 4.8) as (figure, axes):
        axis, frame = axes[0], target.frame
        if "series" not in frame:
            _cells_on_roof(axis, frame, gpu)
        else:
            draw_roof(axis, paper_roof(gpu), "fp16", _intensity(frame))
            groups = list(frame.groupby("series", sort=True))
            for number, (name, rows) in enumerate(groups):
                axis.plot(
                    rows["operational_intensity"],
                    rows["flops_per_s"],
                    MARKERS[number % len(MARKERS)],
                    color=shades(len(groups))[number],
                    markeredgecolor="white",
                    markeredgewidth=0.4,
                    label=str(name),
                )
            axis.legend(loc="lower right", fontsize=8)
        axis.set_title(target.title)
    return figure


def _intensity(frame: pd.DataFrame) -> FloatArray:
    return frame["operational_intensity"].to_numpy(dtype=np.float64)


def _cells_on_roof(axis: Axes, frame: pd.DataFrame, gpu: Gpu) -> None:
    """Predicted and published FLOP/s of the cells of a table."""
    draw_roof(axis, gpu, "fp16", _intensity(frame))
    axis.plot(
        frame["operational_intensity"],
        frame["published_flops_per_s"],
        "o",
        color=FAINT,
        markerfacecolor="white",
        label="published",
    )
    axis.plot(
        frame["operational_intensity"], frame["predicted_flops_per_s"], "+", color=INK, label="predicted"
    )
    axis.set_title("on the roofline")
    axis.legend(loc="lower right", fontsize=8)
