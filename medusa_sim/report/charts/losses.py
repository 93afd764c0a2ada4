"""Losses of a training over its steps."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from medusa_sim.report.charts.chart import Axis, LineChart, line_series


def losses_chart(history: Sequence[Mapping[str, float]]) -> LineChart:
    """A line for each loss. history: `step` and losses in nats a token, one record a step."""
    columns = {name: np.array([record[name] for record in history]) for name in history[0]}
    steps = columns.pop("step")
    return LineChart(
        title="Losses",
        x=Axis(title="step"),
        y=Axis(title="loss (nats per token)"),
        series=[line_series(name, place, steps, loss) for place, (name, loss) in enumerate(columns.items())],
    )
