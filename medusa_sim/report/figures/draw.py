"""Charts drawn by matplotlib in one look, for reports, notebooks and the command line."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from textwrap import fill
from typing import TYPE_CHECKING, Any

import numpy as np

from medusa_sim.outside.escaping import for_figure
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
from medusa_sim.report.palette import HATCHES, INK, PARTS

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.axis import Axis as Ruler
    from matplotlib.figure import Figure
    from matplotlib.lines import Line2D


_MOST_CELL_TEXTS = 400
_SMALLEST_TEXT = 5.5
_CROSSING = "#c2185b"
Look = dict[str, Any]
_OUTSIDE: Look = {"loc": "center left", "bbox_to_anchor": (1.0, 0.5), "fontsize": 8}
"""Where a legend covers nothing."""
_BELOW: Look = {"loc": "lower left", "fontsize": 8}
_SLIM = 4.3
"""Inches across of a figure for a phone, whose text is read at the width of its page."""
_LETTERS, _SLIM_LETTERS = 90, 42
"""Of a line of a title and of an axis, on a page and on a phone."""
_TITLE_GAP = 0.09
"""Inches above the title of several charts; those of the charts stand right below it."""
_ABOVE = 1.03
"""Of an axis from zero: room for the markers of its highest points."""
_NAME_LETTERS = 60
"""Of a name in a legend or beside a bar."""
_THOUSAND = 1e3


def lines_figure(
    *charts: LineChart,
    columns: int = 1,
    height: float | None = None,
    title: str = "",
    slim: bool = False,
) -> Figure:
    """Charts beside and below each other, with one legend where all have the same names.

    height: in inches, of the whole figure; as its rows need where none is given.
    slim: for a phone, below each other with the legend under them.
    """
    rows = -(-len(charts) // columns)
    width = 8.2 if columns == 1 else 2.5 + 5.0 * columns
    height = 1.0 + 3.6 * rows if height is None else height
    if slim:
        entries = max(len(chart.legend_names) for chart in charts)
        columns, rows, width, height = 1, len(charts), _SLIM, 3.2 * len(charts) + 0.17 * entries + 0.3
    with drawing(width, height, columns=columns, rows=rows) as (figure, axes):
        for axis, chart in zip(axes, charts, strict=False):
            _lines(axis, chart, slim=slim)
        for axis in axes[len(charts) :]:
            axis.set_visible(False)
        same = all(chart.legend_names == charts[0].legend_names for chart in charts)
        last = min(columns, len(charts)) - 1
        for place, chart in enumerate(charts):
            if chart.legend_names and (not same or place == last):
                handles = [_handle(chart, name) for name in chart.legend_names]
                where: Look = _OUTSIDE if not slim else _BELOW if same else {"fontsize": 7}
                on = figure if same and slim else axes[place]
                on.legend(
                    handles,
                    [for_figure(name, _NAME_LETTERS) for name in chart.legend_names],
                    title=for_figure(chart.legend) or None,
                    **where,
                )
        if title:
            figure.suptitle(
                for_figure(title),
                x=0.01,
                y=1 - _TITLE_GAP / height,
                ha="left",
                fontweight="bold",
                fontsize=10,
            )
    return figure


def _lines(axis: Axes, chart: LineChart, *, slim: bool) -> None:
    for side, scale in (("x", chart.x), ("y", chart.y)):
        if scale.base:
            axis.set(**{f"{side}scale": "log"})
        axis.set(**{f"{side}label": _folded(scale.title, slim)})
    for series in chart.series:
        if series.low is not None and series.high is not None:
            axis.fill_between(series.x, series.low, series.high, color=series.colour, alpha=0.10, linewidth=0)
        if series.outline:
            axis.fill(*zip(*series.outline, strict=True), color=series.colour, alpha=0.10, linewidth=0)
        _series(axis, series, above=chart.texts_above)
    for limit in chart.limits:
        drawn: Look = {"color": limit.colour, "linewidth": 0.9, "linestyle": limit.line, "zorder": 1}
        if limit.x is not None:
            axis.axvline(limit.x, **drawn)
            axis.annotate(for_figure(limit.text), (limit.x, 0.015), xycoords=axis.get_xaxis_transform(),
                          xytext=(3, 0), textcoords="offset points", fontsize=8)  # fmt: skip
        elif limit.y is not None:
            axis.axhline(limit.y, **drawn)
            # at the left, where lines begin together: further on they cross the limit
            axis.annotate(for_figure(limit.text), (0.01, limit.y), xycoords=axis.get_yaxis_transform(),
                          xytext=(0, -4), textcoords="offset points", fontsize=8, va="top")  # fmt: skip
    for ruler, ticks, scale in zip(
        (axis.xaxis, axis.yaxis), chart.ticks.values(), (chart.x, chart.y), strict=True
    ):
        _set_ticks(ruler, ticks, is_log=bool(scale.base))
    if chart.y.zero:
        axis.set_ylim(0.0, _ABOVE * axis.get_ylim()[1])
    axis.set_title(_folded(chart.title, slim))


def _folded(text: str, slim: bool, letters: int = _SLIM_LETTERS) -> str:
    return fill(for_figure(text), letters if slim else _LETTERS)


def _set_ticks(ruler: Ruler, ticks: Sequence[float], *, is_log: bool) -> None:
    """Label ticks as 20, 0.6, 4,000, 5M. ticks: empty for those of the ruler's scale."""
    from matplotlib.ticker import NullLocator

    if ticks:
        ruler.set_ticks(ticks, [_tick_text(tick) for tick in ticks])
        ruler.set_minor_locator(NullLocator())
    elif is_log or ruler.get_view_interval()[1] >= _THOUSAND:
        ruler.set_major_formatter(lambda x, _: _tick_text(x))


