"""Charts drawn by matplotlib, for reports, notebooks and the command line."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from medusa_sim.report.charts.chart import (
    MAP_COLOURS,
    MAP_STOPS,
    MAP_TICKS,
    BarChart,
    HeatMap,
    LineChart,
    Series,
    map_colour,
)
from medusa_sim.report.figures.style import HATCHES, INK, PARTS, drawing

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from matplotlib.lines import Line2D


_PAIR = 2.75
_MOST_CELL_TEXTS = 400
_CROSSING = "#c2185b"
Look = dict[str, Any]
_OUTSIDE: Look = {"loc": "center left", "bbox_to_anchor": (1.0, 0.5), "fontsize": 8}
"""Where a legend covers nothing."""


def lines_figure(
    *charts: LineChart, columns: int = 1, width: float = 8.2, height: float = 4.6, title: str = ""
) -> Figure:
    """Charts beside and below each other, with one legend where all have the same names."""
    rows = -(-len(charts) // columns)
    with drawing(width, height, columns=columns, rows=rows) as (figure, axes):
        for axis, chart in zip(axes, charts, strict=False):
            _lines(axis, chart)
        for axis in axes[len(charts) :]:
            axis.set_visible(False)
        same = all(chart.told == charts[0].told for chart in charts)
        last = min(columns, len(charts)) - 1
        for place, chart in enumerate(charts):
            if chart.told and (not same or place == last):
                handles = [_handle(chart, name) for name in chart.told]
                where: Look = {"fontsize": 7} if not same else _OUTSIDE
                axes[place].legend(handles, chart.told, title=chart.legend or None, **where)
        if title:
            figure.suptitle(title, x=0.01, ha="left", fontweight="bold", fontsize=10)
    return figure


def _lines(axis: Axes, chart: LineChart) -> None:
    from matplotlib.ticker import LogFormatter

    for side, own in (("x", chart.x), ("y", chart.y)):
        if own.base:
            axis.set(**{f"{side}scale": "log"})
            ruler = axis.xaxis if side == "x" else axis.yaxis
            ruler.set_major_formatter("{x:g}")
            if own.base == 10:  # 20 and 50, not powers
                ruler.set_minor_formatter(LogFormatter(minor_thresholds=(2, 0.5)))
        axis.set(**{f"{side}label": own.title})
    for each in chart.series:
        if each.low is not None and each.high is not None:
            axis.fill_between(each.x, each.low, each.high, color=each.colour, alpha=0.10, linewidth=0)
        if each.outline:
            axis.fill(*zip(*each.outline, strict=True), color=each.colour, alpha=0.10, linewidth=0)
        _series(axis, each)
    for limit in chart.limits:
        drawn: Look = {"color": limit.colour, "linewidth": 0.9, "linestyle": limit.line, "zorder": 1}
        if limit.x is not None:
            axis.axvline(limit.x, **drawn)
            axis.text(limit.x, 0.015, f" {limit.text}", transform=axis.get_xaxis_transform(), fontsize=8)
        elif limit.y is not None:
            axis.axhline(limit.y, **drawn)
            axis.text(1.0, limit.y, limit.text, transform=axis.get_yaxis_transform(), fontsize=8,
                      ha="right", va="bottom")  # fmt: skip
    if chart.x.ticks:
        axis.set_xticks(chart.x.ticks, [f"{tick:g}" for tick in chart.x.ticks])
        axis.minorticks_off()
    if chart.y.zero:
        axis.set_ylim(bottom=0.0)
    axis.set_title(chart.title)


def _series(axis: Axes, each: Series) -> None:
    axis.plot(
        each.x, each.y, linestyle=each.line or "none", marker=each.marker or None, color=each.colour,
        linewidth=each.width, markersize=each.size, markeredgewidth=1.4 if each.marker == "|" else 1.0,
        markerfacecolor=each.colour if each.filled else "none",
    )  # fmt: skip
    for x, y, text in zip(each.x, each.y, each.texts, strict=False):
        axis.annotate(text, (x, y), xytext=(4, 4), textcoords="offset points", fontsize=7, color=each.colour)


def _handle(chart: LineChart, name: str) -> Line2D:
    """What the legend shows for a name: its line, or the marker of points alone."""
    from matplotlib.lines import Line2D

    own = chart.names[name]
    drawn: Look = {"color": own.colour, "linestyle": own.line or "none", "marker": own.marker or None}
    return Line2D([], [], **drawn)


def bars_figure(chart: BarChart) -> Figure:
    """Stacked bars, those of a group beside each other."""
    with drawing(8.2, 4.6) as (figure, axes):
        axis = axes[0]
        places = list[float]()
        groups: dict[str, list[float]] = {}
        for bar in chart.bars:
            x = len(groups) * _PAIR if bar.group not in groups else places[-1] + 1.0
            places.append(x)
            groups.setdefault(bar.group, []).append(x)
        tops = [0.0] * len(places)
        for number, name in enumerate(chart.drawn):
            parts = [bar.parts.get(name, 0.0) for bar in chart.bars]
            axis.bar(
                places, parts, 0.9, bottom=tops, hatch=HATCHES[number % len(HATCHES)], linewidth=0.5,
                color=PARTS[name].colour, edgecolor="white", label=PARTS[name].title,
            )  # fmt: skip
            tops = [top + part for top, part in zip(tops, parts, strict=True)]
        for bar, x, top in zip(chart.bars, places, tops, strict=True):
            axis.text(x, top, bar.text, ha="center", va="bottom", fontsize=7)
        axis.set_xticks(places, [bar.name for bar in chart.bars])
        # A minor tick on top of a major one would be dropped.
        middles = [sum(found) / len(found) + 0.01 for found in groups.values()]
        axis.set_xticks(middles, [f"\n{group}" for group in groups], minor=True, fontweight="bold")
        axis.tick_params(axis="x", which="both", length=0)
        axis.grid(visible=False, axis="x")
        axis.set(xlabel=chart.names, ylabel=chart.value, title=chart.title)
        handles, texts = axis.get_legend_handles_labels()
        axis.legend(handles[::-1], texts[::-1], **_OUTSIDE)
    return figure


def map_figure(chart: HeatMap) -> Figure:
    """Cells with their speedup; the marked ones are framed, a line where speculation begins to lose."""
    from matplotlib.cm import ScalarMappable
    from matplotlib.colors import LinearSegmentedColormap, LogNorm, to_rgb
    from matplotlib.patches import Rectangle

    across = {batch: place for place, batch in enumerate(chart.batches)}
    down = {count: place for place, count in enumerate(chart.counts)}
    size = max(4.5, min(0.6 * len(across) + 2.2, 11.0)), max(2.6, min(0.3 * len(down) + 1.5, 11.0))
    with drawing(*size) as (figure, axes):
        axis = axes[0]
        colours = np.ones((len(down), len(across), 3))
        for cell in chart.cells:
            x, y = across[cell.batch], down[cell.count]
            if cell.fits:
                colours[y, x] = to_rgb(map_colour(cell.speedup))
            if len(chart.cells) <= _MOST_CELL_TEXTS:
                ink = cell.ink if cell.fits else INK
                axis.text(x, y, cell.text, ha="center", va="center", fontsize=7.5, color=ink)
            if cell.is_best:
                corner = x - 0.47, y - 0.47
                axis.add_patch(Rectangle(corner, 0.94, 0.94, fill=False, edgecolor=cell.ink, linewidth=1.4))
        axis.imshow(colours, aspect="auto")
        below, beside = chart.crossings
        for batch, count in below:
            left, edge = across[batch] - 0.5, down[count] + 0.5
            axis.plot([left, left + 1], [edge, edge], color=_CROSSING, linewidth=2.2)
        for batch, count in beside:
            edge, top = across[batch] + 0.5, down[count] - 0.5
            axis.plot([edge, edge], [top, top + 1], color=_CROSSING, linewidth=2.2)
        axis.grid(visible=False)
        _ticks(axis, chart)
        stops = np.log(np.array(MAP_STOPS) / MAP_STOPS[0]) / np.log(MAP_STOPS[-1] / MAP_STOPS[0])
        scale = LinearSegmentedColormap.from_list("map", list(zip(stops, MAP_COLOURS, strict=True)))
        bar = figure.colorbar(
            ScalarMappable(LogNorm(MAP_STOPS[0], MAP_STOPS[-1]), scale), ax=axis, label=chart.value,
            fraction=0.04, pad=0.02,
        )  # fmt: skip
        bar.set_ticks(list(MAP_TICKS), labels=[f"{tick:.1f}" for tick in MAP_TICKS])
        bar.ax.minorticks_off()
        axis.set_title(chart.title, pad=32)
    return figure


def _ticks(axis: Axes, chart: HeatMap) -> None:
    columns, rows = (
        np.unique(np.linspace(0, len(given) - 1, min(len(given), 16)).round().astype(int))
        for given in (chart.batches, chart.counts)
    )
    axis.set_xticks(columns, [str(chart.batches[i]) for i in columns])
    axis.set_yticks(rows, [str(chart.counts[i]) for i in rows])
    axis.xaxis.set_label_position("top")
    axis.tick_params(length=0, labeltop=True, labelbottom=False)
    axis.set(xlabel="batch", ylabel=chart.counted)
