"""Predicted against measured, and against what papers print."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

from charts.style import NEUTRAL, Spec, base, category, quantity, shades
from medusa_sim.report.figures.style import SHADES

if TYPE_CHECKING:
    import pandas as pd

    from medusa_sim.specs.fitted import Fit

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
        colour = category(group, group, scale={"range": shades(len(names_in_order))}, sort=names_in_order)
        shape = category(group, group, sort=names_in_order)
    return base(
        380,
        layer=[
            {
                "data": {"values": lines},
                "mark": {"type": "line", "color": NEUTRAL, "strokeWidth": 1},
                "encoding": {
                    "x": x,
                    "y": y,
                    "strokeDash": category(
                        "line",
                        None,
                        legend=None,
                        scale={
                            "domain": ["no error", "10 % too long", "10 % too short"],
                            "range": [[1, 0], [4, 4], [4, 4]],
                        },
                    ),
                },
            },
            {
                "data": {"values": points},
                "mark": {"type": "point", "size": 42, "strokeWidth": 1.6},
                "encoding": {
                    "x": x,
                    "y": y,
                    "color": colour,
                    "shape": shape,
                    "tooltip": [
                        *(category(name, name) for name in drawn),
                        quantity("measured", "measured", format=".4~g"),
                        quantity("predicted", "predicted", format=".4~g"),
                        quantity("error", "error", format="+.1%"),
                    ],
                },
            },
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
    return base(
        18 * len(values),
        layer=[
            {
                "data": {"values": values},
                "mark": {"type": "bar", "height": 7, "cornerRadius": 2, "color": SHADES[0]},
                "encoding": {
                    "y": category("what", None, sort=None, axis={"labelLimit": 240, "labelOverlap": False}),
                    "x": quantity("low", title, scale={"zero": False}),
                    "x2": {"field": "high"},
                    "tooltip": [
                        category("what", "kernel and size"),
                        quantity("low", "low", format=".2f"),
                        quantity("high", "high", format=".2f"),
                    ],
                },
            },
            {
                "data": {"values": [{"one": 1.0}]},
                "mark": {"type": "rule", "color": NEUTRAL, "strokeWidth": 1.5},
                "encoding": {"x": quantity("one", title)},
            },
        ],
    )


def pairs(names: Iterable[str]) -> list[tuple[str, str]]:
    """(published, predicted) columns that belong together, in their order."""
    ordered = list(names)
    known = set(ordered)
    return [
        (name, predicted)
        for name in ordered
        if name.startswith("published_")
        and (predicted := "predicted_" + name.removeprefix("published_")) in known
    ]
