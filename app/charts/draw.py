"""The package's charts as Vega-Lite specifications: as reports draw them, with tooltips."""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from charts.style import HALO, NEUTRAL, Spec, base, category, columns, layer, on_phone, quantity
from medusa_sim.report.charts.chart import (
    MAP_COLOURS,
    MAP_STOPS,
    MAP_TICKS,
    Axis,
    BarChart,
    HeatMap,
    LineChart,
    Series,
    Tip,
)
from medusa_sim.report.palette import FAINT, PARTS, ink_on

_SHAPES = {
    "o": "M1,0C1,.55,.55,1,0,1C-.55,1,-1,.55,-1,0C-1,-.55,-.55,-1,0,-1C.55,-1,1,-.55,1,0Z",
    "s": "M-.9,-.9L.9,-.9L.9,.9L-.9,.9Z", "^": "M0,-1.1L1.1,.8L-1.1,.8Z", "v": "M0,1.1L1.1,-.8L-1.1,-.8Z",
    "<": "M-1.1,0L.8,-1.1L.8,1.1Z", ">": "M1.1,0L-.8,-1.1L-.8,1.1Z", "D": "M0,-1.2L1.2,0L0,1.2L-1.2,0Z",
    "P": "M-.4,-1.1L.4,-1.1L.4,-.4L1.1,-.4L1.1,.4L.4,.4L.4,1.1L-.4,1.1L-.4,.4L-1.1,.4L-1.1,-.4L-.4,-.4Z",
    "X": "M-1,-.6L-.6,-1L0,-.4L.6,-1L1,-.6L.4,0L1,.6L.6,1L0,.4L-.6,1L-1,.6L-.4,0Z",
    "*": "M0,-1.3L.4,-.4L1.3,-.3L.6,.3L.8,1.2L0,.7L-.8,1.2L-.6,.3L-1.3,-.3L-.4,-.4Z",
}  # fmt: skip
"""Outlines of the markers of reports, about 1 from their middle."""
_STROKE = "M-1,0L1,0"
_ON_STROKE = 0.3
"""Of a marker on a line of a legend, over half of that line."""
_DASHES = {"": [1, 0], "-": [1, 0], "--": [7, 3], "-.": [8, 3, 2, 3], ":": [2, 2]}
_CROSSING = "#c2185b"
_CROWD = 60
"""Points on lines beyond which a phone shows the lines alone."""
_AREA = 3.2
"""Of a marker in square pixels over the square of its size in points."""
_NUMBERS = re.compile(r"-?[0-9.]+")
_ON_A_LINE = 42
_ON_PHONE = 5
"""Markers of a line there, about."""
_NAMES_ON_PHONE = 6
"""Names of points for which a phone has room."""
_WIDTH: Spec = {"field": "width", "type": "quantitative", "scale": None, "legend": None}
"""The channel of a line's own width."""


def lines_spec(chart: LineChart, height: int = 320) -> Spec:
    """Bands, lines, markers, texts and limits, in that order."""
    lines = _Lines(chart)
    layers = [lines.legend, *lines.bands, *lines.lines, *lines.markers, *lines.texts, *lines.limits]
    return base(height, layer=[each for each in layers if each["data"]["values"]])


