"""One look for all charts: colours that work on light and on dark."""

from __future__ import annotations

from typing import Any

from medusa_sim.report.charts.chart import Rows

NEUTRAL = "#8a8a8a"
TEXT = "#4b4e58"
"""Text of charts, for a light page. On the app's pages it takes the colour of the page's text (`look.css`):
no one colour reads well on light and on dark."""
HALO: dict[str, Any] = {"stroke": "#fffffe"}
"""Of texts that lie on lines: `look.css` puts the page's colour around them."""
NARROW = "width < 460"
"""Holds on a phone; `width` is the plot's, in pixels, and charts follow it without asking the server."""
Spec = dict[str, Any]


def base(height: int = 320, **more: Any) -> Spec:
    """What every chart starts from; height: of the plot alone, the legend comes below it."""
    return {
        "$schema": "https://vega.github.io/schema/vega-lite/v6.json",
        "height": height,
        "width": "container",
        "padding": {"bottom": 5},  # Streamlit would leave 20 pixels; without any a title is cut
        "autosize": {"type": "fit-x", "contains": "padding"},
        "config": {
            "axis": {
                "grid": True,
                "gridOpacity": 0.35,
                "titleLimit": 420,
                "labelOverlap": True,
                "labelColor": TEXT,
                "titleColor": TEXT,
            },
            "axisY": {"labelFlush": False},
            # Vega-Lite fades points to 0.7, below what a dark page needs
            **{mark: {"opacity": 1.0} for mark in ("point", "circle", "square", "tick")},
            "axisX": {"titleLimit": {"expr": "width + 40"}},
            "text": {"color": TEXT},
            "legend": {
                "labelColor": TEXT,
                "titleColor": TEXT,
                "orient": "bottom",
                "offset": 8,
                "labelLimit": {"expr": on_phone(220, 400)},
                "layout": {
                    "bottom": {
                        "anchor": "start",
                        "direction": {"signal": on_phone("'vertical'", "'horizontal'")},
                    }
                },
            },
        },
        **more,
    }


def on_phone(narrow: object, wide: object) -> str:
    """A Vega expression: one value on a narrow screen, another on a wide one."""
    return f"{NARROW} ? {narrow} : {wide}"


def columns(narrow: int, wide: int) -> Spec:
    """How many entries of a legend stand beside each other."""
    return {"columns": {"expr": on_phone(narrow, wide)}}


def quantity(field: str, title: str | None, **more: Any) -> Spec:
    """A channel of numbers, titled with its unit."""
    return {"field": field, "type": "quantitative", "title": title, **more}


def category(field: str, title: str | None, **more: Any) -> Spec:
    """A channel of names."""
    return {"field": field, "type": "nominal", "title": title, **more}


def layer(mark: str, at: Spec, values: Rows | None = None, **look: Any) -> Spec:
    """Marks by their channels; values: their own rows (None: the chart's); look: of the marks."""
    data = {} if values is None else {"data": {"values": values}}
    return {**data, "mark": {"type": mark, **look}, "encoding": at}
