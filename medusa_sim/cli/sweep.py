"""`medusa-sim sweep`: speedup, tokens per step, overhead, throughput and memory over a grid."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from itertools import chain
from typing import TYPE_CHECKING, Any

import click

from medusa_sim.cli import options as take
from medusa_sim.cli import say, warn
from medusa_sim.cli.output import Output, ReportPlace
from medusa_sim.cli.parts import PartsPlace, write_parts
from medusa_sim.cli.values import BATCH, CANDIDATES, GPUS, MODELS, TP, echo_grid, grid
from medusa_sim.errors import UsageError
from medusa_sim.scenario.defaults import DEFAULT_CANDIDATES

if TYPE_CHECKING:
    from medusa_sim.grid.axes import Grid
    from medusa_sim.report.screen import Screen
    from medusa_sim.scenario.scenario import Scenario

LEAST_READ = (
    "watts", "itl_us", "verify_only_us", "verify_low_us", "verify_high_us", "joule_per_token", "tpot_us",
    "memory_bytes", "bound", "source", "decode_step_us", "tokens_per_s_per_user", "usd_per_million_tokens",
)  # fmt: skip
"""Columns of rows that a table leaves out first."""
_MOST_ROWS_SHOWN = 20_000
_MOST_CASES_SHOWN = 2_000


@take.command(
    "medusa-sim sweep --batch 1..64",
    "medusa-sim sweep --gpu a100-80gb-pcie,h100-sxm --model llama-3-8b --batch 1..64 --seq 1024..8192",
    "medusa-sim sweep --batch 1..64:1 --candidates 1..128 --format csv -o sweep.csv",
    "medusa-sim sweep --batch 1..1024:1 --seq 128..131072:128 --out grid --shard 3/8",
)
@take.scenario("given", lists={"gpu": GPUS, "model": MODELS, "tp": grid(TP)})
@click.option("--batch", default="1", show_default=True, type=grid(BATCH), help="Sequences in a batch.")
@take.lengths
@click.option(
    "--candidates",
    default=",".join(map(str, DEFAULT_CANDIDATES)),
    show_default=True,
    type=grid(CANDIDATES),
    help="Tokens that one verification step processes per sequence, root included.",
)
@click.option(
    "--all-rows", is_flag=True, help="In a table and with --out: every row, not the best of each batch."
)
@take.record("report", ReportPlace)
@take.record("parts", PartsPlace)
@take.output
def sweep(
    *,
    given: dict[str, Any],
    batch: tuple[int, ...],
    seq_len: tuple[int, ...],
    candidates: tuple[int, ...],
    all_rows: bool,
    report: ReportPlace,
    parts: PartsPlace,
    output: Output,
) -> None:
    """Speedup of speculative verification over a grid of GPUs, models, --tp, batches, lengths and counts.

    A table shows the best candidates of each batch and length; --format csv, json, md and parquet carry
    every row, written as they are computed. --out writes parts of a data set, for grids of any size and any
    number of processes.
    """
    from medusa_sim.doubts.of_answer import answer_doubts
    from medusa_sim.doubts.of_scenario import scenario_doubts
    from medusa_sim.grid.axes import Grid

    parts.check(output)
    several = take.scenarios(given)
    grid = Grid.of(batch, several[0].lengths(seq_len), candidates)
    typed = take.is_given("candidates")
    in_rows = output.form != "table" or all_rows or parts.out is not None
    asked = [(scenario, left_out(scenario, grid) if typed else []) for scenario in several]
    warnings: dict[str, None] = {}
    if in_rows:  # a table of the best says it itself
        largest, longest = int(grid.candidates.max()), int(grid.seq_len.max())
        requests = int(grid.batch.min()), int(grid.batch.max())
        doubts = [line for scenario, left in asked for line in (*scenario_doubts(scenario, largest), *left)]
        doubts += [line for scenario in several for line in answer_doubts(scenario, longest, requests)]
        warnings = dict.fromkeys(doubts)
    if parts.out is not None:
        _write_parts(parts, several, grid, warnings, all_rows=all_rows)
    elif output.form == "table" and not all_rows:
        _show_best(output, asked, grid, grid_alone=typed)
    else:
        _write_rows(output, several, grid, warnings)
    if report.folder is not None:
        from medusa_sim.cli.output import command_line
        from medusa_sim.report.sweep.page import report_blocks

        report.write(report_blocks(several, grid, command_line(), grid_alone=typed))


def warned_once(screens: Sequence[Screen]) -> list[Screen]:
    """Several answers; warnings that all of them share stand in the last alone."""
    *before, last = screens
    shared = set.intersection(*(set(screen.warnings) for screen in screens))
    kept = [
        replace(screen, warnings=tuple(line for line in screen.warnings if line not in shared))
        for screen in before
    ]
    return [*kept, last]


def left_out(scenario: Scenario, grid: Grid) -> list[str]:
    """A line for counts of the grid that the scenario's acceptance does not describe."""
    kept = scenario.covered(grid.candidates)
    missing = [count for count in grid.candidates.tolist() if count not in kept]
    if not missing:
        return []
    listed = ", ".join(map(str, missing[:8])) + (", ..." if len(missing) > 8 else "")
    shape = "chains" if scenario.chain_only else "chains or trees"
    text = (
        f"candidates {listed} left out: acceptance {scenario.profile.name} with drafter "
        f"{scenario.drafting.method} describes no {shape} of so many"
    )
    return [f"{text}; {scenario.where_trees_run}" if scenario.where_trees_run else text]


