"""`medusa-sim calibrate`: fits the kernels of a GPU, or the terms of an engine, to measured rows.

`medusa-sim calibrate engine`: a user's own runtime from results of a load generator.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from medusa_sim.cli import examples, say
from medusa_sim.cli import options as take
from medusa_sim.cli.output import Output
from medusa_sim.cli.values import DRAFTER, RUNTIME
from medusa_sim.engine_runs.bench_row import Shape
from medusa_sim.errors import DataError, UsageError
from medusa_sim.scenario.arguments import ARGUMENTS

if TYPE_CHECKING:
    from medusa_sim.lab.calibrate.engine_fit import FittedRuntime
    from medusa_sim.lab.calibrate.hardware_file import FittedKernel
    from medusa_sim.lab.calibrate.predicted_runs import DrafterOf


_DRY_RUN = click.option("--dry-run", is_flag=True, help="Fit and print, write nothing.")
_PARALLEL = ("tp", "ep", "dp_attention")
WORTH_A_WORD = 0.10
"""Relative error of a run in the fit from which something else than the terms is wrong."""


@click.group(
    epilog=examples(
        "medusa-sim calibrate rows gemm.csv attention.csv elementwise.csv --gpu h100-sxm --kernels torch",
        "medusa-sim calibrate rows rows.parquet --gpu a40 --kernels mine --source 'my A40, 2026-11'",
        "medusa-sim calibrate engine plain_b1.json plain_b8.json plain_b64.json --gpu h100-sxm "
        "--model llama-3.1-8b --name mine",
    )
)
def calibrate() -> None:
    """Kernels of a GPU fitted to measured rows, or the terms of an engine to what it served."""


@take.command(name="rows", into=calibrate)
@click.argument("files", **take.FILES)
@take.arguments("gpu", ARGUMENTS, "gpu")
@click.option(
    "--kernels", required=True, help="Kernel set to write: torch, sglang, paper, or one of your own."
)
@click.option("--source", help="One line kept with the parameters [default: the files' names].")
@_DRY_RUN
@take.overwrite
@take.output
@take.data_dir
def _rows(
    *,
    files: tuple[Path, ...],
    gpu: dict[str, str],
    kernels: str,
    source: str | None,
    dry_run: bool,
    overwrite: bool,
    output: Output,
    data_dir: Path | None,
) -> None:
    """Kernel parameters of one GPU and kernel library, fitted to measured operator rows.

    FILE: CSV or Parquet of operator rows with time_us. Every operator and dtype in them is fitted; errors are
    printed of the rows of the fit and of held-out shapes, with the 80 % band of measured / predicted by size.
    The parameters go to hardware/GPU.toml in the data folder, where every command finds them first;
    kernels of yours that are there already are replaced with --overwrite only.
    """
    import pandas as pd

    from medusa_sim.data import user_data_dir
    from medusa_sim.gpus.gpu import load_gpu
    from medusa_sim.lab.calibrate.fitted_kernels import fitted_kernels
    from medusa_sim.lab.calibrate.hardware_file import check_not_there, check_set_name, write_kernels
    from medusa_sim.operators.table import read_rows
    from medusa_sim.writing import make_folder

    if not files:
        raise UsageError("calibrate needs rows: FILE (operator rows with a time_us column)")
    check_set_name(kernels)
    card = load_gpu(gpu["gpu"], data_dir)
    folder = user_data_dir(data_dir) / "hardware"
    if not dry_run:
        make_folder(folder)
    frame = pd.concat([read_rows(path, need_time=True) for path in files], ignore_index=True)
    source_text = source or "rows of " + ", ".join(path.name for path in files)
    fitted = []
    passed_over: list[str] = []
    for each in fitted_kernels(frame, card, source_text, kernel_set=kernels, leave_out=passed_over.append):
        if not dry_run and not overwrite:
            check_not_there(folder, card, kernels, each)
        say(f"fitted {each.section} {each.key}".rstrip())
        fitted.append(each)
    if not fitted:
        raise DataError("; ".join(passed_over))
    for line in passed_over:
        say(f"left out: {line}")
    if not dry_run:
        written = write_kernels(folder, card, kernels, fitted)
        say(f"wrote {written}")
    output.rows(pd.DataFrame(_errors(fitted)), "calibrate")


def _errors(fitted: Sequence[FittedKernel]) -> list[dict[str, Any]]:
    """Errors of each fit, a row a size."""
    of_fit, of_size = ("rows", "fit_error", "heldout_error"), ("size_max", "low", "high")
    return [
        {
            "section": each.section,
            "key": each.key,
            **{name: getattr(each.kernel.fit, name) for name in of_fit},
            **{name: getattr(residual, name) for name in of_size},
        }
        for each in fitted
        for residual in each.kernel.fit.residuals
    ]


@take.command(name="engine", into=calibrate)
@click.argument("files", **take.FILES)
@take.arguments(
    "given",
    ARGUMENTS,
    "gpu",
    "model",
    "kernels",
    "draft_model",
    "draft_vocab",
    "dtype",
    "weight_dtype",
    "kv_dtype",
    *_PARALLEL,
    changes={"model": {"default": None, "help": "The model that was served."}},
)
@click.option(
    "--runtime", default="vllm", show_default=True, type=RUNTIME, help="The engine to inherit from."
)
@click.option("--name", help="Name of the runtime to write.")
@click.option("--title", help="One line kept with the runtime.")
@click.option("--drafter", type=DRAFTER, help="What drafted in the runs that speculated.")
@take.record("shape", Shape)
@_DRY_RUN
@take.overwrite
@take.output
@take.data_dir
def _engine(
    *,
    files: tuple[Path, ...],
    given: dict[str, Any],
    runtime: str,
    name: str | None,
    title: str | None,
    drafter: str | None,
    shape: Shape,
    dry_run: bool,
    overwrite: bool,
    output: Output,
    data_dir: Path | None,
) -> None:
    """Your own runtime, fitted to results of a load generator; every run is printed with its prediction.

    FILE: from `vllm bench serve`, `latency` or `throughput`, SGLang's bench_serving, AIPerf, GuideLLM, or a
    CSV of concurrency, itl_ms or tpot_ms, prompt, output. Two numbers of requests are enough. Runs with
    speculation beside plain ones fit what drafting adds. The runtime goes to profiles/runtimes/NAME.toml.
    """
    import pandas as pd

    from medusa_sim.data import user_data_dir
    from medusa_sim.engine_runs.bench import read_bench
    from medusa_sim.engine_runs.bench_row import taken_as_plain
    from medusa_sim.engine_runs.run import refuse_other_model
    from medusa_sim.lab.calibrate.engine_fit import fitted_runtime
    from medusa_sim.lab.calibrate.runtime_file import check_runtime_name, runtime_path, write_runtime
    from medusa_sim.scenario.scenario import Scenario
    from medusa_sim.writing import check_new

    if name is None or given["model"] is None:
        raise UsageError(
            "calibrate engine needs --model MODEL that was served, and --name NAME for the runtime"
        )
    check_runtime_name(name)
    if not dry_run:
        check_new(runtime_path(user_data_dir(data_dir), name), overwrite=overwrite)
    rows = [row for path in files for row in read_bench(path, shape)]
    if untold := taken_as_plain(rows, shape.drafts):
        say(f"note: {untold}")
    # plain decoding: drafts that cost nothing, which every engine runs
    kept = ("gpu", "model", "kernels", "dtype", "weight_dtype", "kv_dtype", *_PARALLEL)
    plain = {key: given[key] for key in kept}
    setting = Scenario(**plain, runtime=runtime, drafter="ngram", acceptance=1.0, data_dir=data_dir).setting
    for row in rows:
        refuse_other_model(setting.model.name, row)
    fitted = fitted_runtime(
        setting,
        rows,
        name=name,
        title=title or f"{setting.runtime.title}, as measured with {setting.model.name}",
        drafter=None if drafter is None else _drafter_of(drafter, given),
    )
    _tell(fitted)
    if not dry_run:
        path = write_runtime(user_data_dir(data_dir), fitted, setting.runtime.name)
        say(f"wrote {path}; use it with --runtime {name}")
    output.rows(pd.DataFrame(_runs(fitted)), "calibrate-engine")


def _runs(fitted: FittedRuntime) -> list[dict[str, Any]]:
    """Every run beside what the runtime takes for it, fitted with it and without."""
    of_row = ("source", "concurrency", "drafts", "acceptance_length")
    of_fit = ("error", "leave_one_out_us", "leave_one_out_error")
    return [
        {
            **{name: getattr(each.row, name) for name in of_row},
            "prompt_tokens": each.row.prompt,
            "output_tokens": each.row.output,
            "measured_us": each.row.step_us,
            "fitted_us": each.fitted_us,
            **{name: getattr(each, name) for name in of_fit},
        }
        for each in fitted.rows
    ]


def _tell(fitted: FittedRuntime) -> None:
    """The terms and their errors, on stderr."""
    from medusa_sim.engines.engine import UNITS
    from medusa_sim.report.words.numbers import percent

    for name, term in fitted.terms.items():
        if term.value:
            say(f"{name} {term.value:.4g} {UNITS[name]} +- {percent(term.band, 0)}")
    left_out = [abs(each.leave_one_out_error) for each in fitted.rows if each.leave_one_out_error is not None]
    inside = max(abs(each.error) for each in fitted.rows)
    text = (
        f"without its own number of requests each run is given within {percent(max(left_out))} "
        f"(mean {percent(sum(left_out) / len(left_out))})"
        if left_out
        else "no run can be left out"
    )
    say(f"every run within {percent(inside)}; {text}")
    for each in fitted.rows:
        if abs(each.error) > WORTH_A_WORD:
            say(
                f"warning: {each.row.source} is given {percent(each.error, 0, signed=True)} off; check "
                "--gpu, --tp, --model, its formats, the drafter, and that the server was full for most of "
                "the run"
            )


def _drafter_of(drafter: str, given: dict[str, Any]) -> DrafterOf:
    """Function that makes a drafter of a given number of drafts."""
    from medusa_sim.models.named import load_model
    from medusa_sim.scenario.draft_options import Drafting
    from medusa_sim.step.drafter.base import DrafterParts

    draft = given["draft_model"]
    parts = DrafterParts(draft=None if draft is None else load_model(draft), draft_vocab=given["draft_vocab"])
    return Drafting(method=drafter, parts=parts).drafter
