"""Sentences and files that several pages show, from the same code as the command line's reports."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from chosen import SetUp

from medusa_sim import __version__
from medusa_sim.export.engines import METHODS as ENGINE_METHODS
from medusa_sim.plan.resolved import dense_fits, linear_fit
from medusa_sim.report.recommend_reason import warnings as recommend_warnings
from medusa_sim.report.text import percent

if TYPE_CHECKING:
    import pyarrow as pa

    from medusa_sim.plan.recommendation import Recommendation
    from medusa_sim.plan.schedule_row import ScheduleRow
    from medusa_sim.specs.gpu import Gpu
    from medusa_sim.specs.model import Model


def accuracy(gpu: Gpu, kernels: str, model: Model) -> str:
    """How wrong linear layers of this GPU are predicted, and who lent them; kernels: the set in use."""
    dtype, fit = model.dtype, linear_fit(dense_fits(gpu.kernel_set(kernels), model), model)
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


def warnings(answer: Recommendation) -> tuple[list[str], list[str]]:
    """What `recommend` warns of: what the number itself rests on, to stand beside it, and the rest."""
    lines, beside = recommend_warnings(answer), answer.scenario.warnings
    return [line for line in lines if line in beside], [line for line in lines if line not in beside]


def needs_checkpoint(set_up: SetUp) -> bool:
    """Whether launch settings name the drafter's weights."""
    method = ENGINE_METHODS.get(set_up.export, {}).get(set_up.drafter)
    return method is not None and method.checkpoint


def schedule(answer: Recommendation) -> pa.Table:
    """The schedule in full precision."""
    from medusa_sim.report.recommend_json import schedule_arrow

    return schedule_arrow(answer)


def whole_json(answer: Recommendation, command: str) -> str:
    """What `recommend --format json` writes."""
    from medusa_sim.report.recommend_json import SCHEMA, recommendation_values

    head = {"schema": SCHEMA, "version": __version__, "command": command}
    return json.dumps({**head, **recommendation_values(answer)}, indent=1, allow_nan=False) + "\n"


def table_of(rows: Sequence[Mapping[str, Any]]) -> pa.Table:
    """Rows with the same columns, to be handed out."""
    import pyarrow as pa

    return pa.Table.from_pylist([dict(row) for row in rows])


def report_file(
    set_up: SetUp, answer: Recommendation, command: str
) -> list[tuple[str, str, Callable[[], str]]]:
    """The report as a download, of a known model."""
    if set_up.config is not None:
        return []
    return [("html", "text/html", lambda: report_html(set_up, answer, command))]


def report_html(set_up: SetUp, answer: Recommendation, command: str) -> str:
    """The answer with its schedule, plots and sources, in one page."""
    from medusa_sim.report.document import html_page
    from medusa_sim.report.sweep_report import recommend_blocks

    return html_page(f"medusa-sim: {set_up.title}", recommend_blocks(answer, command))
