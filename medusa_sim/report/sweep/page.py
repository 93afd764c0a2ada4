"""The report of a sweep: a page to print for each scenario; plots, rows, sources and caveats below it."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import numpy as np

from medusa_sim.arrays import evenly
from medusa_sim.grid.axes import Grid
from medusa_sim.grid.sweep import sweep
from medusa_sim.plan.sweep_answer import SweepAnswer, sweep_answer
from medusa_sim.report.blocks import Block, Folded, Heading, Picture, Text
from medusa_sim.report.charts.sweep import count_word, heat_map, speedup_chart, step_bars
from medusa_sim.report.figures.draw import bars_figure, lines_figure, map_figure
from medusa_sim.report.length_view import LengthView, length_view
from medusa_sim.report.screen_blocks import answer_page
from medusa_sim.report.sources import closing
from medusa_sim.report.sweep.screen import sweep_screen
from medusa_sim.report.table import TextTable
from medusa_sim.report.words.basis import how_sure
from medusa_sim.report.words.caveats import caveats
from medusa_sim.report.words.numbers import times
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
    title = f"How many candidates should {models} verify on {gpus}?"
    end = closing(scenarios, tuple(dict.fromkeys(caveats(scenarios, grid))), command)
    if len(answers) == 1:
        return answer_blocks(answers[0], title, end)
    blocks: list[Block] = [Heading(title, level=1), compared(answers)]
    blocks.append(Text("Best count and its speedup, by batch."))
    for answer in answers:
        set_up = f"{model_name(answer.scenario)} on {answer.scenario.gpus_text}"
        blocks += answer_blocks(answer, set_up, level=2)
    return blocks + end


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


def answer_blocks(
    answer: SweepAnswer, title: str, end: Sequence[Block] = (), *, level: int = 1
) -> list[Block]:
    """One scenario: its page, then plots of some lengths and its rows. end, level: as of `answer_page`."""
    scenario, grid = answer.scenario, answer.grid
    pictures: list[Block] = []
    if any(answer.fits):
        for seq_len in evenly(grid.seq_len, _MOST_LENGTHS).tolist():
            view = length_view(scenario, grid, seq_len, among=answer.counts)
            pictures += view_pictures(view, scenario, several=grid.seq_len.size > 1)
    first = next((block for block in pictures if isinstance(block, Picture)), None)
    return answer_page(
        title,
        sweep_screen(answer),
        picture=first,
        sure=how_sure(scenario, "", seq_len=int(grid.seq_len.max())),
        more=(*pictures[2:], Folded("Every row of the sweep", rows_table(scenario, grid))),
        end=end,
        level=level,
    )


def view_pictures(
    view: LengthView, scenario: Scenario, *, several: bool = False, chains: bool = False
) -> list[Block]:
    """The three plots of one length, each below its heading; several: whether other lengths follow.

    chains: count drafts and not candidates.
    """
    at = f"length {view.seq_len}"
    model, gpu = model_name(scenario), scenario.gpu.name
    stem, title = f"{gpu}-{model}", f"{model} on {gpu}, {at}"
    tail = f"-{view.seq_len}" if several else ""
    return [
        Heading(f"Speedup against {count_word(chains)}, {at}"),
        Picture(
            partial(lines_figure, speedup_chart(view, title, chains=chains)),
            f"speedup-{stem}{tail}",
            f"Rings: {view.marked}. Upright bars: cliffs, after which one more token costs at "
            "least 5 % more. Bands: 80 %, of the first and the last batch.",
        ),
        Heading(f"Where the time of a step goes, {at}"),
        Picture(
            partial(bars_figure, step_bars(view, title)),
            f"breakdown-{stem}{tail}",
            f"Each pair: plain decoding, and {view.marked}. The length is the overhead; the time stands at "
            "its end.",
        ),
        Heading(f"Batch and {count_word(chains)}, {at}"),
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
