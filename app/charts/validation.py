"""Predicted against measured, and against what papers print."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from charts.style import NEUTRAL, Spec, base, category, layer, quantity
from medusa_sim.report.charts.chart import Axis, LineChart, Series, point_series
from medusa_sim.report.palette import SHADES

if TYPE_CHECKING:
    import pandas as pd

    from medusa_sim.gpus.fitted import Fit

_MOST_POINTS = 1500


def scatter_chart(
    frame: pd.DataFrame, measured: str, predicted: str, title: str, names: Sequence[str]
) -> LineChart:
    """Predicted over measured, log-log, with the line of no error and the band of 10 %.

    names: columns told in the tooltip; the first gives the looks. Of many points every n-th is drawn.
    """
    kept = frame[(frame[measured] > 0) & (frame[predicted] > 0)]
    kept = kept.iloc[:: max(1, -(-len(kept) // _MOST_POINTS))]
    told = [name for name in names if name in kept]
    points = [
        point_series(
            str(group), place, rows[measured].to_numpy(), rows[predicted].to_numpy(), size=3.6, filled=False,
            rows=[
                {**{name: str(row[name]) for name in told}, "measured": row[measured],
                 "predicted": row[predicted], "error": row[predicted] / row[measured] - 1.0}
                for row in rows.to_dict("records")
            ],
        )
        for place, (group, rows) in enumerate(kept.groupby(told[0]) if told else [("rows", kept)])
    ]  # fmt: skip
    times = kept[[measured, predicted]].to_numpy(dtype=np.float64)
    ends = np.array([0.9 * times.min(), 1.1 * times.max()])
    lines = [
        Series(name=name, x=ends, y=factor * ends, line=line, width=1.0, in_legend=False)
        for name, factor, line in (("no error", 1.0, "-"), ("too long", 1.1, "--"), ("too short", 0.9, "--"))
    ]
    return LineChart(
        title="", x=Axis(title=f"measured: {title}", base=10), y=Axis(title=f"predicted: {title}", base=10),
        series=[*lines, *points], legend=told[0] if told else "",
        tips=(
            *((name, name, "") for name in told), ("measured", "measured", ".4~g"),
            ("predicted", "predicted", ".4~g"), ("error", "error", "+.1%"),
        ),
    )  # fmt: skip


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
