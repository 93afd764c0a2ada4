"""A comparison of set-ups for people: the answer, the frontier, what is tied or refused, the command."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from medusa_sim.errors import UsageError
from medusa_sim.grid.columns import with_unlisted
from medusa_sim.grid.quantities import BY_NAME
from medusa_sim.report.compare.warnings import warnings
from medusa_sim.report.formats import json_row
from medusa_sim.report.quantity_table import quantity_table, quantity_text
from medusa_sim.report.screen import Fact, Screen
from medusa_sim.report.table import TextTable
from medusa_sim.report.words.measured import measured_text
from medusa_sim.report.words.numbers import NOTHING, and_more, percent, significant
from medusa_sim.report.words.scenario import at_once, request_text
from medusa_sim.setups.comparison import Comparison
from medusa_sim.setups.question import SURER, Question
from medusa_sim.setups.setup import PLAIN, SET_UP, name_of
from medusa_sim.units import US_PER_S

if TYPE_CHECKING:
    import pandas as pd

    from medusa_sim.setups.loaded import Loaded

MOST_ROWS = 12
"""Rows of a table for people; the whole table is the CSV."""
SCREEN_ROWS = 8
"""Rows of the frontier on a screen."""


def compare_screen(
    answer: Comparison, fleets: Sequence[Loaded] = (), draft_path: str | None = None
) -> Screen:
    """All of the answer. fleets: set-ups under load; draft_path: the drafter's checkpoint."""
    others = answer.runners_up.head(MOST_ROWS)
    tied = f"Statistically tied ({len(answer.runners_up)} set-ups within the interval):"
    return Screen(
        asked=headline(answer),
        answer=(answer_text(answer),),
        tables=(frontier_table(answer, SCREEN_ROWS),),
        details=(rows_table(others, tied),) if len(others) else (),
        facts=tuple(facts(answer, fleets)),
        code=("One copy of it:", launch_text(answer, draft_path)),
        warnings=tuple(warnings(answer)),
    )


def headline(answer: Comparison) -> str:
    """The question in one line: requests, model and limits."""
    return f"{workload(answer.question)}: {answer.model.name}, {limits_text(answer.question)}"


def facts(answer: Comparison, fleets: Sequence[Loaded] = ()) -> Iterator[Fact]:
    """Facts about the chosen set-up."""
    if without := without_text(answer):
        yield Fact("Without", without)
    if surer := surer_text(answer):
        yield Fact("Surer", surer)
    if number := len(answer.runners_up):
        first: Mapping[str, Any] = json_row(answer.runners_up.to_dict("records")[0])
        many = "1 other set-up has" if number == 1 else f"{number} other set-ups have"
        yield Fact(
            "Tied",
            f"{many} intervals that reach it; first {name_of(first)}, {drafting_text(answer, first)}: "
            f"{worth_text(answer, first)}",
        )
    yield from (Fact("Under load", loaded_line(each)) for each in fleets)
    yield Fact("Measured", measured_text(answer))
    refused = refused_lines(answer)
    if refused:
        number = len(answer.refused)
        yield Fact("Refused", f"{number} set-up{'s' * (number > 1)} that cannot run")
        yield from (Fact("Refused", line, detail=True) for line in refused)


def limits_text(asked: Question) -> str:
    """`at least 50 tokens/s a user`: what a set-up must keep."""
    limits = {
        "at least {:g} tokens/s a user": asked.tokens_per_s_per_user,
        "at most {:g} ms a token": asked.tpot_ms,
        "at most {:g} ms to the first token": asked.ttft_ms,
        "at most {:g} ms in all": asked.e2e_ms,
    }
    kept = [text.format(limit) for text, limit in limits.items() if limit is not None]
    return ", ".join(kept) or "any speed"


def sentence(answer: Comparison) -> str:
    """Workload, set-up and what it costs, beside the best without speculation, in one sentence."""
    if answer.chosen is None:
        return none_text(answer)
    text = f"{workload(answer.question)}: {chosen_text(answer)}"
    if without := without_text(answer):
        return f"{text}; {without}."
    return f"{text}."