class _Lines:
    """Layers of a chart of lines and points; those without values are left out."""

    def __init__(self, chart: LineChart) -> None:
        axes, names = {"x": chart.x, "y": chart.y}, chart.names
        channels = {name: _channel(name, axis, chart.ticks[name]) for name, axis in axes.items()}
        self.at: Spec = {**channels, "detail": {"field": "id"}}
        self.chart, self.named = chart, [each for each in chart.series if each.name]
        self.drawn = [each for each in self.named if each.line]
        self.has_lines = any(each.line for each in names.values())
        self.is_crowded = sum(len(each.x) for each in self.drawn) > _CROWD  # for a phone
        self.colour = self._by_name(lambda each: each.colour)
        self.symbol = self._by_name(lambda each: _symbol(each, has_lines=self.has_lines))
        self.tips: Spec = {"tooltip": [_tip(tip) for tip in chart.tips]}
        self.told = [name for name, *_ in chart.tips]

    def _by_name(self, look: Callable[[Series], Any]) -> Spec:
        """A channel that gives every name its look."""
        names = self.chart.names
        scale = {"domain": list(names), "range": list(map(look, names.values()))}
        return category("series", None, sort=list(names), scale=scale, legend=None)

    @property
    def legend(self) -> Spec:
        """What the legend shows of each name, drawn nowhere.

        Which of several legends Vega-Lite draws as one depends on its version: here is one alone.
        """
        chart, has_lines = self.chart, self.has_lines
        scales = {"stroke": "color", **({"fill": "color", "strokeDash": "strokeDash"} if has_lines else {})}
        symbols = {
            name: {"value": {"expr": f"scale('{scale}', datum.value)"}} for name, scale in scales.items()
        }
        legend: Spec = {
            "symbolStrokeWidth": 2.0 if has_lines else 2.5,
            "symbolOpacity": 1.0,
            **columns(2, 5),
            "values": chart.legend_names,
            **({"symbolSize": 500} if has_lines else {}),
            "title": chart.legend or None,
            "encoding": {"symbols": symbols},
        }
        shape = self.symbol | {"legend": legend if chart.legend_names else None}  # an empty one takes room
        first = [{"series": each.name, "x": left, "y": up} for each in chart.names.values()
                 for left, up in zip(_numbers(each.x[:1]), _numbers(each.y[:1]), strict=True)]  # fmt: skip
        return layer("point", {**self.at, "shape": shape}, first, filled=has_lines, opacity=0, size=0)

    @property
    def bands(self) -> list[Spec]:
        """Bands around lines, and outlines of those where x is uncertain too."""
        bands = [
            {"id": i, "series": each.name, "x": at_x, "y": low, "high": high}
            for i, each in enumerate(self.named)
            if each.low is not None and each.high is not None
            for at_x, low, high in zip(_numbers(each.x), _numbers(each.low), _numbers(each.high), strict=True)
        ]
        outlines = [
            {"id": i, "series": each.name, "x": at_x, "y": at_y, "order": order}
            for i, each in enumerate(self.named)
            for order, (at_x, at_y) in enumerate(each.outline)
        ]
        between = {**self.at, "y2": {"field": "high"}, "color": self.colour}
        around = {**self.at, "order": {"field": "order", "type": "quantitative"}, "color": self.colour}
        return [
            layer("area", between, bands, opacity=0.12),
            layer("line", around, outlines, filled=True, strokeWidth=0, fillOpacity=0.12),
        ]

    @property
    def lines(self) -> list[Spec]:
        """Lines without a name, then those that have one."""
        unnamed = _values(each for each in self.chart.series if each.line and not each.name)
        dash = self._by_name(lambda each: _DASHES[each.line])
        look = {"color": self.colour, "strokeDash": dash, "strokeWidth": _WIDTH}
        return [
            layer("line", {**self.at, "strokeWidth": _WIDTH}, unnamed, color=NEUTRAL),
            layer("line", self.at | look, _values(self.drawn)),
        ]

    @property
    def markers(self) -> list[Spec]:
        """Markers, filled ones first, ticks, and what the pointer meets where there are none."""
        shape = {"field": "shape", "type": "nominal", "scale": None, "legend": None}
        at = {**self.at, "size": {**_WIDTH, "field": "size"}, "color": self.colour, **self.tips,
              "shape": shape if self.has_lines else self.symbol}  # fmt: skip
        few = {"condition": {"test": "datum.marked", "value": 1}, "value": {"expr": on_phone(0, 1)}}
        layers = []
        for filled, on_line in itertools.product((True, False), (True, False)):
            marked = [
                each
                for each in self.named
                if each.marker not in ("", "|") and each.filled is filled and bool(each.line) is on_line
            ]
            seldom: Spec = {"opacity": few} if on_line and self.is_crowded else {}
            values = _values(marked, self.told, as_marked=True)
            layers.append(layer("point", at | seldom, values, filled=filled, strokeWidth=2))
        ticks = _values(each for each in self.named if each.marker == "|")
        bare = (each for each in self.drawn if each.rows and (not each.marker or each.every > 1))
        met = _values(bare, self.told)
        upright: Spec = {"orient": "vertical", "thickness": 2, "size": 14}
        return [
            *layers,
            layer("tick", {**self.at, "color": self.colour}, ticks, **upright),
            layer("point", {**self.at, **self.tips}, met, opacity=0, size=80),
        ]

    @property
    def texts(self) -> list[Spec]:
        """Names of points, on a phone where it has room."""
        texts = [value for value in _values(self.named) if value.get("text")]
        has_no_room = self.is_crowded or len(texts) > _NAMES_ON_PHONE
        seen: Spec = {"opacity": {"expr": on_phone(0, 1)}} if has_no_room else {}
        look = {"align": "left", "dx": 7, "dy": -8 if self.chart.texts_above else 8, **HALO, **seen}
        return [layer("text", {**self.at, "text": {"field": "text"}}, texts, **look)]

    @property
    def limits(self) -> list[Spec]:
        """Lines across the chart, and room beyond them: none lies on the border."""
        layers = []
        for limit in self.chart.limits:
            axis, place = ("x", limit.x) if limit.x is not None else ("y", limit.y)
            shown = NEUTRAL if limit.colour == FAINT else limit.colour
            look = {"color": shown, "strokeWidth": 1.3, "strokeDash": _DASHES[limit.line]}
            layers.append(layer("rule", {axis: self.at[axis]}, [{axis: place}], **look))
            if not (self.chart.x if axis == "x" else self.chart.y).base:
                beyond = [{axis: 1.04 * float(place or 0.0)}]
                layers.append(layer("point", {axis: self.at[axis]}, beyond, opacity=0))
        return layers


