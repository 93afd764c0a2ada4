"""A load test as tables and rows: a row a policy and rate, what each policy carries, the timeline."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from medusa_sim.grid.columns import LOAD, run_values
from medusa_sim.grid.quantities import BY_NAME, scenario_values
from medusa_sim.load.question import LoadAnswer
from medusa_sim.load.search import Carried
from medusa_sim.load.simulate import LoadPoint
from medusa_sim.report.formats import json_row, json_value
from medusa_sim.report.load_words import rate_text
from medusa_sim.report.quantity_table import quantity_table, quantity_text
from medusa_sim.report.recommend_json import break_even_values
from medusa_sim.report.table import TextTable
from medusa_sim.report.text import NOTHING

if TYPE_CHECKING:
    import pyarrow as pa

_EXPENDABLE = (
    "watts", "kv_share", "e2e_ratio", "itl_p99_s", "joule_per_token", "tokens_per_step", "requests_per_s",
    "usd_per_million_tokens", "itl_p50_s", "requests_in_system", "tpot_p99_s", "ttft_p99_s",
)  # fmt: skip
_UNSTEADY = "not steady"


def load_table(answer: LoadAnswer) -> TextTable:
    """A row a policy and rate; times in ms."""
    rows = [_shown_values(answer, point) for point in answer.points]
    columns = {
        name: [quantity_text(name, row[name]) for row in rows] for name in rows[0] if BY_NAME[name].title
    }
    if not answer.test.goals.given:
        del columns["goodput_share"]
    title = "times in ms: TTFT, ITL median, TPOT mean; rate: arriving requests per second"
    return quantity_table(columns, words=("policy",), title=title, expendable=_EXPENDABLE)


def _shown_values(answer: LoadAnswer, point: LoadPoint) -> dict[str, Any]:
    """What the table shows of a point."""
    ratio, _, _ = point.ratio_to(answer.first_at(point), "e2e_mean_s")
    own: dict[str, Any] = {
        "rate_per_s": point.rate if math.isfinite(point.rate) else math.nan,
        "policy": point.policy,
        "e2e_ratio": ratio,
    }
    if not answer.is_steady(point):
        own["goodput_share"] = _UNSTEADY
    return run_values(point.mean, LOAD) | own


def carried_table(answer: LoadAnswer) -> TextTable:
    """What each policy carries."""
    rate, gpus = answer.target_rate, answer.test.scenario.gpus

    def never(each: Carried, value: str | None) -> str:
        return NOTHING if each.policy == "none" else "never" if value is None else value

    def within(each: Carried) -> str:
        """`19.1 (17.4-20.9)`: what is carried with its 80 % interval."""
        if each.largest_per_s is None:
            return NOTHING
        low, high = each.largest_low_per_s, each.largest_high_per_s
        if not each.largest_per_s or low is None or high is None:
            return rate_text(each.largest_per_s)
        return f"{rate_text(each.largest_per_s)} ({rate_text(low)}-{rate_text(high)})"

    def slower(each: Carried) -> str:
        return never(each, None if each.loses_from is None else rate_text(each.loses_from))

    columns: dict[str, Callable[[Carried], str]] = {
        "policy": lambda each: each.policy,
        "saturated_per_s": lambda each: rate_text(each.saturated_per_s),
        "tokens_per_s": lambda each: quantity_text("tokens_per_s", each.saturated_tokens_per_s),
        "largest_per_s": within,
    }
    if any(each.searched for each in answer.carried):
        columns["loses_from"] = slower
    columns["off_from"] = lambda each: never(each, None if each.off_from is None else str(each.off_from))
    if rate is not None:
        columns["gpus_needed"] = lambda each: str(each.gpus_for(rate, gpus) or NOTHING)
    title = "requests/s that the server sustains (in brackets: 80 %)"
    cells = {name: [cell(each) for each in answer.carried] for name, cell in columns.items()}
    return quantity_table(cells, words=("policy",), title=title)


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
        "rate_per_s": point.rate,
        "seeds": len(point.values),
        "requests_left_out": point.dropped,
        **point.mean,
        **run_values(point.mean),
    }
    for name in WITH_INTERVAL:
        values[f"{name}_half_width"] = point.half_width(name)
    for name in WITH_BAND:
        values[f"{name}_low"], values[f"{name}_high"] = point.band(name)
    ratio, low, high = point.ratio_to(answer.first_at(point), "e2e_mean_s")
    values |= {"e2e_ratio": ratio, "e2e_ratio_low": low, "e2e_ratio_high": high}
    return values


def load_arrow(answer: LoadAnswer) -> pa.Table:
    """A row a policy and rate; numbers that do not exist are null."""
    import pyarrow as pa

    return _without_nan(pa.Table.from_pylist([row_values(answer, point) for point in answer.points]))


def carried_values(answer: LoadAnswer) -> list[dict[str, Any]]:
    """What each policy carries, and the GPUs that carry the target rate."""
    rows = [json_row(dataclasses.asdict(each)) for each in answer.carried]
    if (target := answer.target_rate) is not None:
        for row, each in zip(rows, answer.carried, strict=True):
            row["gpus_needed"] = json_value(each.gpus_for(target, answer.test.scenario.gpus))
    return rows


def context_values(answer: LoadAnswer) -> dict[str, Any] | None:
    """The contexts at which speculation pays for as many requests as decode; None where it never drafts."""
    if answer.context is None:
        return None
    requests, crossing = answer.context
    return {"requests": requests, **break_even_values(crossing)}


def timeline_arrow(answer: LoadAnswer) -> pa.Table:
    """The timeline of each point's first seed, a row a bin."""
    import pyarrow as pa

    tables = []
    for point in answer.points:
        line = point.first.timeline
        columns = {field.name: getattr(line, field.name) for field in dataclasses.fields(line)}
        rate = point.rate
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
