"""The report of a comparison: a page to print with answer, chart and costs; the details below it."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from pathlib import Path

from medusa_sim.grid.quantity import BY_NAME
from medusa_sim.report.blocks import Block, Folded, Heading, Picture
from medusa_sim.report.charts.setups import Y_TITLES, banded, left_out, setups_chart
from medusa_sim.report.compare.screen import OF_THE_DECISION, compare_screen, decision_table
from medusa_sim.report.compare.sentences import speed_texts
from medusa_sim.report.figures.draw import lines_figure
from medusa_sim.report.screen_blocks import answer_page
from medusa_sim.report.sources import closing
from medusa_sim.report.table import TextTable
from medusa_sim.report.words.basis import how_sure
from medusa_sim.setups.comparison import Comparison

_TRUST = (
    "Steps are those of `sweep` for the same scenario; DeepSeek-R1 as served errs by 7 to 20 % in time per "
    "token (docs/validation-engines.md), and a set-up is chosen with that error.",
    "Every copy is taken as full and steady: bursts and queues are what `medusa-sim load` simulates.",
    "Other precisions are other weights: whether they answer as well as the published ones is not priced.",
)


def compare_blocks(answer: Comparison, command: str) -> list[Block]:
    """Every block of the report, in order."""
    import pyarrow as pa

    every = pa.Table.from_pandas(answer.best, preserve_index=False)
    screen = compare_screen(answer)
    others = [
        _picture(answer, column)
        for column in Y_TITLES
        if column != answer.column and answer.table[column].notna().any()
    ]
    rows = [row for row in (answer.chosen, answer.chosen_plain) if row is not None]
    used = [answer.scenario(row) for row in rows] or list(answer.scenarios.values())[:1]
    decided = decision_table(answer)
    facts = [fact for fact in screen.facts if fact.label not in OF_THE_DECISION]
    return answer_page(
        f"Which set-up for {Path(answer.model.name).name}?",
        replace(screen, tables=(decided, *screen.tables), facts=tuple(facts)),
        picture=_picture(answer, answer.column),
        sure=_sure(answer),
        more=(
            Heading("The same set-ups by what else counts"),
            *others,
            Folded("Every set-up and batch", TextTable.rounded(every.to_pydict())),
        ),
        end=closing(used, _TRUST, command),
    )


def _sure(answer: Comparison) -> list[tuple[str, str]]:
    """Basis of the choice; empty where no set-up keeps the limits."""
    row = answer.chosen
    if row is None:
        return []
    speed, low, high = speed_texts(row)
    number = f"{speed} {BY_NAME['tokens_per_s_per_user'].on_axis}"
    return how_sure(answer.scenario(row), number, f"{low} to {high}", plain=not row["drafts"])


def _picture(answer: Comparison, column: str) -> Picture:
    caption = (
        f"{Y_TITLES[column]} against tokens/s a user: what nothing beats of each GPU, solid with "
        f"speculation, dotted without; {banded(answer)}, points named by requests / drafts, the chosen one "
        "ringed."
        f"{left_out(answer, column)}"
    )
    return Picture(partial(lines_figure, setups_chart(answer, column), height=5.0), column, caption)
