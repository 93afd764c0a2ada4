"""`medusa-sim calibrate`: fits the kernel parameters of a GPU to measured rows."""

from __future__ import annotations

from pathlib import Path

import click

from medusa_sim.cli.group import examples
from medusa_sim.cli.options import gpu_option, output_options
from medusa_sim.cli.output import Output
from medusa_sim.errors import DataError, UsageError


@click.command(
    short_help="Fit the kernel parameters of a GPU to measured rows.",
    epilog=examples(
        "medusa-sim calibrate --gpu h100-sxm --kernels torch --rows gemm.csv attention.csv elementwise.csv",
        "medusa-sim calibrate --gpu a40 --kernels mine --rows rows.parquet --source 'my A40, 2026-11'",
    ),
)
@gpu_option
@click.option(
    "--kernels",
    required=True,
    help="Name of the kernel set to write: torch, sglang, paper, or one of your own.",
)
@click.option(
    "--rows",
    "rows_files",
    type=click.Path(path_type=Path),
    multiple=True,
    help="CSV or Parquet of operator rows with time_us; more files may follow.",
)
@click.argument("more", nargs=-1, type=click.Path(path_type=Path), metavar="[FILE]...")
@click.option("--source", default=None, help="One line kept with the parameters [default: the files' names].")
@click.option("--dry-run", is_flag=True, help="Fit and print, write nothing.")
@output_options
def calibrate(
    gpu: str,
    kernels: str,
    rows_files: tuple[Path, ...],
    more: tuple[Path, ...],
    source: str | None,
    dry_run: bool,
    output: Output,
    data_dir: Path | None,
) -> None:
    """Kernel parameters of one GPU and kernel library, fitted to measured operator rows.

    Every operator and dtype in the files is fitted; errors are printed of the rows of the fit and of
    shapes held back, with the 80 % band of measured / predicted by size. The parameters go to
    hardware/GPU.toml in the data folder, where every command finds them first.
    """
    import pandas as pd

    from medusa_sim.calibrate.rows import check_set_name, fitted_kernels, write_kernels
    from medusa_sim.data import user_data_dir
    from medusa_sim.operators.table import read_rows
    from medusa_sim.specs.gpu import load_gpu
    from medusa_sim.writing import make_folder

    files = (*rows_files, *more)
    if not files:
        raise UsageError("calibrate needs rows: --rows FILE (operator rows with a time_us column)")
    check_set_name(kernels)
    card = load_gpu(gpu, data_dir)
    folder = user_data_dir(data_dir) / "hardware"
    if not dry_run:
        make_folder(folder)
    frame = pd.concat([read_rows(path, need_time=True) for path in files], ignore_index=True)
    told = source or "rows of " + ", ".join(path.name for path in files)
    fitted = []
    passed_over: list[str] = []
    for each in fitted_kernels(frame, card, told, kernel_set=kernels, leave_out=passed_over.append):
        click.echo(f"fitted {each.section} {each.key}".rstrip(), err=True)
        fitted.append(each)
    if not fitted:
        raise DataError("; ".join(passed_over))
    for line in passed_over:
        click.echo(f"left out: {line}", err=True)
    if not dry_run:
        written = write_kernels(folder, card, kernels, fitted)
        click.echo(f"wrote {written}", err=True)
    records = [
        {
            "section": each.section,
            "key": each.key,
            "rows": each.kernel.fit.rows,
            "fit_error": each.kernel.fit.fit_error,
            "heldout_error": each.kernel.fit.heldout_error,
            "size_max": residual.size_max,
            "low": residual.low,
            "high": residual.high,
        }
        for each in fitted
        for residual in each.kernel.fit.residuals
    ]
    output.rows(pd.DataFrame(records), "calibrate")
