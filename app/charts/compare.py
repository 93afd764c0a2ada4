"""Set-ups beside each other over batch."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from charts.style import NEUTRAL, Spec, base, category, quantity, series

Rows = Sequence[Mapping[str, Any]]


def compare_chart(
    set_ups: Mapping[str, Rows],
    field: str,
    title: str,
    plain: str | None = None,
    band: tuple[str, str] | None = None,
) -> Spec:
    """A line a set-up, numbered where it ends; batches that do not fit in memory are left out.

    plain: the field of plain decoding, drawn thin; band: fields of the 80 % interval, drawn as bars.
    """
    names = list(set_ups)
    values = [{**row, "set_up": name} for name, rows in set_ups.items() for row in rows if row["fits_memory"]]
    ends = _ends(set_ups, field)
    x = quantity(
        "batch",
        "batch",
        scale={"type": "log", "base": 2, "nice": False, "padding": 16},
        axis={"values": [1, 2, 4, 8, 16, 32, 64, 128, 256], "format": "d"},
    )
    y = quantity(field, title, scale={"zero": False} if field == "speedup" else {"type": "log"})
    colour, dash = series("set_up", names, columns=1)
    tips = [
        category("set_up", "set-up"),
        quantity("batch", "batch"),
        quantity("candidates", "candidates"),
        quantity("speedup", "speedup", format=".2f"),
        quantity("tokens_per_s", "tokens/s", format=",.0f"),
        quantity("plain_tokens_per_s", "tokens/s, plain", format=",.0f"),
        quantity("ms_per_token", "ms a token and user", format=".2f"),
    ]
    same = {"x": x, "color": colour}
    layers: list[Spec] = []
    if field == "speedup":
        layers.append(
            {
                "data": {"values": [{"one": 1.0}]},
                "mark": {"type": "rule", "color": NEUTRAL},
                "encoding": {"y": quantity("one", title)},
            }
        )
    if band is not None:
        layers.append(
            {
                "data": {"values": values},
                "mark": {"type": "rule", "strokeWidth": 1.5},
                "encoding": {**same, "y": quantity(band[0], title), "y2": {"field": band[1]}},
            }
        )
    if plain is not None:
        layers.append(
            {
                "data": {"values": values},
                "mark": {"type": "line", "strokeWidth": 1, "opacity": 0.6},
                "encoding": {**same, "y": {**y, "field": plain}, "strokeDash": dash},
            }
        )
    layers += [
        {
            "data": {"values": values},
            "mark": {"type": "line", "strokeWidth": 2.2, "point": {"size": 45}},
            "encoding": {**same, "y": y, "strokeDash": dash, "tooltip": tips},
        },
        {
            "data": {"values": ends},
            "mark": {"type": "text", "align": "left", "dx": 8, "fontSize": 12, "fontWeight": "bold"},
            "encoding": {"x": x, "y": {**y, "field": "at"}, "text": {"field": "label"}},
        },
    ]
    return base(340, layer=layers)


def _ends(set_ups: Mapping[str, Rows], field: str) -> list[dict[str, Any]]:
    """The last batch of each line with its number, `at` a height where numbers do not collide."""
    names, fitting = list(set_ups), _fitting(set_ups)
    heights = [float(row[field]) for rows in fitting.values() for row in rows]
    gap = 0.05 * (max(heights, default=1.0) - min(heights, default=0.0))
    found, last = [], -math.inf
    for name, rows in sorted(fitting.items(), key=lambda item: float(item[1][-1][field])):
        last = max(float(rows[-1][field]), last + gap)
        found.append({**rows[-1], "set_up": name, "label": str(names.index(name) + 1), "at": last})
    return found


def _fitting(set_ups: Mapping[str, Rows]) -> dict[str, list[Mapping[str, Any]]]:
    found = {name: [row for row in rows if row["fits_memory"]] for name, rows in set_ups.items()}
    return {name: rows for name, rows in found.items() if rows}
