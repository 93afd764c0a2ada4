"""The chart of set-ups, drawn by matplotlib for reports and notebooks."""

from __future__ import annotations

from typing import TYPE_CHECKING

from medusa_sim.report.compare_chart import X_TITLE, Chart, Curve
from medusa_sim.report.figures.style import INK, drawing

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_MOST_LABELS = 6
"""Points of a curve that are named."""


def compare_figure(chart: Chart) -> Figure:
    """Curves with bands, points named by requests and drafts, the target as a line, the chosen ringed."""
    with drawing(8.2, 5.0) as (figure, axes):
        axis = axes[0]
        axis.set_xscale("log")
        axis.set_yscale("log")
        for curve in chart.curves:
            _draw(axis, curve)
        if chart.target is not None:
            axis.axvline(chart.target, color=INK, linewidth=0.9, linestyle=(0, (6, 3)))
            axis.annotate(
                f" {chart.target:g} tokens/s a user", (chart.target, 0.01),
                xycoords=("data", "axes fraction"), fontsize=8, va="bottom",
            )  # fmt: skip
        if chart.chosen is not None:
            axis.plot(
                chart.chosen.x, chart.chosen.y, "o", markersize=13, markerfacecolor="none",
                markeredgecolor=INK, markeredgewidth=1.4,
            )  # fmt: skip
        axis.set_xlabel(X_TITLE)
        axis.set_ylabel(chart.y_title)
        axis.set_title(f"{chart.title}; points: requests / drafts")
        for side in (axis.xaxis, axis.yaxis):
            side.set_major_formatter("{x:g}")
        axis.legend(loc="center left", bbox_to_anchor=(1.0, 0.5), fontsize=8)
    return figure


def _draw(axis: Axes, curve: Curve) -> None:
    x, y = [point.x for point in curve.points], [point.y for point in curve.points]
    if len(x) > 1:
        axis.fill(*zip(*curve.outline, strict=True), color=curve.colour, alpha=0.10, linewidth=0)
    axis.plot(
        x, y, "-" if curve.speculative else ":", color=curve.colour, marker=curve.marker, label=curve.name,
        markerfacecolor=curve.colour if curve.speculative else "white",
    )  # fmt: skip
    if not curve.speculative:
        return
    every = max(1, -(-len(x) // _MOST_LABELS))
    for point in curve.points[::every]:
        axis.annotate(
            point.label, (point.x, point.y), xytext=(4, 4), textcoords="offset points", fontsize=7,
            color=curve.colour,
        )  # fmt: skip
