"""The report of a recommendation: the decision and its schedule first, then plots, sources and caveats."""

from __future__ import annotations

import numpy as np

from medusa_sim import __version__
from medusa_sim.arrays import among
from medusa_sim.plan.defaults import DEFAULT_CANDIDATES
from medusa_sim.plan.recommend import scheduled_counts
from medusa_sim.plan.recommendation import Recommendation
from medusa_sim.report.caveats import caveats
from medusa_sim.report.document import Block, Bullets, Folded, Heading, Text
from medusa_sim.report.recommend_reason import reason, warnings
from medusa_sim.report.recommend_text import findings, headline, schedule_table
from medusa_sim.report.sweep_report import rows_table, source_tables, title_of, view_pictures
from medusa_sim.report.sweep_views import length_view
from medusa_sim.step.workload import Grid


def recommend_blocks(answer: Recommendation, command: str) -> list[Block]:
    """Every block of the report, in order; plots mark what the schedule runs, at the first length."""
    scenario, surface = answer.scenario, answer.surface
    length = int(surface.seq_len[0])
    blocks: list[Block] = [
        Heading(title_of([scenario]), level=1),
        Text(headline(answer), lead=True),
        Text(reason(answer)),
        schedule_table(answer),
        Bullets((*warnings(answer), *findings(answer))),
    ]
    batch = surface.batch[surface.fits[:, 0].any(axis=-1)]
    powers = 2 ** np.arange(20)
    batch = batch[among(batch, powers) | (batch == batch[-1])] if batch.size else batch
    grid = Grid.of((int(surface.batch[0]),), (length,), DEFAULT_CANDIDATES)
    if batch.size:
        recommended = scheduled_counts(answer, length)
        chosen = {int(size): recommended[int(size)] for size in batch}
        grid = Grid.of(tuple(chosen), (length,), sorted({*DEFAULT_CANDIDATES, *chosen.values()}))
        blocks += view_pictures(length_view(scenario, grid, length, chosen), scenario, level=2)
        blocks.append(Folded("Every count beside it", rows_table(scenario, grid)))
    return [
        *blocks,
        Heading("Sources"),
        *source_tables([scenario]),
        Heading("How far to trust this"),
        Bullets(tuple(dict.fromkeys(caveats([scenario], grid)))),
        Text(f"medusa-sim {__version__}, `{command}`", lead=True),
    ]