def answer_text(answer: Comparison) -> str:
    """The set-up that is chosen by what is saved, or that none keeps the limits."""
    if answer.chosen is None:
        return none_text(answer)
    by = {"cost": "Cheapest", "throughput": "Most from a GPU", "energy": "Least energy"}[answer.measure]
    return f"{by}: {chosen_text(answer)}."


def none_text(answer: Comparison) -> str:
    """Says that no set-up keeps the limits, and how fast the fastest is."""
    fastest = float(answer.table.tokens_per_s_per_user.max())
    return (
        f"No set-up of {answer.model.name} keeps the limits for {workload(answer.question)}: the fastest "
        f"stream of any is {significant(fastest, 3)} tokens/s."
    )


def chosen_text(answer: Comparison) -> str:
    """`2 x h200-sxm, TP 2, fp8, vllm, eagle3 with 2 drafts at 48 requests: $0.21 a million tokens, ...`."""
    chosen = answer.chosen
    assert chosen is not None  # noqa: S101  # asked where there is one
    text = _line(answer, chosen)
    if answer.question.slowest_tpot_us < math.inf:
        least = US_PER_S / answer.question.slowest_tpot_us
        text += f" (at least {significant(least, 3)} with {percent(chosen['sure'], 0)} certainty)"
    return text


def without_text(answer: Comparison) -> str:
    """The best set-up without speculation beside the chosen one; empty where none was asked for."""
    chosen, plain = answer.chosen, answer.chosen_plain
    if chosen is None:
        return ""
    if chosen["drafter"] == PLAIN:
        return "no drafter does better"
    if plain is None:
        asked = (answer.table.drafter == PLAIN).any()
        return "without speculation no set-up keeps the limits" if asked else ""
    same = all(plain[name] == chosen[name] for name in SET_UP if name != "drafter")
    where = f"{plain['gpus']} x {plain['gpu']}" if same else name_of(plain)
    what = "the same" if same else "the best"
    return f"{what} without speculation: {where}, {worth_text(answer, plain)}"


def workload(asked: Question) -> str:
    """`512 in, 256 out, 2 requests/s`: what every set-up serves."""
    text = request_text(asked.prompt_tokens, asked.output_tokens)
    if asked.rate is not None:
        return f"{text}, {significant(asked.rate, 3)} requests/s"
    return text if asked.users is None else f"{text}, {at_once(str(asked.users))}"


def surer_text(answer: Comparison) -> str:
    """The set-up that keeps the speed with SURER, where the chosen one is less sure; empty elsewhere."""
    if answer.chosen is None or answer.chosen["sure"] >= SURER:
        return ""
    surer = answer.surer.chosen
    return f"with {percent(SURER, 0)} certainty: {'no set-up' if surer is None else _line(answer, surer)}"


def _line(answer: Comparison, row: Mapping[str, Any]) -> str:
    speed = significant(row["tokens_per_s_per_user"], 3)
    return f"{name_of(row)}, {drafting_text(answer, row)}: {worth_text(answer, row)}, {speed} tokens/s a user"


def drafting_text(answer: Comparison, row: Mapping[str, Any]) -> str:
    """`eagle3 with 3 drafts to 8 requests, 2 to 48`, up to the batch of the row; `plain, 64 requests`."""
    requests = f"{row['batch']} requests" + (" a copy" if row["replicas"] > 1 else "")
    if row["drafter"] == PLAIN:
        return f"no speculation, {requests}"
    table = answer.table
    curve = table[(table[list(SET_UP)] == [row[name] for name in SET_UP]).all(axis=1)]
    curve = curve[curve.batch <= row["batch"]].sort_values("batch")
    first, last = int(curve.drafts.iloc[0]), int(row["drafts"])
    few = f" ({first} where few run)" if first != last else ""
    return f"{row['drafter']} with {last} draft{'s' if last > 1 else ''} at {requests}{few}"


def worth_text(answer: Comparison, row: Mapping[str, Any]) -> str:
    """`$0.0860 a million tokens`, or what else is saved."""
    return BY_NAME[answer.column].phrase.format(significant(float(row[answer.column]), 3))