def _symbol(series: Series, *, has_lines: bool) -> str:
    """What the legend shows of a name, as the path of an outline: its line, its marker, or both."""
    if not has_lines:
        return _SHAPES[series.marker or "o"]
    marker = "" if series.marker in ("", "|") else _NUMBERS.sub(
        lambda found: f"{_ON_STROKE * float(found[0]):.3g}", _SHAPES[series.marker]
    )  # fmt: skip
    return f"{_STROKE if series.line else ''}{marker}" or _STROKE


def _channel(field: str, axis: Axis, ticks: Sequence[float]) -> Spec:
    scale: Spec = {"zero": axis.zero}
    if axis.base:
        scale = {"type": "log", "base": axis.base, "nice": False, "padding": 6}
    more: Spec = {}
    if ticks:
        more = {"axis": {"values": list(ticks), "format": ",~r"}}
    elif field == "x" and not axis.base:
        more = {"axis": {"tickCount": {"expr": "ceil(width / 70)"}}}
    return quantity(field, None, scale=scale, **more) | {"title": _on_lines(axis.title)}


def _on_lines(title: str) -> str | list[str]:
    """A title for which a phone has no room, on two lines: what stands in brackets below."""
    head, mark, more = title.partition(" (")
    return title if not mark or len(title) <= _ON_A_LINE else [head, f"({more}"]


def _tip(tip: Tip) -> Spec:
    field, title, form = tip
    return quantity(field, title, format=form) if form else category(field, title)


def _numbers(values: Any) -> list[float]:
    return [round(float(value), 6) for value in values]


def _values(series: Iterable[Series], told: Sequence[str] = (), *, as_marked: bool = False) -> list[Spec]:
    """Points of series; told: fields of their rows, for a tooltip. as_marked: those with a marker alone."""
    return [
        {
            **({name: each.rows[place].get(name) for name in told} if each.rows else {}),
            "id": i, "series": each.name, "x": x, "y": y, "width": each.width,
            **({"shape": _SHAPES[each.marker]} if each.marker in _SHAPES else {}),
            **({"size": _AREA * each.size**2} if each.marker else {}),
            **({"marked": True} if each.line and each.marker and not place % _few(each) else {}),
            **({"text": each.texts[place]} if each.texts else {}),
        }
        for i, each in enumerate(series)
        for place, (x, y) in enumerate(zip(_numbers(each.x), _numbers(each.y), strict=True))
        if not as_marked or not place % each.every
    ]  # fmt: skip