def _tick_text(tick: float) -> str:
    return f"{tick / 1e6:g}M" if tick >= 1e6 else f"{round(tick, 6):,.10g}"


def _series(axis: Axes, series: Series, *, above: bool) -> None:
    axis.plot(
        series.x, series.y, linestyle=series.line or "none", marker=series.marker or None,
        color=series.colour, linewidth=series.width, markersize=series.size,
        markeredgewidth=1.4 if series.marker == "|" else 1.0,
        markerfacecolor=series.colour if series.filled else "none", markevery=series.every,
    )  # fmt: skip
    from matplotlib.patheffects import withStroke

    for x, y, text in zip(series.x, series.y, series.texts, strict=False):
        axis.annotate(
            for_figure(text),
            (x, y),
            xytext=(4, 4 if above else -4),
            textcoords="offset points",
            va="bottom" if above else "top",
            fontsize=7,
            path_effects=[withStroke(linewidth=2, foreground="white")],
        )


def _handle(chart: LineChart, name: str) -> Line2D:
    """Legend entry of a name: its line, or the marker of points alone."""
    from matplotlib.lines import Line2D

    look = chart.names[name]
    drawn: Look = {"color": look.colour, "linestyle": look.line or "none", "marker": look.marker or None}
    return Line2D([], [], markerfacecolor=look.colour if look.filled else "none", **drawn)


def bars_figure(chart: BarChart, *, slim: bool = False) -> Figure:
    """Stacked bars below each other, a group's bars together; slim: for a phone."""
    from matplotlib.patches import PathPatch
    from matplotlib.path import Path

    width, height = (_SLIM, 2.2) if slim else (8.2, 1.3)
    with drawing(width, height + 0.2 * len(chart.bars)) as (figure, axes):
        axis = axes[0]
        places, names = list[float](), list[str]()
        for bar, before in zip(chart.bars, (None, *chart.bars), strict=False):
            begins = before is None or bar.group != before.group
            places.append(places[-1] + (1.5 if begins else 1.0) if places else 0.0)
            names.append(f"{bar.group}:  {bar.name}" if begins and bar.group else bar.name)
        ends = np.zeros(len(places))
        for number, name in enumerate(chart.drawn):
            begin = ends.copy()
            ends += [bar.parts.get(name, 0.0) for bar in chart.bars]
            corners = np.asarray([
                [(x, y - 0.45), (end, y - 0.45), (end, y + 0.45), (x, y + 0.45)]
                for x, end, y in zip(begin, ends, places, strict=True) if end > x
            ])  # fmt: skip
            # one artist: a hatch is drawn again for each
            axis.add_patch(PathPatch(
                Path.make_compound_path_from_polys(corners), hatch=HATCHES[number % len(HATCHES)],
                linewidth=0.5, facecolor=PARTS[name].colour, edgecolor="white", label=PARTS[name].title,
            ))  # fmt: skip
        for bar, y, end in zip(chart.bars, places, ends, strict=True):
            axis.annotate(bar.text, (end, y), xytext=(3, 0), textcoords="offset points", va="center",
                          fontsize=7)  # fmt: skip
        axis.set_yticks(places, [for_figure(name, _NAME_LETTERS) for name in names])
        above = 0.45 + 0.02 * (places[-1] + 0.9)
        axis.set(xlim=(0.0, 1.08 * ends.max()), ylim=(places[-1] + above, -above))
        axis.tick_params(axis="y", length=0)
        axis.grid(visible=False, axis="y")
        axis.set(xlabel=for_figure(chart.value), ylabel=_folded(chart.names, slim))
        axis.set_title(_folded(chart.title, slim, 32))  # names of bars take a quarter
        if slim:
            figure.legend(ncols=2, **_BELOW)
        else:
            axis.legend(**_OUTSIDE)
    return figure


