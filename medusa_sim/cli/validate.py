"""`medusa-sim validate`: predicted against measured operators, servers and whole steps.

`validate decoder` prints steps and speedups against the decoder, and the best counts.
"""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from medusa_sim.cli import examples, say
from medusa_sim.cli import options as take
from medusa_sim.cli.output import Output
from medusa_sim.errors import SpecError, ThresholdError, UsageError

if TYPE_CHECKING:
    from medusa_sim.gpus.gpu import Gpu
    from medusa_sim.lab.validate.comparison import Deviation
    from medusa_sim.lab.validate.generations import RunsValidation
    from medusa_sim.lab.validate.steps import DecoderValidation
    from medusa_sim.report.table import TextTable


_FAIL_ABOVE = click.option(
    "--fail-above",
    type=take.PositiveFloat(),
    metavar="PCT",
    help="Exit 3 where the mean error is above this many per cent (decoder: beyond the spread of runs).",
)


@click.group(
    epilog=examples(
        "medusa-sim validate rows rows.parquet --gpu h100-sxm --cache as-measured",
        "medusa-sim validate rows gemm.csv attention.csv --gpu a40 --fail-above 10",
        "medusa-sim validate served my-server.csv --fail-above 15",
        "medusa-sim validate decoder out/steps --gpu my-cpu --kernels torch --fail-above 10",
    )
)
def validate() -> None:
    """Errors of predictions: times of operators, servers, whole steps of the decoder."""


@take.command(name="rows", into=validate)
@click.argument("files", **take.FILES)
@_FAIL_ABOVE
@take.rows("names")
@take.row_runtime
@take.row_cache
@take.output
@take.data_dir
def _rows(
    *,
    files: tuple[Path, ...],
    fail_above: float | None,
    names: dict[str, Any],
    runtime: str,
    cache: str,
    output: Output,
    data_dir: Path | None,
) -> None:
    """Errors of predicted times of operators by kind, dtype and size, the worst cell next to the mean.

    FILE: CSV or Parquet of operator rows with time_us. ratio is the error of T(m)/T(1); within_band the share
    of measurements between low_us and high_us (0.8 is promised). Where a file holds the linear layers of
    whole models (told apart by its column `source`), the regret of choosing the candidate count by predicted
    times follows.
    """
    import pandas as pd

    from medusa_sim.acceptance.profile import load_acceptance
    from medusa_sim.engines.runtime import load_runtime
    from medusa_sim.gpus.gpu import load_gpu
    from medusa_sim.lab.validate.operators import scores, unit_meant
    from medusa_sim.lab.validate.regrets import regrets
    from medusa_sim.operators.table import read_rows
    from medusa_sim.step.rows import predicted_rows

    if not files:
        raise UsageError("validate needs rows: FILE (operator rows with a time_us column)")
    judged, lost = [], []
    gpu = load_gpu(names.pop("gpu"), data_dir)
    refused: SpecError | None = None
    for path in files:
        measured = read_rows(path, need_time=True)
        try:
            rows = predicted_rows(
                measured,
                gpu,
                load_runtime(runtime, data_dir),
                leave_out=lambda line: say(f"left out: {line}"),
                cold=cache == "cold",
                data_dir=data_dir,
                **names,
            )
        except SpecError as error:  # no kernel for any of its rows
            refused = error
            if len(files) > 1:
                say(f"left out: {path.name}: {error}")
            continue
        if unit := unit_meant(rows):
            say(f"{path.name}: time_us is microseconds; the times look like {unit}")
        judged += [(path, score) for score in scores(rows, gpu)]
        lost += [(path, regret) for regret in regrets(rows, load_acceptance("paper-fig21", data_dir))]
    if refused is not None and not judged:
        raise refused
    frame = pd.DataFrame([{"file": path.name, **dataclasses.asdict(score)} for path, score in judged])
    regret = [{"file": path.name, **dataclasses.asdict(each)} for path, each in lost]
    if output.form == "table":
        from medusa_sim.lab.validate.score_tables import regret_table, score_table

        parts = [
            output.drawn(score_table([score for file, score in judged if file == path], path.name))
            for path in dict.fromkeys(file for file, _ in judged)
        ]
        if lost:
            parts.append(output.drawn(regret_table([each for _, each in lost])))
        output.text("\n".join(parts))
    else:
        output.rows(frame, "validate", regret=regret)
    if fail_above is not None:
        worst = max((score for _, score in judged if score.size == "all"), key=lambda score: score.mean)
        _check_mean(f"{worst.op} {worst.dtype}", worst.mean, fail_above, f" (worst row: {worst.worst_at})")


