"""`medusa-sim sweep`: speedup, tokens per step, overhead, throughput and memory over a grid."""

from __future__ import annotations

from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from medusa_sim.cli.grids import BATCH, CANDIDATES, SEQ_LEN, GridType, echo_grid
from medusa_sim.cli.group import examples
from medusa_sim.cli.names import ACCEPTANCE, GPUS, MODELS, RUNTIME
from medusa_sim.cli.options import (
    DEFAULT_CANDIDATES,
    DEFAULT_GPU,
    DEFAULT_MODEL,
    DEFAULT_SEQ_LEN,
    DTYPE,
    latency_options,
    output_options,
)
from medusa_sim.cli.output import Output
from medusa_sim.errors import UsageError

if TYPE_CHECKING:
    from medusa_sim.plan.sweep import SweepSetting
    from medusa_sim.step.grid import Grid

_MOST_ROWS_SHOWN = 20_000
_MOST_CASES_SHOWN = 2_000


@click.command(
    short_help="Speedup over GPUs, models, batches, lengths and counts.",
    epilog=examples(
        "medusa-sim sweep --batch 1..64",
        "medusa-sim sweep --gpu a100-80gb-pcie,h100-sxm --model llama-3-8b --batch 1..64 --seq 1024..8192",
        "medusa-sim sweep --batch 1..64:1 --candidates 1..128 --format csv -o sweep.csv",
    ),
)
@click.option("--gpu", "gpus", type=GPUS, default=DEFAULT_GPU, show_default=True, help="GPU, or a list a,b.")
@click.option(
    "--model",
    "models",
    type=MODELS,
    default=DEFAULT_MODEL,
    show_default=True,
    help="Model, a list a,b, or the path of a Hugging Face config.json.",
)
@click.option("--batch", type=GridType(BATCH), default="1", show_default=True, help="Sequences in a batch.")
@click.option(
    "--seq",
    "seq_len",
    type=GridType(SEQ_LEN),
    default=DEFAULT_SEQ_LEN,
    show_default=True,
    help="Committed tokens of each sequence before the step.",
)
@click.option(
    "--candidates",
    type=GridType(CANDIDATES),
    default=DEFAULT_CANDIDATES,
    show_default=True,
    help="Tokens that one verification step processes per sequence, root included.",
)
@click.option(
    "--scope",
    type=click.Choice(("model", "block")),
    default="model",
    show_default=True,
    help="model: all that an engine runs. block: the Medusa paper's simplified block.",
)
@click.option("--runtime", type=RUNTIME, default="cuda-graph", show_default=True, help="How kernels launch.")
@latency_options
@click.option(
    "--acceptance",
    type=ACCEPTANCE,
    default="paper-fig4-sparse",
    show_default=True,
    help="Tokens per step: a profile's name or the path of its TOML file.",
)
@click.option("--drafter", type=click.Choice(("medusa", "ngram")), default="medusa", show_default=True)
@click.option("--heads", type=click.IntRange(1, 64), default=5, show_default=True, help="Medusa heads.")
@click.option(
    "--baseline",
    type=click.Choice(("same", "fixed")),
    default="same",
    show_default=True,
    help="Divide by plain decoding at the same batch and length, or (as the paper's plots) at batch 1, 1024.",
)
@click.option("--dtype", type=DTYPE, default=None, help="Arithmetic of the linear layers [the model's].")
@click.option(
    "--weight-dtype",
    type=click.Choice(("fp16", "bf16", "fp32", "fp8", "int8", "int4")),
    default=None,
    help="Stored weights [as --dtype]; int4 is weight-only.",
)
@click.option(
    "--kv-dtype", type=click.Choice(("fp16", "bf16", "fp32", "fp8")), default=None, help="KV cache."
)
@click.option("--all-rows", is_flag=True, help="With --format table: every row, not the best of each batch.")
@click.option(
    "--report",
    "report_dir",
    type=click.Path(path_type=Path),
    default=None,
    help="Also write report.html and report.md with plots into this folder.",
)
@output_options
def sweep(
    gpus: tuple[str, ...],
    models: tuple[str, ...],
    batch: tuple[int, ...],
    seq_len: tuple[int, ...],
    candidates: tuple[int, ...],
    all_rows: bool,
    report_dir: Path | None,
    output: Output,
    **names: Any,
) -> None:
    """Speedup of speculative verification over a grid of GPUs, models, batches, lengths and counts.

    A table shows the best count of each batch and length; --format csv, json, md and parquet carry
    every row, written as they are computed.
    """
    from medusa_sim.plan.scenario import DEFAULT_ACCEPTANCE, sweep_settings
    from medusa_sim.step.grid import Grid

    if report_dir is not None:
        from medusa_sim.writing import check_folder

        check_folder(report_dir)
    if names["drafter"] != "medusa" and names["acceptance"] == DEFAULT_ACCEPTANCE:
        raise UsageError(
            f"sweep --drafter {names['drafter']} needs --acceptance: the default is of Medusa heads"
        )
    grid = Grid.of(batch, seq_len, candidates)
    settings = sweep_settings(gpus, models, **names)
    if output.form == "table" and not all_rows:
        _show_best(output, settings, grid)
    else:
        _write_rows(output, settings, grid)
    if report_dir is not None:
        from medusa_sim.report.sweep_report import write_report

        for path in write_report(report_dir, settings, grid, command=_command()):
            click.echo(f"wrote {path}", err=True)


def _command() -> str:
    from medusa_sim.cli.output import command_line

    return command_line()


def _echo(grid: Grid) -> None:
    """Say what the grids stand for, once nothing can be wrong with them any more."""
    echo_grid(batch=grid.batch.tolist(), seq_len=grid.seq_len.tolist(), candidates=grid.candidates.tolist())


def _write_rows(output: Output, settings: tuple[SweepSetting, ...], grid: Grid) -> None:
    """Every row, chunk by chunk."""
    from medusa_sim.cli.progress import counted
    from medusa_sim.plan.sweep import sweep as tables
    from medusa_sim.report.sweep_text import sources

    rows = grid.rows * len(settings)
    if output.form == "table" and rows > _MOST_ROWS_SHOWN:
        raise UsageError(f"{rows} rows are too many for a table; choose --format csv or parquet with -o FILE")
    chunks = iter(counted((table.arrow() for table in tables(settings, grid)), rows, "rows"))
    first = next(chunks)
    _echo(grid)
    output.rows(chain([first], chunks), "sweep", sources=sources(settings))


def _show_best(output: Output, settings: tuple[SweepSetting, ...], grid: Grid) -> None:
    """One line per batch and length with the best count, and below it what follows from them."""
    from medusa_sim.plan.insights import answer
    from medusa_sim.report.sweep_text import best_table, headline, verdicts

    cases = grid.batch.size * grid.seq_len.size * len(settings)
    if cases > _MOST_CASES_SHOWN:
        raise UsageError(
            f"{cases} batches and lengths are too many for a table; choose --format csv or -o FILE.parquet"
        )
    parts = []
    for setting in settings:
        found = answer(setting, grid)
        table = output.drawn(best_table(found)).strip("\n")
        parts.append("\n".join([headline(setting), "", table, "", *verdicts(found), ""]))
    _echo(grid)
    output.text("\n".join(parts))
    rows = grid.rows * len(settings)
    if cases < rows:
        more = "--all-rows, --format csv or -o FILE.parquet give all"
        click.echo(f"{cases} of {rows} rows shown; {more}", err=True)
