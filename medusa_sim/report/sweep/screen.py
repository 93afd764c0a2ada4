"""A sweep for people: the answer, a line for each batch and length, facts about it, warnings."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from medusa_sim.doubts.of_answer import answer_doubts
from medusa_sim.doubts.of_scenario import scenario_doubts
from medusa_sim.grid.axes import Grid
from medusa_sim.grid.quantity import BY_NAME, with_unlisted
from medusa_sim.plan.count_curves import NEAR_BEST
from medusa_sim.plan.sweep_answer import FreeBudgets, SweepAnswer
from medusa_sim.report.quantity_table import quantity_table, quantity_text
from medusa_sim.report.screen import Fact, Screen
from medusa_sim.report.sweep.sentences import (
    answer_text,
    better_text,
    by_batch,
    engine_text,
    row_text,
)
from medusa_sim.report.table import TextTable
from medusa_sim.report.words.caveats import more_may_pay, more_requests_text, slower_format_text
from medusa_sim.report.words.cost import COST_COLUMNS, cost_facts
from medusa_sim.report.words.memory import memory_text, missing_text, shortfall_facts
from medusa_sim.report.words.numbers import NOTHING, batch_text, counted, percent, span, times
from medusa_sim.report.words.scenario import (
    acceptance_facts,
    asked_text,
    depth_word,
    kernel_facts,
    several_text,
    workload_text,
)
from medusa_sim.report.words.standing import standing_fact
from medusa_sim.scenario.defaults import FREE_WITHIN
from medusa_sim.scenario.scenario import Scenario
from medusa_sim.units import GIGA

_MOST_HINTS = 6
_OF_ONE = ("Acceptance", "Measured", "Cost", "Price", "Energy", "Next")
"""Facts that are details where a sweep has several scenarios."""


def sweep_screen(answer: SweepAnswer, warned: Sequence[str] = (), *, several: bool = False) -> Screen:
    """The whole answer for one scenario; where nothing fits, the missing memory and changes that would do.

    warned: of counts that are left out. several: whether the scenario is one of several.
    """
    asked = headline(answer.scenario, answer.grid)
    shortfall, doubts = answer.shortfall, scenario_doubts(answer.scenario, answer.largest_count)
    lacking = () if shortfall is None else tuple(shortfall_facts(shortfall))
    if shortfall is not None and not any(answer.fits):
        return Screen(
            asked=asked, answer=(missing_text(shortfall),), facts=lacking, warnings=(*doubts, *warned)
        )
    shown = [*lacking, *facts(answer)]
    if several:
        shown = [replace(fact, detail=fact.detail or fact.label in _OF_ONE) for fact in shown]
    return Screen(
        asked=asked,
        answer=(answer_text(answer),),
        tables=(best_table(answer),),
        facts=tuple(shown),
        warnings=tuple(dict.fromkeys((*doubts, *warned, *warnings(answer)))),
    )


def headline(scenario: Scenario, grid: Grid) -> str:
    """The swept grid in one line."""
    fixed = scenario.baseline == "fixed"
    return asked_text(
        scenario,
        workload_text(scenario, grid.seq_len, several_text(grid.batch)),
        "verified as a chain" if scenario.where_trees_run else "",
        "against the decode step at batch 1 and length 1024" if fixed else "",
    )


def facts(answer: SweepAnswer) -> Iterator[Fact]:
    """Where it pays, what other counts and engines give, memory and costs, what columns mean."""
    yield from (Fact("By batch", text) for text in by_batch(answer))
    yield from acceptance_facts(answer.scenario, answer.largest_count)
    yield from standing_fact(answer.scenario)
    if better := better_text(answer):
        yield Fact("Other counts", better)
    if answer.in_engine is not None and (engine := engine_text(answer.in_engine)):
        yield Fact("Engine", engine)
    yield from memory_facts(answer)
    yield from costs(answer)
    yield from column_facts(answer)
    for pair in answer.quicker[:_MOST_HINTS]:
        at = batch_text(pair.batch, pair.seq_len, several=answer.grid.seq_len.size > 1)
        yield Fact(
            "Quicker",
            f"{pair.larger} candidates take less time than {pair.smaller} ({at})",
            detail=True,
        )
    yield from kernel_facts(answer.scenario)
    yield Fact("Next", "--all-rows or --format csv: a row for each count; --report DIR: a page with charts")


def memory_facts(answer: SweepAnswer) -> Iterator[Fact]:
    """How many requests fit, and what the largest batch of the grid that fits keeps on a GPU."""
    if answer.scenario.scope == "block":
        return
    row = max(range(len(answer.fits)), key=lambda row: (answer.fits[row], answer.column("batch")[row]))
    parts, most = answer.memory(row)
    batch, length, count = (int(answer.column(name)[row]) for name in ("batch", "seq_len", "candidates"))
    usable = answer.scenario.usable_memory_bytes / GIGA
    candidates = counted(count, answer.best.configurations.are_chains)
    yield Fact("Memory", f"{most} requests fit with {candidates} at length {length:,}")
    yield Fact(
        "Memory use",
        f"{memory_text(parts)} of {usable:,.1f} on a GPU at batch {batch}, length {length:,}",
        detail=True,
    )


def costs(answer: SweepAnswer) -> Iterator[Fact]:
    """Cost of tokens at the first and the last batch and length."""
    columns = {name: answer.column(name).tolist() for name in COST_COLUMNS}
    return cost_facts(
        answer.scenario,
        {
            row_text(answer, row): {name: column[row] for name, column in columns.items()}
            for row, fits in enumerate(answer.fits)
            if fits
        },
    )


def column_facts(answer: SweepAnswer) -> Iterator[Fact]:
    """Meaning of columns whose heading does not tell it."""
    if answer.scenario.traffic is not None and answer.gain == "speedup":
        yield Fact("Columns", "speedup: with the prompts that a server reads; step alone: without them")
    within = percent(NEAR_BEST, 0)
    yield Fact("Columns", f"as good: candidates within {within} of the best speedup", detail=True)
    text = f"free: candidates that cost at most {percent(FREE_WITHIN - 1.0, 0)} more than a plain step"
    if answer.drafting_share > 0.0:
        alone = free_text(int(answer.free.verification[0]), answer.free)
        text += (
            f" (at batch {answer.grid.batch[0]} drafting adds {percent(answer.drafting_share)}; without it "
            f"{alone} are free)"
        )
    yield Fact("Columns", text, detail=True)


_TABLE = (
    "batch", "seq_len", "candidates", "near_best", "drafts", "fits_memory", "speedup",
    "baseline_speedup", "interval", "step_speedup", "kernels_speedup", "tokens_per_step", "overhead",
    "baseline_overhead", "decode_step_us", "verify_step_us", "tokens_per_s", "plain_tokens_per_s",
    "usd_per_million_tokens", "joule_per_token", "free_candidates", "bound",
)  # fmt: skip
"""Columns of the table for people."""

_EXPENDABLE = (
    "joule_per_token", "usd_per_million_tokens", "near_best", "free_candidates", "decode_step_us",
    "plain_tokens_per_s", "bound", "verify_step_us", "overhead", "baseline_overhead",
    "tokens_per_s", "tokens_per_step",
)  # fmt: skip
"""Columns that a narrow terminal leaves out, the first one first."""

_OVER_PLAIN, _OVER_BASELINE = ("speedup", "overhead"), ("baseline_speedup", "baseline_overhead")
"""Columns that compare with plain decoding at the same batch and length, and with a fixed baseline."""


def best_table(answer: SweepAnswer) -> TextTable:
    """One row for each batch and length: the best count and what it gives.

    Columns that say nothing here (one length, no throughput, everything fits) are left out.
    """
    fits = answer.fits
    worded: dict[str, list[str]] = {
        "near_best": [NOTHING if low == high else f"{span(low, high)}" for low, high in answer.near_best],
        "drafts": [str(value) if value else NOTHING for value in answer.column("drafts").tolist()],
        answer.gain: [times(value) for value, _, _ in answer.gains],
        "interval": [f"{low:.2f}-{high:.2f}" for _, low, high in answer.gains],
        "free_candidates": [free_text(int(free), answer.free) for free in answer.free.whole],
    }
    depth = depth_word(answer.scenario, chains=answer.best.configurations.are_chains)
    left_out = {
        *(["seq_len"] if answer.grid.seq_len.size == 1 else []),
        *(["fits_memory"] if all(fits) else []),
        *(_OVER_PLAIN if answer.scenario.baseline == "fixed" else _OVER_BASELINE),
        *(["step_speedup"] if answer.scenario.traffic is None else []),
    }
    columns: dict[str, list[str]] = {}
    for name in with_unlisted(_TABLE):
        if name in left_out or not BY_NAME[name].title:
            continue
        cells = worded.get(name) or [quantity_text(name, value) for value in answer.column(name).tolist()]
        is_always_shown = name in ("batch", "seq_len", "fits_memory")
        columns[depth if name == "drafts" else name] = [
            cell if here or is_always_shown else NOTHING for cell, here in zip(cells, fits, strict=True)
        ]
    return quantity_table(columns, words=("bound", "fits_memory"), expendable=_EXPENDABLE)


def free_text(count: int, free: FreeBudgets) -> str:
    """A free budget; `256+` where the search ended before it did."""
    return f"{count}+" if count >= free.largest else str(count)


def warnings(answer: SweepAnswer) -> list[str]:
    """Warnings, a line each: what does not fit, what is slower, what lies beyond measurements."""
    requests = int(answer.grid.batch.min()), int(answer.grid.batch.max())
    return [
        *([] if answer.shortfall is None else [missing_text(answer.shortfall)]),
        *slower_format_text(answer.by_count),
        *more_requests_text(answer.by_count),
        *([more_may_pay(answer.scenario)] if answer.best_ends_profile else []),
        *answer_doubts(answer.scenario, int(answer.grid.seq_len.max()), requests),
    ]
