"""A sweep for people: the answer, a line for each batch and length, facts about it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from medusa_sim.doubts.of_scenario import scenario_doubts
from medusa_sim.grid.axes import Grid
from medusa_sim.plan.count_curves import NEAR_BEST
from medusa_sim.plan.sweep_answer import SweepAnswer
from medusa_sim.report.screen import Fact, Screen
from medusa_sim.report.sweep.sentences import (
    answer_text,
    better_text,
    by_batch,
    engine_text,
    row_text,
)
from medusa_sim.report.sweep.tables import best_table, free_text
from medusa_sim.report.sweep.warnings import warnings
from medusa_sim.report.words.cost import COST_COLUMNS, cost_facts
from medusa_sim.report.words.memory import memory_text, missing_text, shortfall_facts
from medusa_sim.report.words.numbers import batch_text, counted, percent
from medusa_sim.report.words.scenario import (
    acceptance_facts,
    asked_text,
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
