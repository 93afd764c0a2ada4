"""What `validate decoder` prints: steps and speedups against the decoder, and the best counts."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from medusa_sim.cli.output import Output
from medusa_sim.errors import ThresholdError, UsageError
from medusa_sim.specs.gpu import Gpu, load_gpu

if TYPE_CHECKING:
    from medusa_sim.report.text import TextTable
    from medusa_sim.validate.comparison import Deviation
    from medusa_sim.validate.generations import RunsValidation
    from medusa_sim.validate.steps import DecoderValidation


def score_decoder(
    folder: Path,
    gpu: str,
    names: Mapping[str, Any],
    fail_above: float | None,
    output: Output,
    data_dir: Path | None,
    *,
    allow_different: bool,
) -> None:
    """Compare what the folder holds, steps or whole runs or both, with predictions; CSV and JSON: every cell.

    names: latency, kernels and fallback. Raises DataError where it holds neither; UsageError for both at once
    in a form that holds one table; ThresholdError where the mean error of a comparison is above its floor and
    `fail_above` per cent.
    """
    from medusa_sim.measure.cells import RUNS, STEPS

    card = load_gpu(gpu, data_dir)
    given = {
        "kernels": names["kernels"] or "torch",
        "latency": names["latency"],
        "fallback": names["fallback"],
        "data_dir": data_dir,
    }
    compared: list[Deviation] = []
    both = (folder / STEPS).is_file() and (folder / RUNS).is_file()
    if both and (output.form not in ("table", "md") or output.path is not None):
        raise UsageError(
            f"{folder} holds {STEPS} and {RUNS}: print tables to the terminal, or part the folder"
        )
    if (folder / STEPS).is_file() or not (folder / RUNS).is_file():
        compared += _steps(folder, card, given, output, allow_different=allow_different)
    if (folder / RUNS).is_file():
        compared += _runs(folder, card, given, output)
    for each in compared:
        if fail_above is not None and 100.0 * (each.mean - each.floor) > fail_above:
            raise ThresholdError(
                f"{each.quantity}: mean error {100.0 * each.mean:.2f} % is above the passes' disagreement of "
                f"{100.0 * each.floor:.2f} % and {fail_above:g} % (worst: {each.worst_at})"
            )


def _steps(
    folder: Path, card: Gpu, given: dict[str, Any], output: Output, *, allow_different: bool
) -> tuple[Deviation, ...]:
    from medusa_sim.report.decoder_tables import comparison_table, floor_line
    from medusa_sim.validate.steps import GRAPHED, validate_decoder

    found = validate_decoder(folder, card, allow_different=allow_different, **given)
    more = {"gaps": {model: dataclasses.asdict(gaps) for model, gaps in found.gaps.items()}}
    click.echo(floor_line(found), err=True)
    _show(output, "validate-decoder", comparison_table(found), found, ("passes_us",), more)
    for model, gaps in found.gaps.items():
        told = f"{gaps.launch_us:.2f} us a launch"
        if found.meta.launched != GRAPHED:
            told = f"{gaps.plain_us:.0f} us a plain step, {gaps.speculative_us:.0f} us a speculative one"
        click.echo(f"{model}: {told} beside kernels, fitted to the first steps (left out above)", err=True)
    return found.comparisons


def _runs(folder: Path, card: Gpu, given: dict[str, Any], output: Output) -> tuple[Deviation, ...]:
    from medusa_sim.report.decoder_tables import comparisons_table
    from medusa_sim.validate.generations import validate_runs

    found = validate_runs(folder, card, **given)
    title = f"{card.name}: whole runs of the trained decoder, error of the prediction"
    _show(output, "validate-runs", comparisons_table(found.comparisons, title), found, ("speedups",), {})
    return found.comparisons


def _show(
    output: Output,
    kind: str,
    table: TextTable,
    found: DecoderValidation | RunsValidation,
    several: tuple[str, ...],
    more: dict[str, Any],
) -> None:
    """Both tables for people, every cell for programs. several: columns that hold a value each pass."""
    if output.form in ("table", "md"):
        from medusa_sim.report.decoder_tables import choice_table

        output.text("\n".join(output.drawn(each) for each in (table, choice_table(found.choices))))
        return
    import pandas as pd

    cells = pd.DataFrame([dataclasses.asdict(cell) for cell in found.cells])
    for name in several:
        cells[name] = [" ".join(f"{value:.6g}" for value in passes) for passes in cells[name]]
    output.rows(
        cells,
        kind,
        comparisons=[dataclasses.asdict(each) for each in found.comparisons],
        choices=[dataclasses.asdict(each) for each in found.choices],
        **more,
    )
