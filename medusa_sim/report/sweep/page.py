"""The report of a sweep: the answer first, then plots, rows, sources and caveats."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import numpy as np

from medusa_sim.arrays import evenly
from medusa_sim.grid.axes import Grid
from medusa_sim.grid.sweep import sweep
from medusa_sim.plan.break_even import BreakEven
from medusa_sim.plan.sweep_answer import SweepAnswer, sweep_answer
from medusa_sim.report.blocks import Block, Cards, Folded, Heading, Picture, Text
from medusa_sim.report.charts.sweep import count_word, heat_map, speedup_chart, step_bars
from medusa_sim.report.figures.draw import bars_figure, lines_figure, map_figure
from medusa_sim.report.length_view import LengthView, length_view
from medusa_sim.report.screen_blocks import screen_blocks
from medusa_sim.report.sources import closing
from medusa_sim.report.sweep.screen import sweep_screen
from medusa_sim.report.sweep.tables import free_text
from medusa_sim.report.table import TextTable
from medusa_sim.report.words.break_even import break_even_text
from medusa_sim.report.words.caveats import caveats
from medusa_sim.report.words.numbers import percent, spans_text, times
from medusa_sim.report.words.scenario import model_name
from medusa_sim.scenario.scenario import Scenario

_MOST_LENGTHS = 3
_MOST_BATCHES = 8
_MOST_ROWS = 2_000
_ROW_COLUMNS = (
    "batch", "seq_len", "candidates", "tokens_per_step", "overhead", "speedup", "speedup_low", "speedup_high",
    "decode_step_us", "verify_step_us", "tokens_per_s", "bound", "source", "memory_bytes", "fits_memory",
)  # fmt: skip


def report_blocks(
    scenarios: Sequence[Scenario], grid: Grid, command: str, *, grid_alone: bool = False
) -> list[Block]:
    """Every block of the report, in order. grid_alone: whether it is about the grid's counts alone."""
    answers = [sweep_answer(scenario, grid, grid_alone=grid_alone) for scenario in scenarios]
    gpus = ", ".join(dict.fromkeys(scenario.gpus_text for scenario in scenarios))
    models = ", ".join(dict.fromkeys(scenario.model.name for scenario in scenarios))
    blocks: list[Block] = [Heading(f"How many candidates should {models} verify on {gpus}?", level=1)]
    if len(answers) == 1:
        blocks += answer_blocks(answers[0], level=2)
    else:
        blocks += [compared(answers), Text("Best count and its speedup, by batch.")]
        for answer in answers:
            blocks += [Heading(set_up_text(answer)), *answer_blocks(answer, level=3)]
    return blocks + closing(scenarios, tuple(dict.fromkeys(caveats(scenarios, grid))), command)


def set_up_text(answer: SweepAnswer) -> str:
    """`llama-3-8b bf16 on h100-sxm`."""
    return f"{model_name(answer.scenario)} on {answer.scenario.gpus_text}"


def compared(answers: Sequence[SweepAnswer]) -> TextTable:
    """A row a GPU and model, a column a batch, at the first length."""
    grid = answers[0].grid
    shown = evenly(np.arange(grid.batch.size), _MOST_BATCHES)
    columns: dict[str, list[str]] = {
        "GPU": [answer.scenario.gpus_text for answer in answers],
        "model": [model_name(answer.scenario) for answer in answers],
        **{f"batch {grid.batch[b]}": [_best_text(answer, b) for answer in answers] for b in shown},
    }
    return TextTable.by_column(columns, words=("GPU", "model"), title=f"length {grid.seq_len[0]}")


def _best_text(answer: SweepAnswer, b: int) -> str:
    """`12: 1.84x`: the best count at a batch and the first length."""
    count, gain = (
        answer.column(name).reshape(answer.grid.batch.size, -1)[b, 0].item()
        for name in ("candidates", answer.gain)
    )
    return f"{count}: {times(gain)}"


