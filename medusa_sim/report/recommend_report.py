"""The report of a recommendation: a page to print with the answer and its curves, the details below it."""

from __future__ import annotations

import numpy as np

from medusa_sim.arrays import among
from medusa_sim.plan.recommendation import Recommendation
from medusa_sim.plan.recommendation_at import scheduled_counts
from medusa_sim.report.caveats import caveats
from medusa_sim.report.charts.sweep import length_view
from medusa_sim.report.document import Block, Folded, Heading, screen_blocks
from medusa_sim.report.recommend_text import recommend_screen
from medusa_sim.report.scenario_text import model_name
from medusa_sim.report.sources import closing
from medusa_sim.report.sweep_report import rows_table, view_pictures
from medusa_sim.scenario.defaults import DEFAULT_CANDIDATES
from medusa_sim.step.workload import Grid


def recommend_blocks(answer: Recommendation, command: str) -> list[Block]:
    """A page to print and the details below it; plots mark what the schedule runs, at the first length."""
    scenario, surface = answer.scenario, answer.cells.surface
    length = int(surface.seq_len[0])
    first, then = screen_blocks(recommend_screen(answer))
    title = Heading(f"Does speculation pay for {model_name(scenario)} on {scenario.cards}?", level=1)
    blocks: list[Block] = [title, *first]
    batch = surface.batch[answer.cells.fits[:, 0].any(axis=-1)]
    powers = 2 ** np.arange(20)
    batch = batch[among(batch, powers) | (batch == batch[-1])] if batch.size else batch
    grid = Grid.of((int(surface.batch[0]),), (length,), DEFAULT_CANDIDATES)
    if batch.size:
        recommended = scheduled_counts(answer, length)
        chosen = {int(size): recommended[int(size)] for size in batch}
        grid = Grid.of(tuple(chosen), (length,), sorted({*DEFAULT_CANDIDATES, *chosen.values()}))
        view = length_view(scenario, grid, length, chosen)
        _, picture, *others = view_pictures(view, scenario, level=2, chains=answer.chains)
        blocks += [picture, *then, Heading(f"Where the time of a step goes, length {length}", page=True)]
        blocks += others[1:]
        blocks.append(Folded("Every count beside it", rows_table(scenario, grid)))
    else:
        blocks += then
    return blocks + closing([scenario], tuple(dict.fromkeys(caveats([scenario], grid))), command)
