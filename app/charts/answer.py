"""Charts of the page Answer that the app alone has: gains of the schedule, what would change them."""

from __future__ import annotations

from charts.style import NEUTRAL, Spec, base, category, layer, quantity
from medusa_sim.report.charts.chart import Rows
from medusa_sim.report.charts.sweep import POWERS, SPEEDUP, count_word
from medusa_sim.report.figures import SHADES
from medusa_sim.report.text import times


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


def tornado_chart(changes: Rows, speedup: float) -> Spec:
    """A bar a change from the speedup as it is, those that matter most above; `what` by colour."""
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
    x = quantity("speedup", SPEEDUP, scale=scale, axis=axis)
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
