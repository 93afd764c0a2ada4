"""Charts of the page Answer that the app alone has: gains of the schedule, what would change them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from charts.style import NEUTRAL, Spec, base, category, columns, layer, on_phone, quantity
from medusa_sim.report.charts.chart import Rows, colour_of
from medusa_sim.report.charts.sweep import POWERS, SPEEDUP, count_word
from medusa_sim.report.palette import SHADES
from medusa_sim.report.words.numbers import times

_MOST_NAMED = 6
"""Counts that have a colour of their own; of more of them the shade says how many."""
_FEW_TO_MANY = ("#a9c6f7", "#1d4fa8")
_LONG = 2.8
"""Of a batch over the one where a long name begins that ends there."""
_WIDE = 0.2
"""Of the speedup, on either side of it: the least that a tornado shows."""


def batch_chart(rows: Rows, batch: int, *, chains: bool) -> Spec:
    """Speedup of the schedule against the batch with its interval; a ring where one looks.

    rows: of `gains_by_batch`, some of which have room; the others are left out. A line that speculates ends
    where memory holds no drafter, since what follows is no choice. A ribbon below says every count and where
    it changes, names on the curve those that have room.
    """
    fitting = [row for row in rows if row["fits_memory"]]
    full = (at for at, row in enumerate(fitting) if row["no_room_to_draft"])
    end = next((at for at in full if at and fitting[at - 1]["candidates"] > 1), len(fitting))
    drawn = fitting[:end]
    counted = [{**row, "text": _count_text(row, chains=chains)} for row in drawn]
    begun = [
        row for last, row in zip([None, *counted], counted, strict=False)
        if last is None or last["text"] != row["text"]
    ]  # fmt: skip
    ends = [*(row["batch"] for row in begun[1:]), drawn[-1]["batch"]]
    ribbon = [
        {"batch": row["batch"], "to": max(to, 1.02 * row["batch"]), "text": row["text"],
         "count": row["candidates"] - chains}
        for row, to in zip(begun, ends, strict=True)
    ]  # fmt: skip
    names = _names(begun, drawn, is_full=end < len(rows))
    x = quantity(
        "batch",
        "requests at once (batch)",
        scale={"type": "log", "base": 2, "nice": False, "padding": 10},
        axis={"values": list(POWERS), "format": "d"},
    )
    y = quantity("speedup", SPEEDUP, scale={"zero": False}, axis={"format": ".2f"})
    speedups = {"speedup": "speedup", "speedup_low": "80 %, low", "speedup_high": "80 %, high"}
    tips = [
        quantity("batch", "requests at once"),
        quantity("drafts", "drafts") if chains else quantity("candidates", "candidates"),
        *(quantity(name, title, format=".2f") for name, title in speedups.items()),
    ]
    here = [row for row in drawn if row["batch"] == batch]
    at = {"x": x, "y": y, "tooltip": tips}
    band = {"x": x, "y": {**y, "field": "speedup_low"}, "y2": {"field": "speedup_high"}}
    texts = {"x": x, "y": {**y, "field": "speedup_high"}, "text": {"field": "text"}}
    spans = {
        "x": x, "x2": {"field": "to"}, "y": {"value": {"expr": "height - 4"}},
        "color": _shade(ribbon, chains=chains),
        "tooltip": [category("text", "runs"), quantity("batch", "from"), quantity("to", "to")],
    }  # fmt: skip
    look = {"dy": -14, "fontSize": 11.5, "fontWeight": "bold"}
    right = names[:1] if len(drawn) > 1 else []  # the last name ends with the curve
    return base(
        260,
        data={"values": drawn},
        layer=[
            layer("area", band, opacity=0.18, color=SHADES[0]),
            layer("rule", {"y": quantity("one", SPEEDUP)}, [{"one": 1.0}], color=NEUTRAL, strokeDash=[4, 3]),
            layer("rule", spans, ribbon, strokeWidth=7, strokeCap="butt"),
            layer("line", at, strokeWidth=2.4, color=SHADES[0], point={"size": 22}),
            layer("text", texts, names[len(right) :][::-1], align="left", **look),
            layer("text", texts, right, align="right", opacity={"expr": on_phone(0, 1)}, **look),
            layer("point", at, here, size=130, strokeWidth=2.5, color=SHADES[1]),
        ],
    )


def _names(begun: Rows, drawn: Rows, *, is_full: bool) -> list[Mapping[str, Any]]:
    """Names on the curve that have room, the last first. begun: the first row of each count, with its text.

    is_full: whether the curve ends where memory does, which its last name says.
    """
    names = list(begun)
    if is_full:  # its name goes before that of the last count
        end = drawn[-1]["batch"]
        above = max(row["speedup_high"] for row in drawn if _LONG * row["batch"] >= end)
        names = [row for row in names if _LONG * row["batch"] <= end] or names[:1]
        last = {**drawn[-1], "text": f"no room beyond {end}", "speedup_high": above}
        names += [last] if len(drawn) > 1 else []
    kept: list[Mapping[str, Any]] = []  # far enough from each other, on a log scale; the last one always
    for row in reversed(names):
        if not kept or 1.6 * row["batch"] <= kept[-1]["batch"]:
            kept.append(row)
    return kept


def _shade(ribbon: Rows, *, chains: bool) -> Spec:
    """A colour of its own for each of a few counts, of more a shade."""
    counts = list(dict.fromkeys(row["text"] for row in ribbon))
    if len(counts) > _MOST_NAMED:
        ends = sorted({min(row["count"] for row in ribbon), max(row["count"] for row in ribbon)})
        shades: Spec = {"type": "sqrt", "range": list(_FEW_TO_MANY), "domain": ends, "nice": False}
        legend: Spec = {"gradientLength": 200, "format": "d", "values": ends}
        return quantity("count", count_word(chains), scale=shades, legend=legend)
    shades = {"domain": counts, "range": [colour_of(place) for place in range(len(counts))]}
    legend = {"symbolType": "stroke", "symbolStrokeWidth": 7, **columns(2, 6)}
    return category("text", None, sort=counts, scale=shades, legend=legend)


def _count_text(row: Mapping[str, Any], *, chains: bool) -> str:
    """`3 drafts`, `1 candidate`, `off`."""
    if row["candidates"] == 1:
        return "off"
    count, word = row["drafts"] if chains else row["candidates"], count_word(chains)
    return f"{count} {word.removesuffix('s') if count == 1 else word}"


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
    # at least so wide that a change of a twentieth does not look like ruin
    ends = [speedup * (1.0 - _WIDE), speedup * (1.0 + _WIDE), *(row["speedup"] for row in values)]
    room = 0.12 * (max(ends) - min(ends) + 0.05)
    scale: Spec = {"domain": [min(ends) - room, max(ends) + room], "nice": False}
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
            *(
                [
                    layer(
                        "rule", {"x": {**x, "field": "now"}}, [{"now": 1.0}], color=NEUTRAL, strokeDash=[4, 3]
                    )
                ]
                if scale["domain"][0] < 1.0 < scale["domain"][1]
                else []
            ),
        ],
    )
