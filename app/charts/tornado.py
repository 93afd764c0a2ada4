"""What one change at a time does to the speedup."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from charts.style import NEUTRAL, Spec, base, category, layer, quantity
from medusa_sim.report.figures.style import SHADES
from medusa_sim.report.text import times


def tornado_chart(changes: Sequence[Mapping[str, Any]], speedup: float) -> Spec:
    """A bar a change from the speedup as it is, those that matter most above; `what` by colour."""
    title = "speedup over plain decoding"
    ordered = sorted(changes, key=lambda row: -abs(row["speedup"] - speedup))
    values = [
        {
            **{key: row[key] for key in ("what", "speedup", "drafts")},
            "name": f"{row['what']} {row['change']}",
            "now": speedup,
            "text": times(row["speedup"]),
            "above": row["speedup"] >= speedup,
        }
        for row in ordered
    ]
    ends = [speedup, *(row["speedup"] for row in values)]
    room = 0.12 * (max(ends) - min(ends) + 0.05)
    scale = {"domain": [min(ends) - room, max(ends) + room], "nice": False}
    y = category("name", None, sort=None, axis={"labelLimit": 200, "labelOverlap": False})
    axis = {"tickCount": {"expr": "ceil(width / 70)"}}
    x = quantity("speedup", title, scale=scale, axis=axis)
    colour = {"condition": {"test": "datum.above", "value": SHADES[0]}, "value": SHADES[1]}
    tips = [
        category("name", "changed"),
        quantity("speedup", "speedup", format=".2f"),
        quantity("drafts", "drafts"),
    ]
    from_now = {
        "y": y,
        "x": {**x, "field": "now"},
        "x2": {"field": "speedup"},
        "color": colour,
        "tooltip": tips,
    }
    named = {"y": y, "x": x, "text": {"field": "text"}}
    return base(
        24 * len(values),
        layer=[
            layer("bar", from_now, values, height={"band": 0.62}, cornerRadius=2),
            *(
                {"transform": [{"filter": f"{'' if above else '!'}datum.above"}]}
                | layer("text", named, values, align="left" if above else "right", dx=4 if above else -4)
                for above in (True, False)
            ),
            layer("rule", {"x": {**x, "field": "now"}}, [{"now": speedup}], color=NEUTRAL, strokeWidth=1.5),
        ],
    )