@take.command(name="served", into=validate)
@click.argument("file", type=take.FILE)
@_FAIL_ABOVE
@take.output
@take.data_dir
def _served(*, file: Path, fail_above: float | None, output: Output, data_dir: Path | None) -> None:
    """Errors of runs of your own server, and where its set-up falls among what was measured.

    FILE: CSV, a line a run: gpu, model, runtime (vllm-0.15), concurrency, prompt, output and tpot_ms or
    itl_ms; where they differ from the default tp, ep, dp_attention, weight_dtype, dtype, kv_dtype; with
    drafts drafter, drafts, acceptance_length (docs/accuracy.md). Each run stands beside its 80 % band, and
    its class says whether engine, GPU, model and format were measured.
    """
    from medusa_sim.lab.validate.score_tables import served_sentence, served_table
    from medusa_sim.lab.validate.served import compared, read_served

    runs = compared(read_served(file), data_dir)
    for reason in dict.fromkeys(runs.loc[runs["refused"] != "", "refused"]):
        say(f"not priced: {reason}")
    priced = runs[runs["refused"] == ""]
    if priced.empty:
        raise UsageError(f"{file}: none of its {len(runs)} runs can be priced; the lines above say why")
    if output.form == "table":
        output.text(f"{served_sentence(priced)}\n\n{output.drawn(served_table(priced))}")
    else:
        say(served_sentence(priced))
        output.rows(runs, "validate-served")
    worst = priced.iloc[int(priced["error"].abs().to_numpy().argmax())]
    where = f" (worst: {worst['gpu']}, {worst['model']}, {worst['concurrency']:g} requests)"
    _check_mean("time per token", float(priced["error"].abs().mean()), fail_above, where)


def _check_mean(what: str, mean_error: float, fail_above: float | None, where: str = "") -> None:
    if fail_above is not None and 100.0 * mean_error > fail_above:
        raise ThresholdError(
            f"{what}: mean error {100.0 * mean_error:.2f} % is above {fail_above:g} %{where}"
        )


@take.command(name="decoder", into=validate)
@click.argument("folder", type=take.FILE)
@click.option(
    "--allow-different",
    is_flag=True,
    help="Also where the profile and the steps differ in device, dtype or clocks.",
)
@_FAIL_ABOVE
@take.rows("names")
@take.output
@take.data_dir
def _decoder(
    *,
    folder: Path,
    allow_different: bool,
    fail_above: float | None,
    names: dict[str, Any],
    output: Output,
    data_dir: Path | None,
) -> None:
    """Errors of predicted steps or generations of the decoder, in a FOLDER of `measure`; CSV: every cell."""
    from medusa_sim.gpus.gpu import load_gpu
    from medusa_sim.lab.measure.cells import RUNS, STEPS

    gpu = load_gpu(names.pop("gpu"), data_dir)
    given = {**names, "kernels": names["kernels"] or "torch", "data_dir": data_dir}
    compared: list[Deviation] = []
    both = (folder / STEPS).is_file() and (folder / RUNS).is_file()
    if both and (output.form not in ("table", "md") or output.path is not None):
        raise UsageError(
            f"{folder} holds {STEPS} and {RUNS}: print tables to the terminal, or split the folder"
        )
    if (folder / STEPS).is_file() or not (folder / RUNS).is_file():
        compared += _steps(folder, gpu, given, output, allow_different=allow_different)
    if (folder / RUNS).is_file():
        compared += _runs(folder, gpu, given, output)
    for each in compared:
        if fail_above is not None and 100.0 * (each.mean - each.floor) > fail_above:
            raise ThresholdError(
                f"{each.quantity}: mean error {100.0 * each.mean:.2f} % is above the passes' disagreement of "
                f"{100.0 * each.floor:.2f} % and {fail_above:g} % (worst: {each.worst_at})"
            )


def _steps(
    folder: Path, gpu: Gpu, given: dict[str, Any], output: Output, *, allow_different: bool
) -> tuple[Deviation, ...]:
    from medusa_sim.lab.validate.score_tables import comparison_table, floor_line
    from medusa_sim.lab.validate.steps import validate_decoder

    checked = validate_decoder(folder, gpu, allow_different=allow_different, **given)
    more = {"gaps": {model: dataclasses.asdict(gaps) for model, gaps in checked.gaps.items()}}
    say(floor_line(checked))
    _show(output, "validate-decoder", comparison_table(checked), checked, ("passes_us",), more)
    for model, gaps in checked.gaps.items():
        say(
            f"{model}: on top of kernels {gaps.plain_us:.0f} us a plain step, {gaps.speculative_us:.0f} us a "
            "speculative one, fitted to the first steps (left out above)"
        )
    return checked.comparisons


def _runs(folder: Path, gpu: Gpu, given: dict[str, Any], output: Output) -> tuple[Deviation, ...]:
    from medusa_sim.lab.validate.generations import validate_runs
    from medusa_sim.lab.validate.score_tables import comparisons_table

    checked = validate_runs(folder, gpu, **given)
    title = f"{gpu.name}: whole runs of the trained decoder, error of the prediction"
    _show(output, "validate-runs", comparisons_table(checked.comparisons, title), checked, ("speedups",), {})
    return checked.comparisons


def _show(
    output: Output,
    kind: str,
    table: TextTable,
    checked: DecoderValidation | RunsValidation,
    several: tuple[str, ...],
    more: dict[str, Any],
) -> None:
    """Both tables for people, every cell for programs. several: columns that hold a value each pass."""
    if output.form in ("table", "md"):
        from medusa_sim.lab.validate.score_tables import choice_table

        output.text("\n".join(output.drawn(each) for each in (table, choice_table(checked.choices))))
        return
    import pandas as pd

    cells = pd.DataFrame([dataclasses.asdict(cell) for cell in checked.cells])
    for name in several:
        cells[name] = [" ".join(f"{value:.6g}" for value in passes) for passes in cells[name]]
    output.rows(
        cells,
        kind,
        comparisons=[dataclasses.asdict(each) for each in checked.comparisons],
        choices=[dataclasses.asdict(each) for each in checked.choices],
        **more,
    )
