"""The report of a recommendation: a page to print with the answer and its curves, the details below it."""

from __future__ import annotations

import numpy as np

from medusa_sim.grid.axes import Grid
from medusa_sim.plan.recommendation import Recommendation
from medusa_sim.plan.schedule import scheduled_counts
from medusa_sim.report.blocks import Block, Folded, Picture
from medusa_sim.report.length_view import length_view
from medusa_sim.report.recommend.screen import recommend_screen
from medusa_sim.report.screen_blocks import answer_page
from medusa_sim.report.sources import closing
from medusa_sim.report.sweep.page import rows_table, view_pictures
from medusa_sim.report.words.basis import how_sure
from medusa_sim.report.words.caveats import caveats
from medusa_sim.report.words.numbers import span, times, times_between
from medusa_sim.report.words.scenario import model_name
from medusa_sim.scenario.defaults import DEFAULT_CANDIDATES


def recommend_blocks(answer: Recommendation, command: str) -> list[Block]:
    """A page to print and the details below it; plots mark what the schedule runs, at the first length."""
    scenario, surface = answer.scenario, answer.cells.surface
    length = int(surface.seq_len[0])
    picture: Picture | None = None
    others: list[Block] = []
    batch = surface.batch[answer.cells.fits[:, 0].any(axis=-1)]
    powers = 2 ** np.arange(20)
    batch = batch[np.isin(batch, powers) | (batch == batch[-1])] if batch.size else batch
    grid = Grid.of((int(surface.batch[0]),), (length,), DEFAULT_CANDIDATES)
    if batch.size:
        recommended = scheduled_counts(answer.rows_at(length))
        chosen = {int(size): recommended[int(size)] for size in batch}
        grid = Grid.of(tuple(chosen), (length,), sorted({*DEFAULT_CANDIDATES, *chosen.values()}))
        view = length_view(scenario, grid, length, chosen)
        plots = view_pictures(view, scenario, chains=answer.chains)
        picture = next(block for block in plots if isinstance(block, Picture))
        others = [*plots[2:], Folded("Every other count", rows_table(scenario, grid))]
    return answer_page(
        f"Does speculation pay for {model_name(scenario)} on {scenario.gpus_text}?",
        recommend_screen(answer),
        picture=picture,
        sure=_sure(answer),
        more=others,
        end=closing([scenario], tuple(dict.fromkeys(caveats([scenario], grid))), command),
    )


def _sure(answer: Recommendation) -> list[tuple[str, str]]:
    """The basis of the answer, with the speedup of the smallest batches that run drafts."""
    rows = [row for row in answer.schedule if row.fits_memory and row.candidates > 1]
    row = rows[0] if rows else answer.schedule[0]
    gain = times_between(row.speedup_lowest, row.speedup_highest)
    number = f"{gain} at batch {span(row.batch_min, row.batch_max)}"
    ends = f"{times(row.interval_low)} to {times(row.interval_high)}" if rows else ""
    return how_sure(answer.scenario, number, ends, seq_len=row.seq_len)