def frontier_table(answer: Comparison, most: int = MOST_ROWS) -> TextTable:
    """Rows of the frontier, thinned to about `most`."""
    rows = answer.frontier
    every = max(1, -(-len(rows) // most))
    kept = (rows.index % every == 0) | rows.chosen | (rows.index == len(rows) - 1)
    return rows_table(rows[kept], frontier_title(answer))


def frontier_title(answer: Comparison) -> str:
    """Which two quantities the frontier trades."""
    against = {"cost": "cost", "throughput": "throughput per GPU", "energy": "energy per token"}
    return f"Pareto frontier, speed per user against {against[answer.measure]}"


_SHOWN = (
    "drafter", "drafts", "batch", "tokens_per_s_per_user", "tokens_per_s_per_gpu", "usd_per_million_tokens",
    "joule_per_token",
)  # fmt: skip
"""Columns of tables for people."""


def rows_table(rows: pd.DataFrame, title: str) -> TextTable:
    """Set-ups as rows of text; the chosen one has a star."""
    user = "tokens_per_s_per_user"
    columns: dict[str, list[str]] = {
        "chosen": ["*" if chosen else "" for chosen in rows.chosen],
        "set_up": [name_of(row) for row in rows.to_dict("records")],
    }
    for name in with_unlisted(_SHOWN):
        if not BY_NAME[name].title:
            continue
        columns[name] = [quantity_text(name, value or NOTHING) for value in rows[name].tolist()]
        if name == user:
            ends = zip(rows[f"{user}_low"].tolist(), rows[f"{user}_high"].tolist(), strict=True)
            columns["interval"] = [
                f"{quantity_text(user, low)}-{quantity_text(user, high)}" for low, high in ends
            ]
            if rows.sure.min() < 1.0:
                columns["sure"] = [quantity_text("sure", value) for value in rows.sure.tolist()]
    words = ("chosen", "set_up", "drafter")
    expendable = ("joule_per_token", "interval", "tokens_per_s_per_gpu", "drafts")
    return quantity_table(columns, words=words, title=title, expendable=expendable)


def loaded_line(loaded: Loaded) -> str:
    """One set-up under load in a sentence."""
    mean = loaded.point.mean
    drafts = f", {loaded.row['drafts']} drafts" if loaded.row["drafts"] else ", no speculation"
    usd, copies = (
        loaded.usd_per_million_tokens,
        "1 copy" if loaded.replicas == 1 else f"{loaded.replicas} copies",
    )
    cost = "" if math.isnan(usd) else f", ${significant(usd, 3)} a million tokens"
    return (
        f"{loaded.gpus} x {loaded.row['gpu']} ({copies}{drafts}): {percent(loaded.share, 0)} of the "
        f"requests keep the limits, half of them have a first token after "
        f"{significant(1e3 * mean['ttft_p50_s'], 3)} ms, then {significant(1.0 / mean['tpot_p50_s'], 3)} "
        f"tokens/s{cost}{queue_text(loaded)}"
    )


QUEUED = 3.0
"""A first token this many times slower than without a queue is reported as queueing."""


def queue_text(loaded: Loaded) -> str:
    """How many times as long as without a queue a first token takes; empty below QUEUED."""
    alone_ms, half_ms = float(loaded.row["ttft_ms"]), 1e3 * loaded.point.mean["ttft_p50_s"]
    if half_ms < QUEUED * alone_ms:
        return ""
    return (
        f"; requests wait: a first token takes {significant(half_ms / alone_ms, 2)} times the "
        f"{significant(alone_ms, 3)} ms of a server without a queue, give a limit with --ttft-ms"
    )


def refused_lines(answer: Comparison) -> list[str]:
    """A line a reason, with the first set-up that it refuses and how many more."""
    by_reason: dict[str, list[str]] = {}
    for item in answer.refused:
        by_reason.setdefault(item.reason, []).append(item.setup)
    return [f"{and_more(setups)}: {reason}" for reason, setups in by_reason.items()]


def launch_text(answer: Comparison, draft_path: str | None = None) -> str:
    """The command of the chosen set-up, or why the engine has no words for it; empty where none is chosen."""
    from medusa_sim.export.launch import chosen_command

    try:
        return "" if answer.chosen is None else chosen_command(answer, answer.chosen, draft_path)
    except UsageError as error:
        return f"# {error}\n"
