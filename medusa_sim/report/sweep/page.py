"""The report of a sweep: the answer first, then plots, rows, sources and caveats."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import numpy as np

from medusa_sim.arrays import evenly
from medusa_sim.doubts.doubts import doubts
from medusa_sim.grid.axes import Grid
from medusa_sim.grid.sweep import sweep
from medusa_sim.plan.break_even import BreakEven
from medusa_sim.plan.sweep_answer import SweepAnswer, sweep_answer
from medusa_sim.report.blocks import Block, Cards, Folded, Heading, Picture, Text
from medusa_sim.report.charts.sweep import count_word, heat_map, speedup_chart, step_bars
from medusa_sim.report.figures.draw import bars_figure, lines_figure, map_figure
from medusa_sim.report.first_page import screen_blocks
from medusa_sim.report.length_view import LengthView, length_view
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


def report_blocks(settings: Sequence[Scenario], grid: Grid, command: str) -> list[Block]:
    """Every block of the report, in order."""
    gpus = ", ".join(dict.fromkeys(item.gpus_text for item in settings))
    models = ", ".join(dict.fromkeys(item.model.name for item in settings))
    title = f"How many candidates should {models} verify on {gpus}?"
    blocks: list[Block] = [Heading(title, level=1)]
    answers = [sweep_answer(item, grid) for item in settings]
    several = len(settings) > 1
    if several:
        blocks += [_compared(settings, answers), Text("Best count and its speedup, by batch.")]
    for item, answered in zip(settings, answers, strict=True):
        if several:
            blocks.append(Heading(f"{model_name(item)} on {item.gpus_text}"))
        blocks += _setting_blocks(item, answered, several)
    return blocks + closing(settings, tuple(dict.fromkeys(caveats(settings, grid))), command)


def _compared(settings: Sequence[Scenario], answers: Sequence[SweepAnswer]) -> TextTable:
    """A row a GPU and model, a column a batch, at the first length."""
    grid = answers[0].grid
    shown = evenly(np.arange(grid.batch.size), _MOST_BATCHES)
    rows = []
    for item, answered in zip(settings, answers, strict=True):
        counts, gains = (
            answered.column(name).reshape(grid.batch.size, -1)[:, 0].tolist()
            for name in ("candidates", answered.gain)
        )
        rows.append((item.gpus_text, model_name(item), *(f"{counts[i]}: {times(gains[i])}" for i in shown)))
    return TextTable(
        headers=("GPU", "model", *(f"batch {grid.batch[i]}" for i in shown)),
        rows=tuple(rows),
        right=(False, False, *(True for _ in shown)),
        title=f"length {grid.seq_len[0]}",
    )


def _setting_blocks(item: Scenario, answered: SweepAnswer, several: bool) -> list[Block]:
    level = 3 if several else 2
    grid = answered.grid
    first, then = screen_blocks(sweep_screen(answered, doubts(item)))
    if not any(answered.fits):
        return [*first, *then]
    blocks: list[Block] = [*first, Cards(_cards(answered)), *then]
    for seq_len in evenly(grid.seq_len, _MOST_LENGTHS):
        blocks += view_pictures(
            length_view(item, grid, int(seq_len)), item, level=level, several=grid.seq_len.size > 1
        )
    blocks.append(Folded("Every row of the sweep", rows_table(item, grid)))
    return blocks


def _cards(answered: SweepAnswer) -> tuple[tuple[str, str, str], ...]:
    """Cards: best count at the smallest, middle and largest batch, where it pays, the free budget."""
    grid = answered.grid
    column = {name: answered.column(name).tolist() for name in ("batch", "seq_len", "candidates")}
    lengths = grid.seq_len.size

    def best_card(batch: int) -> tuple[str, str, str]:
        place = batch * lengths
        at = f"batch {column['batch'][place]}, length {column['seq_len'][place]}"
        if column["candidates"][place] > 1:
            value, low, high = answered.gains[place]
            gain = f"{times(value)}, 80 %: {low:.2f} to {high:.2f}"
            return at, f"{column['candidates'][place]} candidates", gain
        return at, "do not speculate", "plain decoding is the fastest"

    at = f"length {grid.seq_len[0]}"
    pays = answered.break_evens[0]
    free = free_text(int(answered.free.whole[0]), answered.free)
    alone = free_text(int(answered.free.verification[0]), answered.free)
    remark = f"verification alone: {alone}; drafting adds {percent(answered.drafting_share)} first"
    return (
        *(best_card(batch) for batch in sorted({0, grid.batch.size // 2, grid.batch.size - 1})),
        (f"speculation pays for certain at, {at}", _pays_at(pays), f"it {break_even_text(pays, 'batch')}"),
        (
            f"free budget, batch {grid.batch[0]}, {at}",
            f"{free} token{'' if free == '1' else 's'}",
            remark if answered.drafting_share > 0.0 else "no drafter in this scope",
        ),
    )


def _pays_at(break_even: BreakEven) -> str:
    """The batches whose gain is certain: `batch 1..288`."""
    certain = [(known.first, known.last) for known in break_even.known if known.verdict == "pays"]
    return f"batch {spans_text(certain)}" if certain else "no batch"


def view_pictures(
    view: LengthView, item: Scenario, *, level: int, several: bool = False, chains: bool = False
) -> list[Block]:
    """The three plots of one length, each below its heading; several: whether other lengths follow.

    chains: count drafts and not candidates.
    """
    at = f"length {view.seq_len}"
    model = model_name(item)
    stem, title = f"{item.gpu.name}-{model}", f"{model} on {item.gpu.name}, {at}"
    tail = f"-{view.seq_len}" if several else ""
    return [
        Heading(f"Speedup against {count_word(chains)}, {at}", level),
        Picture(
            partial(lines_figure, speedup_chart(view, title, chains=chains)),
            f"speedup-{stem}{tail}",
            f"Rings: {view.marked}. Upright bars: cliffs, after which one more token costs at "
            "least 5 % more. Bands: 80 %.",
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


def rows_table(item: Scenario, grid: Grid) -> TextTable:
    """The rows of the sweep with the columns that differ, at most _MOST_ROWS of them."""
    rows = next(sweep([item], grid)).lists(_ROW_COLUMNS, _MOST_ROWS)
    title = "" if grid.rows <= _MOST_ROWS else f"the first {_MOST_ROWS} of {grid.rows} rows"
    return TextTable.of(rows, title)
