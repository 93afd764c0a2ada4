"""Descriptions of charts, apart from how they are drawn: lines and points, bars of parts, a map of cells."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import floor, inf, log, log10
from typing import Any

import numpy as np

from medusa_sim.arrays import FloatArray, IntArray
from medusa_sim.report.palette import FAINT, LINES, MARKERS, OTHER, PARTS, SHADES, SMALLEST_SHARE, ink_on

Rows = Sequence[Mapping[str, Any]]
Tip = tuple[str, str, str]
"""Field of a row, its title, how numbers of it are written (empty: as they are)."""
_FEW_TICKS = 4
"""Of an axis, below which more are named between them."""
_MARKED = 8
"""About how many points of a long line have a marker."""
_ROUNDING = 1e-9
"""Share of a bar that rounding leaves of a sum of its parts."""
MAP_STOPS = (0.3, 0.97, 1.03, 3.0)
MAP_COLOURS = ("#9a4a12", "#efe3d8", "#dbe7f6", "#1d4fa8")
"""Browns lose, blues gain; both are told apart without red and green, and on light and dark pages."""
MAP_TICKS = (0.3, 0.5, 0.7, 1.0, 1.5, 2.0, 3.0)
_LOSES = 0.995
"""Largest speedup that is printed below 1.00."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Axis:
    """One axis. title: with its unit. base: of a logarithmic one; 0: linear. ticks: where it is labelled."""

    title: str
    base: int = 0
    zero: bool = False
    ticks: Sequence[float] = ()


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Series:
    """Points of one name: a line, markers or both, in the look of that name.

    name: empty for what has no colour of its own; in_legend: whether the legend has it. line, marker: of
    `LINES` and `MARKERS`, empty for none; every: points from one marker of a line to the next. low, high: the
    band; outline: the band as a closed polygon, where x is uncertain too. texts: beside each point. rows:
    values of each point for `LineChart.tips`.
    """

    name: str
    x: FloatArray | IntArray
    y: FloatArray
    colour: str = FAINT
    line: str = ""
    marker: str = ""
    every: int = 1
    filled: bool = True
    width: float = 1.8
    size: float = 5.0
    low: FloatArray | None = None
    high: FloatArray | None = None
    outline: Sequence[tuple[float, float]] = ()
    texts: Sequence[str] = ()
    rows: Rows = ()
    in_legend: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class ReferenceLine:
    """A straight line across the chart at an x or a y, named by `text`."""

    x: float | None = None
    y: float | None = None
    text: str = ""
    colour: str = FAINT
    line: str = "-"


@dataclass(frozen=True, slots=True, kw_only=True)
class LineChart:
    """Series over two axes. legend: its title."""

    title: str
    x: Axis
    y: Axis
    series: Sequence[Series]
    limits: Sequence[ReferenceLine] = ()
    legend: str = ""
    tips: Sequence[Tip] = ()

    @property
    def names(self) -> dict[str, Series]:
        """Name -> the series that gives it its look, in order."""
        names: dict[str, Series] = {}
        for series in self.series:
            if series.name:
                names.setdefault(series.name, series)
        return names

    @property
    def ticks(self) -> dict[str, Sequence[float]]:
        """Where `x` and `y` are labelled; nothing where that is left to who draws."""
        reached: dict[str, list[FloatArray | IntArray]] = {"x": [], "y": []}
        for series in self.series:
            reached["x"].append(series.x)
            reached["y"].append(series.y)
            if series.outline:
                across, up = np.array(series.outline).T
                reached["x"].append(across)
                reached["y"].append(up)
        axes = {"x": self.x, "y": self.y}
        return {
            name: axis.ticks or (round_ticks(*reached[name]) if axis.base == 10 else [])
            for name, axis in axes.items()
        }

    @property
    def texts_above(self) -> bool:
        """Whether texts stand above their points, where no line goes on: below them where all lines rise."""
        return any(series.y[0] > series.y[-1] for series in self.series if series.line and series.name)

    @property
    def legend_names(self) -> list[str]:
        """Names that the legend has."""
        return [name for name, series in self.names.items() if series.in_legend]


def round_ticks(*reached: FloatArray | IntArray) -> list[float]:
    """Ticks of a logarithmic axis within what is reached: powers of ten, or 1, 2 and 5 of each, or more."""
    low = min((float(values.min()) for values in reached if values.size), default=inf)
    high = max((float(values.max()) for values in reached if values.size), default=0.0)
    if not 0.0 < low <= high < inf:
        return []
    decades = range(floor(log10(low)), floor(log10(high)) + 1)
    for steps in ((1,), (1, 2, 5), (1, 1.5, 2, 3, 4, 5, 6, 8)):
        ticks = [float(f"{step}e{decade}") for decade in decades for step in steps]
        within = [tick for tick in ticks if low <= tick <= high]
        if len(within) >= _FEW_TICKS:
            return within
    return within if len(within) > 1 else []