def map_figure(chart: HeatMap, *, slim: bool = False) -> Figure:
    """Cells with their speedup; the marked ones are framed, a line where speculation begins to lose.

    slim: for a phone, the scale below.
    """
    from matplotlib.cm import ScalarMappable
    from matplotlib.collections import LineCollection, PolyCollection
    from matplotlib.colors import LinearSegmentedColormap, LogNorm, to_rgb

    across = {batch: place for place, batch in enumerate(chart.batches)}
    down = {count: place for place, count in enumerate(chart.counts)}
    size = max(4.5, min(0.6 * len(across) + 2.2, 11.0)), max(2.6, min(0.3 * len(down) + 1.5, 11.0))
    size = (_SLIM, size[1] + 0.7) if slim else size
    letters = min(7.5, 200.0 / len(across)) if slim else 7.5  # points: four of them in a cell
    with_texts = len(chart.cells) <= _MOST_CELL_TEXTS and letters >= _SMALLEST_TEXT
    with drawing(*size) as (figure, axes):
        axis = axes[0]
        colours = np.ones((len(down), len(across), 3))
        for cell in chart.cells:
            x, y = across[cell.batch], down[cell.count]
            if cell.fits:
                colours[y, x] = to_rgb(map_colour(cell.speedup))
            if with_texts:
                ink = cell.ink if cell.fits else INK
                where: Look = {"ha": "center", "va": "center", "in_layout": False}
                axis.text(x, y, cell.text, fontsize=letters, color=ink, **where)
        axis.imshow(colours, aspect="auto")
        best = [cell for cell in chart.cells if cell.is_best]
        centres = np.asarray([(across[cell.batch], down[cell.count]) for cell in best]).reshape(-1, 1, 2)
        frames = centres + 0.47 * np.asarray([(-1, -1), (1, -1), (1, 1), (-1, 1)])
        inks = [cell.ink for cell in best]
        axis.add_collection(PolyCollection(list(frames), facecolor="none", edgecolor=inks, linewidth=1.4))
        between_counts, between_batches = chart.crossings
        ends = [[(across[b] + x, down[c] + 0.5) for x in (-0.5, 0.5)] for b, c in between_counts]
        ends += [[(across[b] + 0.5, down[c] + y) for y in (-0.5, 0.5)] for b, c in between_batches]
        lines = LineCollection(ends, color=_CROSSING, linewidth=2.2, capstyle="projecting")
        axis.add_collection(lines, autolim=False)
        axis.grid(visible=False)
        _ticks(axis, chart)
        stops = np.log(np.array(MAP_STOPS) / MAP_STOPS[0]) / np.log(MAP_STOPS[-1] / MAP_STOPS[0])
        scale = LinearSegmentedColormap.from_list("map", list(zip(stops, MAP_COLOURS, strict=True)))
        bar = figure.colorbar(
            ScalarMappable(LogNorm(MAP_STOPS[0], MAP_STOPS[-1]), scale), ax=axis, label=chart.value,
            fraction=0.04, pad=0.02, location="bottom" if slim else "right",
        )  # fmt: skip
        bar.set_ticks(list(MAP_TICKS), labels=[f"{tick:.1f}" for tick in MAP_TICKS])
        bar.ax.minorticks_off()
        axis.set_title(_folded(chart.title, slim), pad=32)
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


_LOOK = Path(__file__).with_name("look.mplstyle")


@contextmanager
def look() -> Iterator[None]:
    """Fonts, lines and colours of every figure."""
    import matplotlib as mpl

    with mpl.rc_context(mpl.rc_params_from_file(_LOOK, use_default_template=False)):
        yield


@contextmanager
def drawing(
    width: float, height: float, columns: int = 1, rows: int = 1
) -> Iterator[tuple[Figure, list[Axes]]]:
    """A figure of `width` x `height` inches and its axes, row by row, in the common look.

    Once it is drawn on, the axes take the room that labels and legends leave.
    """
    from matplotlib.figure import Figure
    from matplotlib.layout_engine import TightLayoutEngine

    with look():
        figure = Figure(figsize=(width, height))
        axes = figure.subplots(rows, columns, squeeze=False)
        yield figure, [axis for line in axes for axis in line]
        bottom = max((legend.get_window_extent().ymax for legend in figure.legends), default=0.0)
        # an engine that the figure kept would have it drawn once more for each file, and one of the whole
        # figure (a rect) measures everything twice
        rect: Any = (0.0, bottom / figure.bbox.height, 1.0, 1.0) if bottom else None
        TightLayoutEngine(pad=0.5, rect=rect).execute(figure)
