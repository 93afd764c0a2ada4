"""Figures that papers print, as shipped in `profiles/`, and the grids that the Medusa paper plots.

`Reproduction` is what a target hands out; `paper_latency` the kernels with which the Medusa paper's operators
are predicted, on each of its three GPUs.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

from msgspec.structs import replace

from medusa_sim import data
from medusa_sim.data import DataDir
from medusa_sim.errors import SpecError
from medusa_sim.gpus.gpu import Gpu, load_gpu
from medusa_sim.gpus.kernels import KernelSet
from medusa_sim.latency.calibrated import CalibratedLatency
from medusa_sim.latency.measured import OPERATOR_PROFILES
from medusa_sim.operators.table import read_rows
from medusa_sim.reading.documents import read_toml

if TYPE_CHECKING:
    from collections.abc import Callable

    import pandas as pd

    from medusa_sim.report.charts.chart import LineChart


PUBLISHED = "profiles/published"
PAPER_GPU = "a100-80gb-pcie"

BATCHES = (1, 2, 4, 8, 16, 32, 64)
SEQ_LENS = (128, 256, 512, 1024, 2048, 4096, 8192)
CANDIDATES = (1, 16, 32, 48, 64, 80, 96, 112)
"""Axes of the Medusa paper's Tables 6 to 8 and Figures 9 to 23."""


def read_published(name: str) -> pd.DataFrame:
    """Rows of `profiles/published/<name>.csv` as printed. Raises SpecError where the file is missing."""
    import pandas as pd

    return pd.read_csv(shipped(f"{PUBLISHED}/{name}.csv"))


def cited(name: str) -> str:
    """Paper and place in which the rows of `profiles/published/<name>.csv` are printed."""
    meta = read_toml(shipped(f"{PUBLISHED}/meta.toml"))
    entry = meta["files"][f"{name}.csv"]
    return f"{meta['papers'][entry['paper']]['source']}: {entry['where']}"


def operator_table(name: str) -> pd.DataFrame:
    """Checked operator rows of `profiles/operators/a100-80gb-pcie/<name>.csv`, one of the paper's tables.

    `published_tflops_per_s` and `published_op_intensity` are as printed; `time_us` follows from the first.
    """
    rows = read_rows(shipped(f"{OPERATOR_PROFILES}/{PAPER_GPU}/{name}.csv"), need_time=True)
    columns = ("published_tflops_per_s", "published_op_intensity")
    return rows.assign(**{column: rows[column].astype(float) for column in columns})


def shipped(path: str) -> Path:
    """A shipped file. The user's own data never stands in for what a paper printed."""
    full = data.shipped_dir() / path
    if not full.is_file():
        raise SpecError(f"{path} is missing: the installation is incomplete; install medusa-sim again")
    return full


@dataclass(frozen=True, slots=True, kw_only=True)
class Reproduction:
    """One target with its rows. name: as the command line spells it (`table6`). draw: its panels, if any.

    draw takes the GPU that the target is about, whose roof is drawn.
    """

    name: str
    title: str
    source: str
    caveat: str
    frame: pd.DataFrame
    draw: Draw | None = None


Draw: TypeAlias = "Callable[[Reproduction, Gpu], list[LineChart]]"


PAPER_SET = "paper"
MEASURED_SET = "torch"
_DTYPE = "fp16"


def paper_latency(gpu: Gpu, data_dir: DataDir = None) -> CalibratedLatency:
    """The `paper` kernel set of a GPU, or what stands in for it where the paper prints no times.

    The paper prints operator times for the A100 only. On another GPU the linear layers are those
    fitted to that GPU's own measured rows (set `torch`), the attention products have the A100's
    efficiencies, and both keep the A100 rows' cost of an eager launch. `Fit.inherited_from` says so.
    Raises SpecError where the A100 has no `paper` set or the GPU no measured linear layers.
    """
    if PAPER_SET in gpu.kernels:
        return CalibratedLatency(gpu, PAPER_SET)
    a100 = load_gpu(PAPER_GPU, data_dir)
    paper, measured = a100.kernel_set(PAPER_SET), a100.kernel_set(MEASURED_SET)
    own = gpu.kernel_set(MEASURED_SET).gemm
    if _DTYPE not in own or _DTYPE not in paper.gemm or _DTYPE not in measured.gemm or paper.unfused is None:
        raise SpecError(
            f"{gpu.name}: the paper's figures need {_DTYPE} linear layers fitted for it and for {PAPER_GPU}; "
            "fit them: medusa-sim calibrate"
        )
    launch_us = max(0.0, paper.gemm[_DTYPE].ramp_us - measured.gemm[_DTYPE].ramp_us)
    linear = replace(own[_DTYPE], ramp_us=own[_DTYPE].ramp_us + launch_us)
    products = replace(
        paper.unfused, fit=replace(paper.unfused.fit, inherited_from=f"{PAPER_GPU}:{PAPER_SET}")
    )
    stand_in = KernelSet(gemm={_DTYPE: linear}, unfused=products)
    return CalibratedLatency(
        dataclasses.replace(gpu, kernels={**gpu.kernels, PAPER_SET: stand_in}), PAPER_SET
    )


def paper_roof(gpu: Gpu) -> Gpu:
    """The GPU with the peaks that the paper draws (181 TFLOP/s for the RTX A6000), for roofs only."""
    return dataclasses.replace(gpu, peak_flops_per_s={**gpu.peak_flops_per_s, **gpu.paper_peak_flops_per_s})