def line_series(name: str, place: int, x: FloatArray | IntArray, y: FloatArray, **more: Any) -> Series:
    """A line in the look of the place-th name of a chart; where its dashes are another's, with markers."""
    look: dict[str, Any] = {"colour": colour_of(place), "line": line_of(place)}
    if place >= len(LINES):
        look |= {"marker": marker_of(place), "every": -(-len(x) // _MARKED), "size": 4.0}
    return Series(name=name, x=x, y=y, **{**look, **more})


def point_series(name: str, place: int, x: FloatArray | IntArray, y: FloatArray, **more: Any) -> Series:
    """Points in the look of the place-th name of a chart."""
    return Series(name=name, x=x, y=y, colour=colour_of(place), marker=marker_of(place), **more)


def colour_of(place: int) -> str:
    """The colour of the place-th name of a chart."""
    return SHADES[place % len(SHADES)]


def line_of(place: int) -> str:
    """The dashes of the place-th name of a chart."""
    return LINES[place % len(LINES)]


def marker_of(place: int) -> str:
    """The marker of the place-th name of a chart."""
    return MARKERS[place % len(MARKERS)]


@dataclass(frozen=True, slots=True, kw_only=True)
class Bar:
    """Parts of one step by their names in `PARTS`, in units of the axis; text: on its end."""

    group: str
    name: str
    parts: Mapping[str, float]
    text: str = ""

    @property
    def total(self) -> float:
        """Length of the bar."""
        return sum(self.parts.values())


@dataclass(frozen=True, slots=True, kw_only=True)
class BarChart:
    """Bars of parts, stacked in the order of `PARTS`."""

    title: str
    value: str
    names: str
    bars: Sequence[Bar]

    @property
    def drawn(self) -> list[str]:
        """Parts that some bar has, in their order."""
        return [name for name in PARTS if any(bar.parts.get(name, 0.0) > 0.0 for bar in self.bars)]


def bar_chart(title: str, value: str, names: str, given: Sequence[Bar]) -> BarChart:
    """The chart of some bars; parts that are small in every one of them become `other`."""
    large = {
        name for bar in given for name, part in bar.parts.items() if part >= SMALLEST_SHARE * bar.total
    } - {OTHER}
    folded = []
    for bar in given:
        kept = {name: bar.parts[name] for name in PARTS if name in large and name in bar.parts}
        rest = bar.total - sum(kept.values())
        parts = {**kept, OTHER: rest} if rest > _ROUNDING * bar.total else kept
        folded.append(Bar(group=bar.group, name=bar.name, parts=parts, text=bar.text))
    return BarChart(title=title, value=value, names=names, bars=folded)


def map_colour(speedup: float) -> str:
    """The colour of a cell, interpolated between two stops on a logarithmic scale."""
    stops = MAP_STOPS
    speedup = min(max(speedup, stops[0]), stops[-1])
    place = min(bisect_right(stops, speedup), len(stops) - 1) - 1
    share = log(speedup / stops[place]) / log(stops[place + 1] / stops[place])
    ends = (MAP_COLOURS[place + i] for i in (0, 1))
    low, high = ([int(colour[i : i + 2], 16) for i in (1, 3, 5)] for colour in ends)
    channels = (round(a + share * (b - a)) for a, b in zip(low, high, strict=True))
    return "#" + "".join(f"{channel:02x}" for channel in channels)


@dataclass(frozen=True, slots=True, kw_only=True)
class MapCell:
    """A speedup at a batch and count; is_best: framed; fits: else `text` is a dash."""

    batch: int
    count: int
    speedup: float
    is_best: bool
    fits: bool

    @property
    def text(self) -> str:
        """Speedup with two decimals, or a dash."""
        return f"{self.speedup:.2f}" if self.fits else "-"

    @property
    def ink(self) -> str:
        """Black or white, whichever reads better on the cell."""
        return ink_on(map_colour(self.speedup))


@dataclass(frozen=True, slots=True, kw_only=True)
class HeatMap:
    """Cells over batches (across) and counts (down); value: what a cell shows."""

    title: str
    value: str
    counted: str
    batches: Sequence[int]
    counts: Sequence[int]
    cells: Sequence[MapCell]

    @property
    def crossings(self) -> tuple[list[tuple[int, int]], list[tuple[int, int]]]:
        """(batch, count) of cells below and beside which another starts to lose, or to gain."""
        loses = {(cell.batch, cell.count): cell.speedup < _LOSES for cell in self.cells if cell.fits}

        def differ(one: tuple[int, int], other: tuple[int, int]) -> bool:
            return {one, other} <= loses.keys() and loses[one] != loses[other]

        batches, counts = self.batches, self.counts
        between_counts = [(b, c) for b in batches for c, d in pairwise(counts) if differ((b, c), (b, d))]
        between_batches = [(a, c) for c in counts for a, b in pairwise(batches) if differ((a, c), (b, c))]
        return between_counts, between_batches
