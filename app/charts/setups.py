"""The chart of set-ups: what a GPU gives against what a user gets, a curve a card."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from charts.style import NEUTRAL, Spec, base, category, columns, quantity
from medusa_sim.report.compare_chart import X_TITLE, Chart

_SHAPES = {
    "o": "circle", "s": "square", "^": "triangle-up", "D": "diamond", "v": "triangle-down", "P": "cross",
    "X": "M-1,-.6L-.6,-1L0,-.4L.6,-1L1,-.6L.4,0L1,.6L.6,1L0,.4L-.6,1L-1,.6L-.4,0Z",
    "*": "wedge", "<": "triangle-left", ">": "triangle-right",
}  # fmt: skip
"""Markers of reports as Vega names them."""
_LEGEND = {"symbolType": "stroke", "symbolSize": 500, "symbolStrokeWidth": 2.5}


def setups_chart(chart: Chart) -> Spec:
    """Plain dotted, speculative solid, bands, points named by requests and drafts, the target as a line."""
    names = [curve.name for curve in chart.curves]
    x = quantity("x", X_TITLE, scale={"type": "log", "nice": False, "padding": 20})
    y = quantity("y", chart.y_title, scale={"type": "log", "nice": False, "padding": 12})
    legend = {**_LEGEND, **columns(1, 4), "values": [name for name in names if _is_told(name, names)]}
    colour = category(
        "curve", None, sort=names, legend=legend,
        scale={"domain": names, "range": [curve.colour for curve in chart.curves]},
    )  # fmt: skip
    dash = category(
        "curve", None, sort=names, legend=legend,
        scale={"domain": names, "range": [[1, 0] if curve.speculative else [2, 3] for curve in chart.curves]},
    )  # fmt: skip
    cards = list(dict.fromkeys(curve.gpu for curve in chart.curves))
    markers = {curve.gpu: _SHAPES[curve.marker] for curve in chart.curves}
    shape = category(
        "gpu", None, legend=None, scale={"domain": cards, "range": [markers[gpu] for gpu in cards]}
    )
    points = [_point(curve.name, point.x, point.y, point.label, point.row) for curve in chart.curves
              for point in curve.points]  # fmt: skip
    bands = [{"curve": curve.name, "x": px, "y": py, "order": order} for curve in chart.curves
             if len(curve.points) > 1 for order, (px, py) in enumerate(curve.outline)]  # fmt: skip
    layers: list[Spec] = [
        {
            "data": {"values": bands},
            "mark": {"type": "line", "filled": True, "strokeWidth": 0, "fillOpacity": 0.12},
            "encoding": {
                "x": x, "y": y, "order": {"field": "order", "type": "quantitative"},
                "color": colour, "detail": {"field": "curve"},
            },
        },
        {
            "data": {"values": points},
            "mark": {"type": "line", "strokeWidth": 2.2},
            "encoding": {"x": x, "y": y, "color": colour, "strokeDash": dash},
        },
        {
            "data": {"values": points},
            "mark": {"type": "point", "filled": True, "size": 60},
            "encoding": {"x": x, "y": y, "color": colour, "shape": shape, "tooltip": _TIPS},
        },
        {
            "data": {"values": _named(points)},
            "mark": {"type": "text", "align": "left", "dx": 7, "dy": 8, "fontSize": 11},
            "encoding": {"x": x, "y": y, "text": {"field": "label"}},
        },
    ]  # fmt: skip
    if chart.target is not None:
        layers.append(
            {
                "data": {"values": [{"x": chart.target}]},
                "mark": {"type": "rule", "color": NEUTRAL, "strokeWidth": 1.5, "strokeDash": [6, 3]},
                "encoding": {"x": x},
            }
        )
    if chart.chosen is not None:
        one = chart.chosen
        layers.append(
            {
                "data": {"values": [{"x": one.x, "y": one.y}]},
                "mark": {"type": "point", "filled": False, "size": 260, "strokeWidth": 3, "color": NEUTRAL},
                "encoding": {"x": x, "y": y},
            }
        )
    return base(380, layer=layers)


def _is_told(name: str, names: Sequence[str]) -> bool:
    """Whether the legend has a curve: the dotted one of a card goes without saying beside its solid one."""
    return name.partition(", ")[0] not in names or ", " not in name


_APART = {"x": 0.12, "y": 0.05}
"""Of an axis, between the names of two points."""


def _named(points: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """Points that nothing at all beats, those that stand far enough from each other for a name."""
    kept: list[Mapping[str, Any]] = []
    if not points:
        return kept
    spans = {axis: [math.log(point[axis]) for point in points] for axis in ("x", "y")}
    wide = {axis: (max(span) - min(span)) or 1.0 for axis, span in spans.items()}

    def apart(one: Mapping[str, Any], other: Mapping[str, Any]) -> bool:
        return any(abs(math.log(one[axis] / other[axis])) > _APART[axis] * wide[axis] for axis in wide)

    for point in sorted(points, key=lambda point: not point["chosen"]):
        if (point["on_frontier"] or point["chosen"]) and all(apart(point, other) for other in kept):
            kept.append(point)
    return kept


_TIPS = [
    category("set_up", "set-up"),
    quantity("batch", "requests a copy"),
    quantity("drafts", "drafts"),
    quantity("tokens_per_s_per_user", "tokens/s a user", format=".3s"),
    quantity("tokens_per_s_per_gpu", "tokens/s a GPU", format=".3s"),
    quantity("usd_per_million_tokens", "$ a million tokens", format=".3s"),
    quantity("joule_per_token", "J a token", format=".3s"),
]


def _point(curve: str, x: float, y: float, label: str, row: Any) -> dict[str, Any]:
    from medusa_sim.report.compare_text import plain_values, setup_text

    return {**plain_values(row), "curve": curve, "x": x, "y": y, "label": label, "set_up": setup_text(row)}