def rows_of(scenarios: Sequence[Scenario], grid: Grid) -> int:
    """Rows that a grid has: counts that a scenario's acceptance does not describe have none."""
    cases = grid.batch.size * grid.seq_len.size
    return cases * sum(scenario.covered(grid.candidates).size for scenario in scenarios)


def _echo(
    scenarios: Sequence[Scenario], grid: Grid, warnings: Iterable[str], prices: Iterable[str] = ()
) -> None:
    """Print doubts about scenarios and the meaning of grids, once all arguments are known to be right."""
    warn(warnings)
    for line in prices:
        say(line)
    kept = {count for scenario in scenarios for count in scenario.covered(grid.candidates).tolist()}
    candidates = [count for count in grid.candidates.tolist() if count in kept]
    echo_grid(batch=grid.batch.tolist(), seq_len=grid.seq_len.tolist(), candidates=candidates)


def _write_rows(output: Output, scenarios: tuple[Scenario, ...], grid: Grid, warnings: Iterable[str]) -> None:
    """Every row, chunk by chunk."""
    from medusa_sim.cli.progress import count_rows
    from medusa_sim.grid.sweep import sweep as tables
    from medusa_sim.report.sources import sources
    from medusa_sim.report.words.cost import price_lines

    rows = rows_of(scenarios, grid)
    if output.form == "table" and rows > _MOST_ROWS_SHOWN:
        raise UsageError(
            f"{rows:,} rows are too many for a table; choose --format csv or parquet with -o FILE"
        )
    chunks = iter(count_rows((table.arrow() for table in tables(scenarios, grid)), rows, "rows"))
    first = next(chunks)
    _echo(scenarios, grid, warnings, price_lines(scenarios))
    output.rows(
        chain([first], chunks), "sweep", LEAST_READ, sources=sources(scenarios), warnings=list(warnings)
    )


def _write_parts(
    place: PartsPlace, scenarios: tuple[Scenario, ...], grid: Grid, warnings: Iterable[str], *, all_rows: bool
) -> None:
    """Parts of a data set in a folder."""
    from medusa_sim.parts.works import SweepParts
    from medusa_sim.report.words.cost import price_lines

    work = SweepParts.of(scenarios, grid, all_rows=all_rows)
    _echo(scenarios, grid, warnings, price_lines(scenarios))
    write_parts(work, place)


def _show_best(
    output: Output, asked: Sequence[tuple[Scenario, Sequence[str]]], grid: Grid, *, grid_alone: bool
) -> None:
    """One line per batch and length with the best count, and below it what follows from them.

    asked: scenarios, each with what is left out of its answer. grid_alone: whether the counts were asked for.
    """
    from medusa_sim.plan.sweep_answer import sweep_answer
    from medusa_sim.report.sweep.screen import sweep_screen

    cases = grid.batch.size * grid.seq_len.size * len(asked)
    if cases > _MOST_CASES_SHOWN:
        raise UsageError(
            f"{cases:,} batches and lengths are too many for a table; choose --format csv or -o FILE.parquet"
        )
    several = len(asked) > 1
    screens = [
        sweep_screen(sweep_answer(one, grid, grid_alone=grid_alone), warned, several=several)
        for one, warned in asked
    ]
    output.screens(warned_once(screens))