def _few(series: Series) -> int:
    """Every how many of its points have a marker on a phone."""
    return max(series.every, -(-len(series.x) // _ON_PHONE))


def bars_spec(chart: BarChart) -> Spec:
    """A bar below each other, their parts in stacking order with their shares."""
    values = []
    for bar in chart.bars:
        start = 0.0
        for name in chart.drawn:
            part = bar.parts.get(name, 0.0)
            if part > 0.0:
                look, share = PARTS[name], part / bar.total
                values.append(
                    {"bar": bar.name, "part": look.title, "from": start, "to": start + part, "value": part,
                     "middle": start + part / 2, "share": share, "text": f"{share:.0%}",
                     "ink": ink_on(look.colour)}
                )  # fmt: skip
            start += part
    looks = [PARTS[name] for name in chart.drawn]
    titles = [look.title for look in looks]
    colour = category(
        "part", None, sort=titles, scale={"domain": titles, "range": [look.colour for look in looks]},
        legend={**columns(2, 4), "symbolType": "square", "symbolStrokeColor": "transparent"},
    )  # fmt: skip
    y = category("bar", None, axis={"labelOverlap": False}, sort=None)
    axis = {"tickCount": {"expr": "ceil(width / 70)"}}
    readable = f"(datum.to - datum.from) / {max(bar.total for bar in chart.bars)} * width > 32"
    tips = [category("bar", "step"), category("part", "part"), quantity("value", chart.value, format=".3f"),
            quantity("share", "share", format=".1%")]  # fmt: skip
    at = {"x": quantity("from", chart.value, axis=axis), "x2": {"field": "to"}, "y": y, "color": colour}
    inside = {
        "x": quantity("middle", chart.value, axis=axis), "y": y, "text": {"field": "text"},
        "color": {"field": "ink", "type": "nominal", "scale": None},
    }  # fmt: skip
    texts = layer("text", inside, fontSize=11, fontWeight="bold")
    return base(
        55 * len(chart.bars),
        data={"values": values},
        layer=[
            layer("bar", {**at, "tooltip": tips}, x2Offset=-1.5, stroke=None),
            {"transform": [{"filter": readable}], **texts},
        ],
    )


def map_spec(chart: HeatMap) -> Spec:
    """Batches stand side by side since there are fewer of them: digits have room on a phone."""
    values = [
        {"batch": cell.batch, "count": cell.count, "speedup": round(cell.speedup, 4), "text": cell.text,
         "best": cell.is_best, "fits": "yes" if cell.fits else "no",
         "ink": cell.ink if cell.fits else NEUTRAL}
        for cell in chart.cells
    ]  # fmt: skip
    axis = {"labelAngle": 0, "orient": "top", "grid": False}
    x = {"field": "batch", "type": "ordinal", "title": "batch", "axis": axis}
    y = {"field": "count", "type": "ordinal", "title": chart.counted, "axis": {"grid": False}}
    legend = {"values": list(MAP_TICKS), "format": ".1f", "gradientLength": 240}
    scale = {"type": "log", "domain": list(MAP_STOPS), "range": list(MAP_COLOURS), "interpolate": "rgb",
             "clamp": True}  # fmt: skip
    inks = ("#ffffff", NEUTRAL)
    ink = {
        "condition": [{"test": f"datum.ink == '{each}'", "value": each} for each in inks],
        "value": "#000000",
    }
    below, beside = chart.crossings
    cell = {
        "color": quantity("speedup", chart.value, scale=scale, legend=legend),
        "opacity": {"condition": {"test": "datum.fits == 'no'", "value": 0.12}, "value": 1.0},
        "tooltip": [
            quantity("batch", "batch"), quantity("count", chart.counted), quantity("speedup", "speedup"),
            category("fits", "fits in memory"),
        ],
    }  # fmt: skip
    frame = layer("rect", {"stroke": ink}, fill=None, strokeWidth=1.6, cornerRadius=2)
    text = {"text": {"field": "text"}, "color": ink}
    return base(
        21 * len(chart.counts),
        data={"values": values},
        encoding={"x": x, "y": y},
        layer=[
            layer("rect", cell),
            {"transform": [{"filter": "datum.best"}], **frame},
            layer("text", text, fontSize={"expr": on_phone(10, 11.5)}),
            *_crossing(below, "x", "y"),
            *_crossing(beside, "y", "x"),
        ],
    )


def _crossing(cells: Sequence[tuple[int, int]], along: str, across: str) -> list[Spec]:
    """Rules at the far edges of cells: `along` their width, at the end of them `across`."""
    if not cells:
        return []
    fields = {"x": "batch", "y": "count"}
    encoding: Spec = {
        along: {"field": fields[along], "type": "ordinal", "bandPosition": 0},
        f"{along}2": {"field": fields[along], "bandPosition": 1},
        across: {"field": fields[across], "type": "ordinal", "bandPosition": 1},
    }
    rows = [{"batch": batch, "count": count} for batch, count in cells]
    return [layer("rule", encoding, rows, color=_CROSSING, strokeWidth=2.4, strokeCap="square")]
