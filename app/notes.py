"""Sentences and files that several pages show, from the same code as the command line's reports."""

from __future__ import annotations

from typing import TYPE_CHECKING

import downloads
from chosen import PageArguments

from medusa_sim.doubts.of_scenario import scenario_doubts
from medusa_sim.export.engines import METHODS as ENGINE_METHODS
from medusa_sim.report.recommend.warnings import warnings as recommend_warnings
from medusa_sim.report.words.numbers import percent

if TYPE_CHECKING:
    from medusa_sim.plan.recommendation import Recommendation
    from medusa_sim.plan.schedule_row import ScheduleRow
    from medusa_sim.scenario.scenario import Scenario


def accuracy(scenario: Scenario) -> str:
    """How wrong linear layers of a scenario are predicted, and who lent them."""
    gpu, dtype, fit = scenario.gpu, scenario.model.dtype, scenario.kernel_fits.linear
    if fit is None:
        return f"{gpu.name} has no fitted linear layers of its own for {dtype}."
    if fit.is_borrowed(gpu.name):
        return (
            f"{gpu.name} was not measured: kernels are borrowed from {fit.inherited_from}, where shapes kept "
            f"back are off by {percent(fit.heldout_error)}; expect more."
        )
    return (
        f"Linear layers of {gpu.name}: off by {percent(fit.fit_error)} on {fit.rows:,} measured rows, by "
        f"{percent(fit.heldout_error)} on held-out shapes."
    )


def drafts(row: ScheduleRow) -> str:
    """`3 drafts` of a chain, `3 drafts deep` of a tree."""
    one = "1 draft" if row.drafts == 1 else f"{row.drafts} drafts"
    return one if row.chain else f"{one} deep"


def warnings(answer: Recommendation) -> list[str]:
    """What `recommend` warns of: what the number itself rests on first, then the rest."""
    beside = scenario_doubts(answer.scenario)
    return sorted(recommend_warnings(answer), key=lambda line: line not in beside)


def needs_checkpoint(set_up: PageArguments) -> bool:
    """Whether launch settings name the drafter's weights."""
    method = ENGINE_METHODS.get(set_up.export, {}).get(set_up.drafter)
    return method is not None and method.checkpoint


def schedule_files(set_up: PageArguments, answer: Recommendation, command: str) -> list[downloads.Download]:
    """The schedule in full precision, what `recommend --format json` writes, the report of a known model."""
    from medusa_sim.report.recommend.python import recommendation_json, schedule_arrow

    files: list[downloads.Download] = [
        ("csv", "text/csv", lambda: downloads.csv_bytes(schedule_arrow(answer))),
        ("json", "application/json", lambda: recommendation_json(answer, command)),
    ]
    if set_up.config is None:
        files.append(("html", "text/html", lambda: report_html(set_up, answer, command)))
    return files


def report_html(set_up: PageArguments, answer: Recommendation, command: str) -> str:
    """The answer with its schedule, plots and sources, in one page."""
    from medusa_sim.report.document import html_page
    from medusa_sim.report.recommend.page import recommend_blocks

    return html_page(f"medusa-sim: {set_up.title}", recommend_blocks(answer, command))
