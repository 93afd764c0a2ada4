"""`medusa-sim validate`: predicted against measured rows."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from medusa_sim.cli.group import examples
from medusa_sim.cli.options import output_options, row_options
from medusa_sim.cli.output import Output
from medusa_sim.errors import ThresholdError, UsageError

if TYPE_CHECKING:
    from medusa_sim.validate import Score


@click.command(
    short_help="Errors of predictions against measured rows.",
    epilog=examples(
        "medusa-sim validate --gpu h100-sxm --measured rows.parquet --cache as-measured",
        "medusa-sim validate --gpu a40 --measured gemm.csv attention.csv --fail-above 10",
    ),
)
@click.option(
    "--measured",
    type=click.Path(path_type=Path),
    multiple=True,
    help="CSV or Parquet of operator rows with time_us; more files may follow.",
)
@click.argument("more", nargs=-1, type=click.Path(path_type=Path), metavar="[FILE]...")
@click.option(
    "--fail-above",
    type=click.FloatRange(min=0.0, min_open=True),
    default=None,
    metavar="PCT",
    help="Exit 3 where the mean error over all rows of an operator is above this many per cent.",
)
@row_options
@output_options
def validate(
    measured: tuple[Path, ...],
    more: tuple[Path, ...],
    fail_above: float | None,
    gpu: str,
    runtime: str,
    cache: str,
    output: Output,
    data_dir: Path | None,
    **names: Any,
) -> None:
    """Errors of predicted times by operator, dtype and size, the worst cell beside the mean.

    ratio is the error of T(m)/T(1); within_band the share of measurements between low_us and high_us
    (0.8 is promised). Where a file holds the linear layers of whole models (told apart by its column
    `source`), the regret of choosing the candidate count by predicted times follows.
    """
    import pandas as pd

    from medusa_sim.acceptance.profile import load_acceptance
    from medusa_sim.rows import read_rows
    from medusa_sim.specs.gpu import load_gpu
    from medusa_sim.specs.runtime import load_runtime
    from medusa_sim.validate import compared_rows, regrets, scores

    files = (*measured, *more)
    if not files:
        raise UsageError("validate needs rows: --measured FILE (operator rows with a time_us column)")
    found, lost = [], []
    card = load_gpu(gpu, data_dir)
    for path in files:
        rows = compared_rows(
            read_rows(path, need_time=True),
            card,
            load_runtime(runtime),
            cold=cache == "cold",
            data_dir=data_dir,
            **names,
        )
        found += [(path, score) for score in scores(rows, card)]
        lost += [(path, regret) for regret in regrets(rows, load_acceptance("paper-fig21", data_dir))]
    frame = pd.DataFrame([{"file": path.name, **dataclasses.asdict(score)} for path, score in found])
    regret = [{"file": path.name, **dataclasses.asdict(each)} for path, each in lost]
    if output.form == "table":
        from medusa_sim.report.score_tables import regret_table, score_table

        parts = [
            output.drawn(score_table([score for file, score in found if file == path], path.name))
            for path in files
        ]
        if lost:
            parts.append(output.drawn(regret_table([each for _, each in lost])))
        output.text("\n".join(parts))
    else:
        output.rows(frame, "validate", regret=regret)
    if fail_above is not None:
        _check([score for _, score in found], fail_above)


def _check(found: list[Score], fail_above: float) -> None:
    """Raise ThresholdError for the operator with the largest mean error above `fail_above` per cent."""
    worst = max((score for score in found if score.size == "all"), key=lambda score: score.mean)
    if 100.0 * worst.mean > fail_above:
        raise ThresholdError(
            f"{worst.op} {worst.dtype}: mean error {100.0 * worst.mean:.2f} % is above {fail_above:g} % "
            f"(worst row: {worst.worst_at})"
        )
