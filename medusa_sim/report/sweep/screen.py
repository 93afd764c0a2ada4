"""A sweep for people: the answer, a line for each batch and length, facts behind it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from medusa_sim.doubts.beyond import beyond_measured
from medusa_sim.grid.axes import Grid
from medusa_sim.grid.cells import Cells
from medusa_sim.plan.counts import NEAR_BEST
from medusa_sim.plan.sweep_answer import SweepAnswer
from medusa_sim.report.screen import Fact, Screen
from medusa_sim.report.sweep.tables import best_table, free_text
from medusa_sim.report.words.break_even import break_even_text
from medusa_sim.report.words.caveats import more_may_pay, more_requests_text, slower_format_text
from medusa_sim.report.words.cost import COST_COLUMNS, Costs, cost_facts
from medusa_sim.report.words.memory import memory_text, missing_text, shortfall_facts
from medusa_sim.report.words.numbers import counted, drafts_text, percent, times
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

    warned: what the scenario rests on. several: whether it is one of several.
    """
    asked = headline(answer.scenario, answer.grid)
    shortfall = answer.shortfall
    lacking = () if shortfall is None else tuple(shortfall_facts(shortfall))
    if shortfall is not None and not any(answer.fits):
        return Screen(asked=asked, answer=(missing_text(shortfall),), facts=lacking, warnings=tuple(warned))
    told = [*lacking, *facts(answer)]
    if several:
        told = [replace(fact, detail=fact.detail or fact.label in _OF_ONE) for fact in told]
    return Screen(
        asked=asked,
        answer=(answer_text(answer),),
        tables=(best_table(answer),),
        facts=tuple(told),
        warnings=tuple(dict.fromkeys((*warned, *warnings(answer)))),
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


def answer_text(answer: SweepAnswer) -> str:
    """The gain at the first and the last batch and length that fit, or that there is none."""
    counts, batch, length = (answer.column(name).tolist() for name in ("candidates", "batch", "seq_len"))
    places = [place for place, fits in enumerate(answer.fits) if fits]
    if all(counts[place] == 1 for place in places):
        return "Speculation gives no gain at any of these batches and lengths."
    several, chains = answer.grid.seq_len.size > 1, answer.best.configurations.are_chains
    gains = [
        (f"{times(answer.gains[place][0])} with {counted(counts[place], chains)}" if counts[place] > 1
         else "no gain")
        + f" at batch {batch[place]}" + (f", length {length[place]}" if several else "")
        for place in dict.fromkeys((places[0], places[-1]))
    ]  # fmt: skip
    return f"Speculation gives {' and '.join(gains)}."


def by_batch(answer: SweepAnswer) -> list[str]:
    """At which batches speculation pays, a text a length."""
    several = answer.grid.seq_len.size > 1
    return [
        break_even_text(break_even, "batch") + (f" at length {answer.grid.seq_len[place]}" if several else "")
        for place, break_even in enumerate(answer.break_evens)
    ]


def facts(answer: SweepAnswer) -> Iterator[Fact]:
    """Facts that follow from the grid."""
    several = answer.grid.seq_len.size > 1
    yield from (Fact("By batch", text) for text in by_batch(answer))
    yield from acceptance_facts(answer.scenario)
    yield from standing_fact(answer.scenario)
    yield from _listed_counts(answer)
    yield from engine_fact(answer.in_engine)
    yield from _memory(answer)
    yield from _costs(answer)
    yield from _columns(answer)
    for pair in answer.cheaper[:_MOST_HINTS]:
        at = f"(batch {pair.batch}{f', length {pair.seq_len}' if several else ''})"
        yield Fact(
            "Cheaper", f"{pair.larger} candidates take less time than {pair.smaller} {at}", detail=True
        )
    yield from kernel_facts(answer.scenario)
    yield Fact("Next", "--all-rows or --format csv: a row for each count; --report DIR: a page with charts")


def warnings(answer: SweepAnswer) -> list[str]:
    """Warnings, besides the doubts about the scenario."""
    requests = int(answer.grid.batch.min()), int(answer.grid.batch.max())
    return [
        *([] if answer.shortfall is None else [missing_text(answer.shortfall)]),
        *slower_format_text(answer.by_count),
        *more_requests_text(answer.by_count),
        *([more_may_pay(answer.scenario)] if answer.ends_profile else []),
        *beyond_measured(answer.scenario, int(answer.grid.seq_len.max()), requests),
    ]


def engine_fact(best: Cells | None) -> Iterator[Fact]:
    """Gain in the engine that runs this drafter, at the first and the last batch."""
    if best is None:
        return
    surface = best.surface
    several = surface.seq_len.size > 1
    ends = [
        f"{times(float(best.speedup[i, s, 0]))} with {drafts_text(int(best.candidates_at(i, s)))} at batch "
        f"{surface.batch[i]}" + (f", length {surface.seq_len[s]}" if several else "")
        for i, s in dict.fromkeys([(0, 0), (best.shape[0] - 1, best.shape[1] - 1)])
        if best.fits[i, s, 0]
    ]
    if ends:
        name = best.scenario.runtime.name
        yield Fact("Engine", f"{name} runs no trees (--runtime vllm); its chain gives {', '.join(ends)}")


def _costs(answer: SweepAnswer) -> Iterator[Fact]:
    """Cost of tokens at the first and the last batch and length."""
    several = answer.grid.seq_len.size > 1
    names = ("batch", "seq_len", *COST_COLUMNS)
    rows = zip(answer.fits, *(answer.column(name).tolist() for name in names), strict=True)
    return cost_facts(
        answer.scenario,
        [
            Costs(f"batch {size}" + (f", length {length}" if several else ""), *cost)
            for fits, size, length, *cost in rows
            if fits
        ],
    )


def _memory(answer: SweepAnswer) -> Iterator[Fact]:
    """How many requests fit, and what the largest batch of the grid that fits keeps on a GPU."""
    if answer.scenario.scope == "block":
        return
    place = max(range(len(answer.fits)), key=lambda at: (answer.fits[at], answer.column("batch")[at]))
    parts, most = answer.memory(place)
    batch, length, count = (int(answer.column(name)[place]) for name in ("batch", "seq_len", "candidates"))
    room = answer.scenario.usable_memory_bytes / GIGA
    candidates = counted(count, answer.best.configurations.are_chains)
    yield Fact(
        "Memory",
        f"{most} requests fit with {candidates} at length {length}",
    )
    yield Fact(
        "Memory use", f"{memory_text(parts)} of {room:,.1f} on a GPU at batch {batch}, length {length}",
        detail=True,
    )  # fmt: skip


def _listed_counts(answer: SweepAnswer) -> Iterator[Fact]:
    """The best of the counts in --candidates, where the best of all is another."""
    listed = answer.best_on_grid
    gains = answer.column(answer.gain, listed).tolist()
    names = ("candidates", "batch", "seq_len")
    counts, batch, length = (answer.column(name, listed).tolist() for name in names)
    several = answer.grid.seq_len.size > 1
    told = [
        f"{counts[i]} at batch {batch[i]}" + (f", length {length[i]}" if several else "")
        + f" ({times(gains[i])})"
        for i, best in enumerate(answer.column("candidates").tolist())
        if answer.fits[i] and counts[i] != best
    ]  # fmt: skip
    if told:
        ends = " and ".join(dict.fromkeys((told[0], told[-1])))
        yield Fact("Other counts", f"of the counts in --candidates, the best is {ends}")


def _columns(answer: SweepAnswer) -> Iterator[Fact]:
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
