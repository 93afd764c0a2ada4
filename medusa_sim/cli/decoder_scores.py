"""What `validate --decoder` prints: steps and speedups against the decoder, and the best counts."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import click

from medusa_sim.cli.output import Output
from medusa_sim.errors import ThresholdError
from medusa_sim.specs.gpu import load_gpu


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
    """Compare the folder's steps with predictions and write both tables, every cell in CSV and JSON.

    names: latency, kernels and outside. Raises ThresholdError where the mean error of a comparison is above
    its floor and `fail_above` per cent.
    """
    import pandas as pd

    from medusa_sim.validate_decoder import GRAPHED, validate_decoder

    found = validate_decoder(
        folder,
        load_gpu(gpu, data_dir),
        kernels=names["kernels"] or "torch",
        latency=names["latency"],
        outside=names["outside"],
        allow_different=allow_different,
        data_dir=data_dir,
    )
    if output.form in ("table", "md"):
        from medusa_sim.report.decoder_tables import choice_table, comparison_table

        tables = (comparison_table(found), choice_table(found.choices))
        output.text("\n".join(output.drawn(table) for table in tables))
    else:
        cells = pd.DataFrame([dataclasses.asdict(cell) for cell in found.cells])
        cells["passes_us"] = [" ".join(f"{us:.6g}" for us in passes) for passes in cells["passes_us"]]
        output.rows(
            cells,
            "validate-decoder",
            comparisons=[dataclasses.asdict(each) for each in found.comparisons],
            choices=[dataclasses.asdict(each) for each in found.choices],
            gaps={model: dataclasses.asdict(gaps) for model, gaps in found.gaps.items()},
        )
    for model, gaps in found.gaps.items():
        told = f"{gaps.launch_us:.2f} us a launch"
        if found.meta.launched != GRAPHED:
            told = f"{gaps.plain_us:.0f} us a plain step, {gaps.speculative_us:.0f} us a speculative one"
        click.echo(f"{model}: {told} beside kernels, fitted to the first steps (left out above)", err=True)
    for each in found.comparisons:
        if fail_above is not None and 100.0 * (each.mean - each.floor) > fail_above:
            raise ThresholdError(
                f"{each.quantity}: mean error {100.0 * each.mean:.2f} % is above the passes' disagreement of "
                f"{100.0 * each.floor:.2f} % and {fail_above:g} % (worst: {each.worst_at})"
            )
