"""Cached calls of the page Evidence: fits, rows and runs that were measured, beside their predictions."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from answers import KEPT

from medusa_sim import data
from medusa_sim.engines.runtime import load_runtime
from medusa_sim.gpus.gpu import load_gpu
from medusa_sim.lab.measure.cells import STEPS
from medusa_sim.lab.reproduce import Reproduction, reproduction
from medusa_sim.lab.validate.generations import RunsCell, RunsValidation, validate_runs
from medusa_sim.lab.validate.step_scores import StepCell
from medusa_sim.lab.validate.steps import DecoderValidation, validate_decoder
from medusa_sim.latency.by_name import LatencyName
from medusa_sim.operators.kinds import KINDS
from medusa_sim.operators.table import read_rows
from medusa_sim.step.rows import predicted_rows
from medusa_sim.units import format_text

if TYPE_CHECKING:
    import pandas as pd

    from medusa_sim.gpus.fitted import Fit


def fits_of(gpu: str, kernels: str) -> dict[str, Fit]:
    """`linear layers, fp16` -> how well it was fitted, of every kernel of one set."""
    known = load_gpu(gpu).kernels.get(kernels)
    if known is None:
        return {}
    return {
        kind.title
        if kind.section == key
        else f"{kind.title}, {format_text(key).replace('_', ' ')}": kernel.fit
        for kind in KINDS
        for key, kernel in kind.table(known).items()
    }


def profile_files(gpu: str) -> dict[str, Path]:
    """Files of measured rows of a GPU, by name: shipped, or the user's own."""
    folder = data.find("profiles/operators", gpu)
    return {} if folder is None else {path.name: path for path in sorted(folder.glob("*.csv"))}


@KEPT
def rows_of(path: Path) -> pd.DataFrame:
    """Checked rows with measured times."""
    return read_rows(path, need_time=True)


@KEPT
def compared(path: Path, gpu: str, kernels: str) -> pd.DataFrame:
    """Rows with their predictions, as `validate` makes them."""
    runtime = load_runtime("paper" if kernels == "paper" else "kernel")
    card = load_gpu(gpu)
    rows = rows_of(path)
    return predicted_rows(rows, card, runtime, cold=False, leave_out=lambda line: None, kernels=kernels)


@KEPT
def reproduced(name: str) -> Reproduction:
    """A table or figure of the papers, predicted beside published."""
    return reproduction(name)


@KEPT
def decoder_validation(gpu: str, folder: str, latency: LatencyName) -> DecoderValidation | RunsValidation:
    """The simulator against the steps of a folder, or against whole generations of a trained decoder.

    As `validate decoder` compares them.
    """
    compare = validate_decoder if (Path(folder) / STEPS).exists() else validate_runs
    return compare(Path(folder), load_gpu(gpu), kernels="torch", latency=latency, fallback="calibrated")


def decoder_cells(gpu: str, folder: str, latency: LatencyName) -> pd.DataFrame:
    """Every cell of either: model, batch, candidates, measured_us, predicted_us, is_fitted."""
    import pandas as pd

    def times_us(cell: StepCell | RunsCell) -> tuple[float, float]:
        if isinstance(cell, StepCell):
            return cell.measured_us, cell.predicted_us
        return cell.step_us, cell.predicted_step_us

    columns = ["model", "batch", "candidates", "measured_us", "predicted_us", "is_fitted"]
    cells = decoder_validation(gpu, folder, latency).cells
    rows = [(cell.model, cell.batch, cell.candidates, *times_us(cell), cell.is_fitted) for cell in cells]
    return pd.DataFrame(rows, columns=columns)
