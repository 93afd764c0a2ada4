"""`medusa-sim calibrate engine`: a runtime of one's own from results of a load generator."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from medusa_sim.cli.output import Output
from medusa_sim.errors import UsageError

if TYPE_CHECKING:
    from medusa_sim.calibrate.engine_fit import DrafterOf, FittedRuntime
    from medusa_sim.step.step import Setting

WORTH_A_WORD = 0.10
"""Relative error of a run in the fit from which something else than the terms is wrong."""


def calibrate_engine(
    files: tuple[Path, ...],
    output: Output,
    data_dir: Path | None,
    *,
    dry_run: bool,
    overwrite: bool,
    **names: Any,
) -> None:
    """Fit, print every run beside what the fitted runtime gives, and write the runtime.

    names: gpu, model, kernels, runtime, name, drafter, draft_model and the shape of runs that do not say it.
    """
    import pandas as pd

    from medusa_sim.calibrate.engine_bench import Shape, read_bench
    from medusa_sim.calibrate.engine_fit import (
        check_runtime_name,
        fitted_runtime,
        runtime_path,
        write_runtime,
    )
    from medusa_sim.data import user_data_dir
    from medusa_sim.writing import check_new

    if names["name"] is None or names["model"] is None:
        raise UsageError(
            "--engine-bench needs --model MODEL that was served, and --name NAME for the runtime"
        )
    check_runtime_name(names["name"])
    if not dry_run:
        check_new(runtime_path(user_data_dir(data_dir), names["name"]), overwrite=overwrite)
    shape = Shape(
        concurrency=names["concurrency"],
        prompt=names["prompt_tokens"],
        output=names["output_tokens"],
        drafts=names["drafts"],
    )
    rows = [row for path in files for row in read_bench(path, shape)]
    setting = _setting(names, data_dir)
    fitted = fitted_runtime(
        setting,
        rows,
        name=names["name"],
        title=names["title"] or f"{setting.runtime.title}, as measured with {setting.model.name}",
        drafter=_drafter_of(names),
    )
    _tell(fitted)
    if not dry_run:
        path = write_runtime(user_data_dir(data_dir), fitted, setting.runtime.name)
        click.echo(f"wrote {path}; use it with --runtime {names['name']}", err=True)
    records = [
        {
            "source": each.row.source,
            "concurrency": each.row.concurrency,
            "drafts": each.row.drafts,
            "acceptance_length": each.row.acceptance_length,
            "prompt_tokens": each.row.prompt,
            "output_tokens": each.row.output,
            "measured_us": each.row.step_us,
            "fitted_us": each.fitted_us,
            "error": each.error,
            "leave_one_out_us": each.leave_one_out_us,
            "leave_one_out_error": each.leave_one_out_error,
        }
        for each in fitted.rows
    ]
    output.rows(pd.DataFrame(records), "calibrate-engine")


def _tell(fitted: FittedRuntime) -> None:
    """The terms and their errors, on stderr."""
    from medusa_sim.specs.engine import UNITS

    for name, term in fitted.terms.items():
        if term.value:
            click.echo(f"{name} {term.value:.4g} {UNITS[name]} +- {term.band:.0%}", err=True)
    left_out = [abs(each.leave_one_out_error) for each in fitted.rows if each.leave_one_out_error is not None]
    inside = max(abs(each.error) for each in fitted.rows)
    told = (
        f"without its own number of requests each run is given within {max(left_out):.1%} "
        f"(mean {sum(left_out) / len(left_out):.1%})"
        if left_out
        else "no run can be left out"
    )
    click.echo(f"every run within {inside:.1%}; {told}", err=True)
    for each in fitted.rows:
        if abs(each.error) > WORTH_A_WORD:
            click.echo(
                f"warning: {each.row.source} is given {each.error:+.0%} off; check --gpu, --model, --dtype, "
                "the drafter, and that the server was full for most of the run",
                err=True,
            )


def _setting(names: dict[str, Any], data_dir: Path | None) -> Setting:
    from medusa_sim.plan.scenario import Scenario

    # Plain decoding: drafts that cost nothing, which every engine runs.
    scenario = Scenario(
        gpu=names["gpu"],
        model=names["model"],
        drafter="ngram",
        acceptance=1.0,
        **{key: names[key] for key in ("runtime", "kernels", "dtype")},
        data_dir=data_dir,
    )
    return scenario.setting


def _drafter_of(names: dict[str, Any]) -> DrafterOf | None:
    """What makes so many drafts in a row; None where no drafter was named."""
    from medusa_sim.plan.draft_options import Drafting
    from medusa_sim.specs.models import load_model
    from medusa_sim.step.drafter.base import Parts

    if names["drafter"] is None:
        return None
    draft = names["draft_model"]
    parts = Parts(draft=None if draft is None else load_model(draft), draft_vocab=names["draft_vocab"])
    return Drafting(method=names["drafter"], parts=parts).drafter
