"""A load test: quantities against the rate, and one run over time."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from charts.style import NEUTRAL, Spec, base, category, quantity, series

Rows = Sequence[Mapping[str, Any]]
_MS_PER_S = 1e3
_MOST_POINTS = 400


def rate_chart(rows: Rows, field: str, title: str, limit_ms: float | None = None, carried: Rows = ()) -> Spec:
    """A line a policy over the rate; times in ms. limit_ms: drawn grey; carried: knees as dashed lines."""
    factor = _MS_PER_S if field.endswith("_s") and not field.endswith("_per_s") else 1.0
    values = [
        {"policy": row["policy"], "rate": row["rate_per_s"], "value": factor * row[field],
         "tokens": row["tokens_per_s"], "share": row["goodput_share"]}
        for row in rows
    ]  # fmt: skip
    colour, dash = series("policy", list(dict.fromkeys(row["policy"] for row in values)))
    y = quantity("value", title, scale={"zero": True})
    tips = [
        category("policy", "policy"),
        quantity("rate", "requests/s", format=".3g"),
        quantity("value", title, format=".3g"),
        quantity("tokens", "tokens/s", format=",.0f"),
        quantity("share", "within the limits", format=".1%"),
    ]
    layers: list[Spec] = []
    if limit_ms is not None:
        layers.append(
            {
                "data": {"values": [{"limit": limit_ms}]},
                "mark": {"type": "rule", "color": NEUTRAL},
                "encoding": {"y": quantity("limit", title)},
            }
        )
    layers.append(
        {
            "data": {"values": values},
            "mark": {"type": "line", "strokeWidth": 2.2, "point": {"size": 45}},
            "encoding": {
                "x": quantity("rate", "requests a second"),
                "y": y,
                "color": colour,
                "strokeDash": dash,
                "tooltip": tips,
            },
        }
    )
    knees = [
        {"policy": row["policy"], "rate": row["largest_per_s"]} for row in carried if row["largest_per_s"]
    ]
    if knees:
        tips = [category("policy", "policy"), quantity("rate", "carried, requests/s", format=".3g")]
        layers.append(
            {
                "data": {"values": knees},
                "mark": {"type": "rule", "strokeDash": [5, 4]},
                "encoding": {"x": quantity("rate", "requests a second"), "color": colour, "tooltip": tips},
            }
        )
    return base(320, layer=layers)


def time_chart(rows: Rows, field: str, title: str) -> Spec:
    """A line a policy over the seconds of a run."""
    step = max(1, len(rows) // (_MOST_POINTS * max(len({row["policy"] for row in rows}), 1)))
    values = [{"policy": row["policy"], "time_s": row["time_s"], "value": row[field]} for row in rows[::step]]
    colour, dash = series("policy", list(dict.fromkeys(row["policy"] for row in values)))
    return base(
        240,
        layer=[
            {
                "data": {"values": values},
                "mark": {"type": "line", "strokeWidth": 1.6},
                "encoding": {
                    "x": quantity("time_s", "seconds"),
                    "y": quantity("value", title),
                    "color": colour,
                    "strokeDash": dash,
                    "tooltip": [
                        category("policy", "policy"),
                        quantity("time_s", "seconds", format=".3g"),
                        quantity("value", title, format=",.3g"),
                    ],
                },
            }
        ],
    )
