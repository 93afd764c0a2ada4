"""A load test as rows and plain values, in full precision."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

from medusa_sim.grid.quantities import scenario_values
from medusa_sim.load.answer import LoadAnswer
from medusa_sim.load.point import LoadPoint
from medusa_sim.load.quantities import run_values
from medusa_sim.report.formats import json_row, json_value
from medusa_sim.report.words.break_even import break_even_values

if TYPE_CHECKING:
    import pyarrow as pa


WITH_INTERVAL = (
    "requests_per_s", "goodput_per_s", "ttft_mean_s", "tpot_mean_s", "e2e_mean_s", "tokens_per_s",
)  # fmt: skip
"""Metrics whose 95 % half-width over the seeds has a column."""
WITH_BAND = ("ttft_mean_s", "tpot_mean_s", "e2e_mean_s")
"""Metrics whose 80 % interval has two: of the step carried through the queue, of the server and the seeds."""


def row_values(answer: LoadAnswer, point: LoadPoint) -> dict[str, Any]:
    """One row; ratios are to the first policy at the same rate."""
    names = ("gpu", "model", "tp", "runtime", "drafter", "acceptance")
    values: dict[str, Any] = {
        **scenario_values(answer.test.scenario, *names),
        "policy": point.policy,
        "rate_per_s": point.arrivals_per_s,
        "seeds": len(point.values),
        "requests_left_out": point.dropped,
        **point.mean,
        **run_values(point.mean),
    }
    for name in WITH_INTERVAL:
        values[f"{name}_half_width"] = point.half_width(name)
    for name in WITH_BAND:
        values[f"{name}_low"], values[f"{name}_high"] = point.band(name)
    ratio, low, high = point.ratio_to(answer.at_rate_of(point)[0], "e2e_mean_s")
    values |= {"e2e_ratio": ratio, "e2e_ratio_low": low, "e2e_ratio_high": high}
    return values


def load_arrow(answer: LoadAnswer) -> pa.Table:
    """A row a policy and rate; numbers that do not exist are null."""
    import pyarrow as pa

    return _without_nan(pa.Table.from_pylist([row_values(answer, point) for point in answer.points]))


def carried_values(answer: LoadAnswer) -> list[dict[str, Any]]:
    """Rate that each policy carries, and the GPUs needed for the target rate."""
    rows = [json_row(dataclasses.asdict(rates)) for rates in answer.carried]
    if (target := answer.target_rate) is not None:
        for row, policy_rates in zip(rows, answer.carried, strict=True):
            row["gpus_needed"] = json_value(policy_rates.gpus_for(target, answer.test.scenario.gpus))
    return rows


def context_values(answer: LoadAnswer) -> dict[str, Any] | None:
    """The contexts at which speculation pays for as many requests as decode; None where it never drafts."""
    if answer.context is None:
        return None
    requests, break_even = answer.context
    return {"requests": requests, **break_even_values(break_even)}


def timeline_arrow(answer: LoadAnswer) -> pa.Table:
    """The timeline of each point's first seed, a row a bin."""
    import pyarrow as pa

    tables = []
    for point in answer.points:
        line = point.first_result.timeline
        columns = {field.name: getattr(line, field.name) for field in dataclasses.fields(line)}
        rate = point.arrivals_per_s
        same = {"policy": [point.policy] * line.time_s.size, "rate_per_s": [rate] * line.time_s.size}
        tables.append(pa.table({**same, **columns}))
    return _without_nan(pa.concat_tables(tables))


def _without_nan(table: pa.Table) -> pa.Table:
    """The table with null for nan; its columns keep their types, so that parts of a data set agree."""
    import pyarrow as pa

    columns = {
        name: pa.array(column.to_numpy(), from_pandas=True, type=column.type)
        if pa.types.is_floating(column.type)
        else column
        for name, column in zip(table.column_names, table.columns, strict=True)
    }
    return pa.table(columns)
