"""Sentences and files that several pages show, from the same code as the command line's reports."""

from __future__ import annotations

import json
import shlex
from collections.abc import Callable
from typing import TYPE_CHECKING

from chosen import SetUp

from medusa_sim import __version__
from medusa_sim.export.names import METHODS as ENGINE_METHODS
from medusa_sim.report.numbers import percent
from medusa_sim.report.recommend_warnings import warnings as recommend_warnings

if TYPE_CHECKING:
    import pyarrow as pa

    from medusa_sim.plan.recommendation import Recommendation
    from medusa_sim.plan.scenario import Scenario
    from medusa_sim.plan.schedule_row import ScheduleRow


def accuracy(scenario: Scenario) -> str:
    """How wrong linear layers of this GPU are predicted, and who lent them."""
    gpu, dtype = scenario.gpu, scenario.model.dtype
    fit = scenario.linear_fit
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


def provenance(answer: Recommendation) -> list[str]:
    """What to know beside the number: what was measured on another model or card, or nowhere."""
    scenario = answer.scenario
    told = []
    if scenario.borrows_acceptance:
        told.append(f"acceptance {scenario.profile.name} was measured on another model: measure yours")
    lenders = dict.fromkeys(name.partition(":")[0] for name in scenario.kernel_lenders)
    if lenders:
        told.append(
            f"{scenario.gpu.name} was not measured for every kernel: borrowed from {', '.join(lenders)}, "
            "with wider bands"
        )
    if scenario.unpacks:
        told.append(f"nobody measured the unpacking of {' and '.join(scenario.unpacks)}: wider bands")
    return told


def warnings(answer: Recommendation) -> list[str]:
    """What must not be overlooked; what stands beside the headline is left out."""
    beside = answer.scenario.warnings
    return [line for line in recommend_warnings(answer) if line not in beside]


def needs_checkpoint(set_up: SetUp) -> bool:
    """Whether launch settings name the drafter's weights."""
    method = ENGINE_METHODS.get(set_up.export, {}).get(set_up.drafter)
    return method is not None and method.checkpoint


def schedule(answer: Recommendation) -> pa.Table:
    """The schedule in full precision."""
    from medusa_sim.report.recommend_json import schedule_arrow

    return schedule_arrow(answer)


def whole_json(answer: Recommendation, told: str) -> str:
    """What `recommend --format json` writes."""
    from medusa_sim.report.recommend_json import SCHEMA, recommendation_values

    head = {"schema": SCHEMA, "version": __version__, "command": told}
    return json.dumps({**head, **recommendation_values(answer)}, indent=1, allow_nan=False) + "\n"


def report_file(set_up: SetUp) -> list[tuple[str, str, Callable[[], str]]]:
    """The report as a download, of a known model."""
    if set_up.config is not None:
        return []
    return [("html", "text/html", lambda: report_html(set_up))]


def report_html(set_up: SetUp) -> str:
    """What `sweep --report` writes, in one page."""
    import answers

    from medusa_sim.plan.defaults import DEFAULT_CANDIDATES
    from medusa_sim.report.document import html_page
    from medusa_sim.report.sweep_report import report_blocks
    from medusa_sim.step.grid import Grid

    grid = Grid.of((1, 2, 4, 8, 16, 32, 64), (set_up.seq_len,), DEFAULT_CANDIDATES)
    told = shlex.join(["medusa-sim", "sweep", *set_up.options, "--batch", "1..64", "--report", "out"])
    return html_page(f"medusa-sim: {set_up.title}", report_blocks([answers.scenario_of(set_up)], grid, told))
