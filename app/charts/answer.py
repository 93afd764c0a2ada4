"""The chart of the page Answer that the app alone has: what the schedule gains by batch."""

from __future__ import annotations

from charts.style import NEUTRAL, Spec, base, quantity
from medusa_sim.report.charts.chart import Rows
from medusa_sim.report.charts.sweep import POWERS, SPEEDUP, count_word
from medusa_sim.report.figures.style import SHADES


def batch_chart(rows: Rows, batch: int, *, chains: bool) -> Spec:
    """Speedup of the schedule against the batch with its interval; a ring where one looks.

    rows: of `gains_by_batch`; batches without room are left out. Counts are written where they change.
    """
    fitting = [row for row in rows if row["fits_memory"]]
    named, last = [], None
    for row in fitting:
        count = row["drafts"] if chains else row["candidates"]
        if count != last:
            text = "off" if row["candidates"] == 1 else f"{count} {count_word(chains)}"
            named.append({**row, "text": text.removesuffix("s") if count == 1 else text})
        last = count
    kept: list[Spec] = []  # names far enough from each other, on a log scale
    for row in named:
        if not kept or row["batch"] >= 1.6 * kept[-1]["batch"]:
            kept.append(row)
    x = quantity(
        "batch",
        "requests at once (batch)",
        scale={"type": "log", "base": 2, "nice": False, "padding": 10},
        axis={"values": list(POWERS), "format": "d"},
    )
    y = quantity("speedup", SPEEDUP, scale={"zero": False}, axis={"format": ".2f"})
    tips = [
        quantity("batch", "requests at once"),
        quantity("drafts", "drafts") if chains else quantity("candidates", "candidates"),
        quantity("speedup", "speedup", format=".2f"),
        quantity("speedup_low", "80 %, low", format=".2f"),
        quantity("speedup_high", "80 %, high", format=".2f"),
    ]
    here = [row for row in fitting if row["batch"] == batch]
    return base(
        260,
        data={"values": fitting},
        layer=[
            {
                "mark": {"type": "area", "opacity": 0.18, "color": SHADES[0]},
                "encoding": {"x": x, "y": {**y, "field": "speedup_low"}, "y2": {"field": "speedup_high"}},
            },
            {
                "data": {"values": [{"one": 1.0}]},
                "mark": {"type": "rule", "color": NEUTRAL, "strokeDash": [4, 3]},
                "encoding": {"y": quantity("one", SPEEDUP)},
            },
            {
                "mark": {"type": "line", "strokeWidth": 2.4, "color": SHADES[0], "point": {"size": 22}},
                "encoding": {"x": x, "y": y, "tooltip": tips},
            },
            {
                "data": {"values": kept},
                "mark": {"type": "text", "dy": -14, "align": "left", "fontSize": 11.5, "fontWeight": "bold"},
                "encoding": {"x": x, "y": {**y, "field": "speedup_high"}, "text": {"field": "text"}},
            },
            {
                "data": {"values": here},
                "mark": {"type": "point", "size": 130, "strokeWidth": 2.5, "color": SHADES[1]},
                "encoding": {"x": x, "y": y, "tooltip": tips},
            },
        ],
    )