def answer_blocks(answer: SweepAnswer, *, level: int) -> list[Block]:
    """One scenario: its answer, cards, plots of some lengths below headings of a level, its rows."""
    scenario, grid = answer.scenario, answer.grid
    first, then = screen_blocks(sweep_screen(answer))
    if not any(answer.fits):
        return [*first, *then]
    blocks: list[Block] = [*first, Cards(cards(answer)), *then]
    for seq_len in evenly(grid.seq_len, _MOST_LENGTHS).tolist():
        view = length_view(scenario, grid, seq_len, among=answer.counts)
        blocks += view_pictures(view, scenario, level=level, several=grid.seq_len.size > 1)
    blocks.append(Folded("Every row of the sweep", rows_table(scenario, grid)))
    return blocks


def cards(answer: SweepAnswer) -> tuple[tuple[str, str, str], ...]:
    """Cards: best count at the smallest, middle and largest batch, where it pays, the free budget."""
    grid = answer.grid
    at, break_even = f"length {grid.seq_len[0]}", answer.break_evens[0]
    free = free_text(int(answer.free.whole[0]), answer.free)
    alone = free_text(int(answer.free.verification[0]), answer.free)
    remark = f"verification alone: {alone}; drafting adds {percent(answer.drafting_share)} first"
    return (
        *(best_card(answer, b) for b in sorted({0, grid.batch.size // 2, grid.batch.size - 1})),
        (
            f"speculation pays for certain, {at}",
            pays_at(break_even),
            f"it {break_even_text(break_even, 'batch')}",
        ),
        (
            f"free budget, batch {grid.batch[0]}, {at}",
            f"{free} token{'' if free == '1' else 's'}",
            remark if answer.drafting_share > 0.0 else "no drafter in this scope",
        ),
    )


def best_card(answer: SweepAnswer, b: int) -> tuple[str, str, str]:
    """The best count at a batch and the first length."""
    grid, row = answer.grid, b * answer.grid.seq_len.size
    at, count = f"batch {grid.batch[b]}, length {grid.seq_len[0]}", int(answer.column("candidates")[row])
    if not answer.column("fits_memory")[row]:
        return at, "no room", "it does not fit even without speculation"
    if count == 1:
        return at, "do not speculate", "plain decoding is the fastest"
    gain, low, high = answer.gains[row]
    return at, f"{count} candidates", f"{times(gain)}, 80 %: {low:.2f} to {high:.2f}"


def pays_at(break_even: BreakEven) -> str:
    """The batches whose gain is certain: `batch 1..288`."""
    certain = [(stretch.first, stretch.last) for stretch in break_even.known if stretch.verdict == "pays"]
    return f"batch {spans_text(certain)}" if certain else "no batch"


def view_pictures(
    view: LengthView, scenario: Scenario, *, level: int, several: bool = False, chains: bool = False
) -> list[Block]:
    """The three plots of one length, each below its heading; several: whether other lengths follow.

    chains: count drafts and not candidates.
    """
    at = f"length {view.seq_len}"
    model, gpu = model_name(scenario), scenario.gpu.name
    stem, title = f"{gpu}-{model}", f"{model} on {gpu}, {at}"
    tail = f"-{view.seq_len}" if several else ""
    return [
        Heading(f"Speedup against {count_word(chains)}, {at}", level),
        Picture(
            partial(lines_figure, speedup_chart(view, title, chains=chains)),
            f"speedup-{stem}{tail}",
            f"Rings: {view.marked}. Upright bars: cliffs, after which one more token costs at "
            "least 5 % more. Bands: 80 %, of the first and the last batch.",
        ),
        Heading(f"Where the time of a step goes, {at}", level),
        Picture(
            partial(bars_figure, step_bars(view, title)),
            f"breakdown-{stem}{tail}",
            f"Each pair: plain decoding, and {view.marked}. The length is the overhead; the time stands at "
            "its end.",
        ),
        Heading(f"Batch and {count_word(chains)}, {at}", level),
        Picture(
            partial(map_figure, heat_map(view, title, chains=chains)),
            f"heat-{stem}{tail}",
            f"Framed: {view.marked}. Red line: beyond it speculation loses. A dash: no room in memory.",
        ),
    ]


def rows_table(scenario: Scenario, grid: Grid) -> TextTable:
    """The rows of the sweep with the columns that differ, at most _MOST_ROWS of them."""
    rows = next(sweep([scenario], grid)).lists(_ROW_COLUMNS, _MOST_ROWS)
    title = "" if grid.rows <= _MOST_ROWS else f"the first {_MOST_ROWS} of {grid.rows} rows"
    return TextTable.rounded(rows, title)
