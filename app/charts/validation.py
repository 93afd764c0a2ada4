"""Predicted against measured, and against what papers print."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

from charts.style import NEUTRAL, Spec, base, category, layer, quantity
from medusa_sim.report.charts.chart import colour_of
from medusa_sim.report.palette import SHADES

if TYPE_CHECKING:
    import pandas as pd

    from medusa_sim.gpus.fitted import Fit

_MOST_POINTS = 1500


def scatter_chart(
    frame: pd.DataFrame, measured: str, predicted: str, title: str, names: Sequence[str]
) -> Spec:
    """Predicted over measured, log-log, with the line of no error and the band of 10 %.

    names: columns told in the tooltip. Of many points every n-th is drawn.
    """
    kept = frame[(frame[measured] > 0) & (frame[predicted] > 0)]
    kept = kept.iloc[:: max(1, -(-len(kept) // _MOST_POINTS))]
    drawn = [name for name in names if name in kept]
    points: list[Spec] = [
        {
            "measured": float(row[measured]),
            "predicted": float(row[predicted]),
            "error": float(row[predicted] / row[measured] - 1.0),
            **{name: str(row[name]) for name in drawn},
        }
        for row in kept.to_dict("records")
    ]
    low = min(min(p["measured"], p["predicted"]) for p in points) * 0.9
    high = max(max(p["measured"], p["predicted"]) for p in points) * 1.1
    lines = [
        {"measured": x, "predicted": x * factor, "line": name}
        for name, factor in (("no error", 1.0), ("10 % too long", 1.1), ("10 % too short", 0.9))
        for x in (low, high)
    ]
    x = quantity("measured", f"measured: {title}", scale={"type": "log", "nice": False})
    y = quantity("predicted", f"predicted: {title}", scale={"type": "log", "nice": False})
    group = drawn[0] if drawn else None
    colour: Spec = {"value": SHADES[0]}
    shape: Spec = {"value": "circle"}
    if group is not None:
        names_in_order = [str(name) for name in sorted(kept[group].unique())]
        shades = [colour_of(place) for place in range(len(names_in_order))]
        colour = category(group, group, scale={"range": shades}, sort=names_in_order)
        shape = category(group, group, sort=names_in_order)
    dashes = {"domain": ["no error", "10 % too long", "10 % too short"], "range": [[1, 0], [4, 4], [4, 4]]}
    dash = category("line", None, legend=None, scale=dashes)
    tips = [
        *(category(name, name) for name in drawn),
        *(quantity(name, name, format=".4~g") for name in ("measured", "predicted")),
        quantity("error", "error", format="+.1%"),
    ]
    at = {"x": x, "y": y}
    return base(
        380,
        layer=[
            layer("line", {**at, "strokeDash": dash}, lines, color=NEUTRAL, strokeWidth=1),
            layer(
                "point",
                {**at, "color": colour, "shape": shape, "tooltip": tips},
                points,
                size=42,
                strokeWidth=1.6,
            ),
        ],
    )


def band_chart(fits: Mapping[str, Fit]) -> Spec:
    """Where 80 % of measurements lie around the prediction, a bar each kernel and range of sizes."""
    title = "measured / predicted, 80 % of rows"
    values = [
        {"what": f"{name}, to {residual.size_max:,.0f}", "low": residual.low, "high": residual.high}
        for name, fit in fits.items()
        for residual in fit.residuals
    ]
    bar = {
        "y": category("what", None, sort=None, axis={"labelLimit": 240, "labelOverlap": False}),
        "x": quantity("low", title, scale={"zero": False}),
        "x2": {"field": "high"},
        "tooltip": [
            category("what", "kernel and size"),
            *(quantity(end, end, format=".2f") for end in ("low", "high")),
        ],
    }
    return base(
        18 * len(values),
        layer=[
            layer("bar", bar, values, height=7, cornerRadius=2, color=SHADES[0]),
            layer("rule", {"x": quantity("one", title)}, [{"one": 1.0}], color=NEUTRAL, strokeWidth=1.5),
        ],
    )


def pairs(names: Iterable[str]) -> list[tuple[str, str]]:
    """(published, predicted) columns that belong together, in their order."""
    known = dict.fromkeys(names)
    return [
        (name, predicted)
        for name in known
        if name.startswith("published_")
        and (predicted := "predicted_" + name.removeprefix("published_")) in known
    ]
