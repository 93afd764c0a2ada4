"""The chart of the page Answer that the app alone has: what the schedule gains by batch."""

from __future__ import annotations

from charts.style import NEUTRAL, Spec, base, layer, quantity
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
        *(
            quantity(name, title, format=".2f")
            for name, title in (
                ("speedup", "speedup"), ("speedup_low", "80 %, low"), ("speedup_high", "80 %, high"),
            )
        ),
    ]  # fmt: skip
    here = [row for row in fitting if row["batch"] == batch]
    at = {"x": x, "y": y, "tooltip": tips}
    band = {"x": x, "y": {**y, "field": "speedup_low"}, "y2": {"field": "speedup_high"}}
    texts = {"x": x, "y": {**y, "field": "speedup_high"}, "text": {"field": "text"}}
    return base(
        260,
        data={"values": fitting},
        layer=[
            layer("area", band, opacity=0.18, color=SHADES[0]),
            layer("rule", {"y": quantity("one", SPEEDUP)}, [{"one": 1.0}], color=NEUTRAL, strokeDash=[4, 3]),
            layer("line", at, strokeWidth=2.4, color=SHADES[0], point={"size": 22}),
            layer("text", texts, kept, dy=-14, align="left", fontSize=11.5, fontWeight="bold"),
            layer("point", at, here, size=130, strokeWidth=2.5, color=SHADES[1]),
        ],
    )
