"""Charts of a load test: a metric against the rate, and one run over time."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

import medusa_sim.load.quantities  # noqa: F401  declares the metrics that are titled here
from medusa_sim.grid.quantity import BY_NAME
from medusa_sim.report.charts.chart import (
    Axis,
    LineChart,
    ReferenceLine,
    Series,
    Tip,
    colour_of,
    line_series,
    marker_of,
)
from medusa_sim.scenario.defaults import LOAD_SHARE
from medusa_sim.units import KILO

if TYPE_CHECKING:
    from medusa_sim.load.answer import LoadAnswer
    from medusa_sim.load.point import LoadPoint

_MOST_POINTS = 400
_POLICY: Tip = ("policy", "policy", "")


def metric_title(metric: str, share: float = LOAD_SHARE) -> str:
    """Title of a metric; share: of requests that must keep the limits."""
    return BY_NAME[metric].on_axis.format(share=f"{100 * share:g} %")


def _legend_name(policy: str) -> str:
    """In the legend; imported here, since lists of an app need the names of metrics alone."""
    from medusa_sim.report.load.sentences import policy_text

    return policy_text(policy)


def rate_chart(answer: LoadAnswer, metric: str, title: str = "") -> LineChart:
    """A line a policy with the 95 % interval over its seeds; its limit, what each carries and is full at.

    metric: of `AGAINST_RATE`. Of times that a share keeps, the medians are thin lines.
    """
    slos, unit = answer.test.slos, 1.0 if metric.endswith("_per_s") else KILO
    limit_s = {"tpot_at_share_s": slos.tpot_s, "ttft_at_share_s": slos.ttft_s}.get(metric)
    policies = list(dict.fromkeys(point.policy for point in answer.points))
    places = {policy: place for place, policy in enumerate(policies)}
    y_title = metric_title(metric, slos.share)
    series: list[Series] = []
    for policy, place in places.items():
        points = [point for point in answer.points if point.policy == policy]
        x = np.array([point.arrivals_per_s for point in points])
        y, half = (np.array([unit * value for value in values]) for values in (
            [point.mean[metric] for point in points], [point.half_width(metric) for point in points]
        ))  # fmt: skip
        half = np.nan_to_num(half)
        rows: list[dict[str, Any]] = [
            {"policy": policy, "rate": point.arrivals_per_s, "value": value,
             "tokens": point.mean["tokens_per_s"], "share": point.mean["goodput_share"]}
            for point, value in zip(points, y.tolist(), strict=True)
        ]  # fmt: skip
        is_sure, most = bool((half > 0.0).any()), x if metric == "goodput_per_s" else np.inf
        series.append(
            line_series(
                _legend_name(policy), place, x, y, marker=marker_of(place), rows=rows,
                low=np.maximum(y - half, 0.0) if is_sure else None,
                high=np.maximum(np.minimum(y + half, most), y) if is_sure else None,
            )
        )  # fmt: skip
        if metric.endswith("_at_share_s"):
            medians = np.array([unit * point.mean[metric.replace("at_share", "p50")] for point in points])
            series.append(line_series(_legend_name(policy), place, x, medians, width=0.9))
    limits = [] if limit_s is None else [ReferenceLine(y=KILO * limit_s, text="limit")]
    if metric == "goodput_per_s":
        ends = np.array([0.0, max(point.arrivals_per_s for point in answer.points)])
        series.append(Series(name="", x=ends, y=ends, line="-", width=0.9))
    for rates in answer.carried:
        colour = colour_of(places[rates.policy])
        if rates.largest_per_s:
            limits.append(ReferenceLine(x=rates.largest_per_s, colour=colour, line="--"))
        limits.append(ReferenceLine(x=rates.saturated_per_s, colour=colour, line=":"))
    return LineChart(
        title=title,
        x=Axis(title=BY_NAME["rate_per_s"].on_axis),
        y=Axis(title=y_title, zero=True),
        series=series,
        limits=limits,
        tips=(
            _POLICY, ("rate", "requests/s", ".3g"), ("value", y_title, ".3g"),
            ("tokens", BY_NAME["tokens_per_s"].title, ",.0f"),
            ("share", "within the limits", ".1%"),
        ),
    )  # fmt: skip


def time_chart(points: Sequence[LoadPoint], field: str, title: str = "") -> LineChart:
    """The first seed of each policy over the seconds of its run. field: of `load.quantities.OVER_TIME`."""
    series = []
    for place, point in enumerate(points):
        run = point.first_result.timeline
        step = max(1, run.time_s.size // _MOST_POINTS)
        x, y = run.time_s[::step], getattr(run, field)[::step]
        rows = [
            {"policy": point.policy, "time": time_s, "value": value}
            for time_s, value in zip(x.tolist(), y.tolist(), strict=True)
        ]
        series.append(line_series(_legend_name(point.policy), place, x, y, width=1.4, rows=rows))
    return LineChart(
        title=title,
        x=Axis(title=BY_NAME["time_s"].on_axis),
        y=Axis(title=BY_NAME[field].on_axis, zero=True),
        series=series,
        tips=(_POLICY, ("time", BY_NAME["time_s"].on_axis, ".3g"), ("value", BY_NAME[field].on_axis, ",.3g")),
    )
