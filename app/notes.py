"""Sentences and files that several pages show, from the same code as the command line's reports."""

from __future__ import annotations

import json
import shlex
from collections.abc import Callable
from typing import TYPE_CHECKING

from inputs import SetUp

from medusa_sim import __version__
from medusa_sim.report.numbers import percent

if TYPE_CHECKING:
    import pyarrow as pa

    from medusa_sim.plan.recommend import Recommendation
    from medusa_sim.specs.gpu import Gpu
    from medusa_sim.step.step import Setting


def accuracy(gpu: Gpu, setting: Setting) -> str:
    """How wrong linear layers of this GPU are predicted, and who lent them."""
    kernels = gpu.kernel_set(setting.runtime.kernel_set(setting.model.dtype))
    kernel = kernels.linear.get(setting.model.dtype)
    if kernel is None:
        return f"{gpu.name} has no fitted linear layers of its own for {setting.model.dtype}."
    fit = kernel.fit
    if fit.inherited_from:
        return (
            f"{gpu.name} was not measured: kernels are borrowed from {fit.inherited_from}, where shapes kept "
            f"back are off by {percent(fit.heldout_error)}; expect more."
        )
    return (
        f"Linear layers of {gpu.name}: off by {percent(fit.fit_error)} on {fit.rows:,} measured rows, by "
        f"{percent(fit.heldout_error)} on shapes kept back."
    )


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
    """The report as a download, where `sweep` can ask the same question: Medusa heads, a known model."""
    if set_up.drafter != "medusa" or set_up.config is not None:
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
    words = ["sweep", *set_up.options]
    told = shlex.join(["medusa-sim", *words, "--batch", "1..64", "--report", "out"])
    return html_page(
        f"medusa-sim: {set_up.gpu}, {set_up.model}", report_blocks([answers.scenario_of(set_up)], grid, told)
    )
