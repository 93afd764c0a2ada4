"""Scores quantised linear layers on measured rows: the fit, and refits without whole weight shapes.

    python benchmarks/quantised.py [FOLDER]        # some five minutes; --fit-only: seconds
    python benchmarks/quantised.py --write-int4 hardware/a100-80gb-sxm.toml

FOLDER holds quant_gemm.parquet (CONTRIBUTING.md); default: moe_tp in $MEDUSA_SIM_DATA or ../shared/data. Each
kernel is refitted five times without a fifth of the (n, k), from where `medusa-sim calibrate` begins.

--write-int4 fits the int4 kernel of the A100's set `sglang`, which every card borrows: rows of TensorRT-LLM
with 32 MB of weights or more, ramp and bandwidth of the set's bf16 kernel, since the plugin's launches take
11 to 18 us.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import msgspec
import numpy as np
import numpy.typing as npt
from recorded import GPU_OF_ROWS, data_folder, present

from medusa_sim.calibrate.fit import FOLDS, Rows
from medusa_sim.calibrate.gemm import fit_gemm, gemm_start, merged_repeats, unscored_gemm
from medusa_sim.calibrate.rows import write_kernel
from medusa_sim.latency.base import RooflineLatency
from medusa_sim.latency.gemm import gemm_time
from medusa_sim.operators.operator import Gemm
from medusa_sim.operators.table import operators_of, read_rows
from medusa_sim.report.text import TextTable, markdown, percent
from medusa_sim.specs.gpu import Gpu, load_gpu

HEADERS = (
    "GPU",
    "kernels",
    "rows",
    "roofline",
    "fit",
    "m <= 512",
    "held out",
    "held out, m <= 512",
    "worst row",
    "in band",
)
DECIDING_M = 512
LARGE_BYTES = 32e6
INT4_SOURCE = (
    "aiconfigurator-core 0.12 (Apache-2.0): A100 SXM, TensorRT-LLM 1.0 weight-only plugin, CUDA graph; "
    "layers of 32 MB of weights or more, with ramp and bandwidth of this set's bf16 kernel, for the plugin's "
    "launches take 11 to 18 us"
)
Floats = npt.NDArray[np.float64]


def mean_error(predicted_us: Floats, measured_us: Floats) -> float:
    """Mean absolute percentage error as a fraction."""
    return float(np.mean(np.abs(predicted_us / measured_us - 1.0)))


def held_out_us(rows: Rows[Gemm], gpu: Gpu, kernel_set: str) -> Floats:
    """Times of rows whose weight shape was left out of the refit that predicts them."""
    shapes = rows.labels("n", "k")
    found = np.empty_like(rows.time_us)
    for fold in range(FOLDS):
        held = shapes % FOLDS == fold
        start = gemm_start(kernel_set, rows.operator.form, gpu)
        kernel = unscored_gemm(rows.where(~held), gpu, start)
        found[held] = gemm_time(gpu, kernel, rows.where(held).operator, cold=False).time_us
    return found


def line(rows: Rows[Gemm], gpu: Gpu, kernel_set: str, *, refit: bool) -> tuple[str, ...]:
    """One line of the table: a kernel set and format on a GPU."""
    form = rows.operator.form
    found = gemm_time(gpu, gpu.kernels[kernel_set].gemm[form], rows.operator, cold=False, form=form)
    small = np.asarray(rows.operator.m) <= DECIDING_M
    errors = np.abs(found.time_us / rows.time_us - 1.0)
    inside = (found.low_us <= rows.time_us) & (rows.time_us <= found.high_us)
    held = ("-", "-")
    if refit:
        times = held_out_us(rows, gpu, kernel_set)
        held = (
            percent(mean_error(times, rows.time_us)),
            percent(mean_error(times[small], rows.time_us[small])),
        )
    return (
        gpu.name,
        f"{kernel_set}:{form}",
        f"{len(rows.time_us):,}",
        percent(mean_error(RooflineLatency(gpu).time(rows.operator).time_us, rows.time_us), 0),
        percent(float(np.mean(errors))),
        percent(float(np.mean(errors[small]))),
        *held,
        percent(float(np.max(errors)), 0),
        percent(float(np.mean(inside)), 0),
    )


def write_int4(rows: Rows[Gemm], gpu: Gpu, path: Path) -> None:
    """Fit the int4 kernel that other libraries and cards borrow, into the hardware file at `path`."""
    half = gpu.kernels["sglang"].gemm["bf16"]
    pinned = {name: getattr(half, name) for name in ("ramp_us", "bandwidth_fraction", "memory_norm")}
    start = msgspec.structs.replace(gemm_start("sglang", "int4", gpu), drain_k=0.0, **pinned)
    large = rows.where(rows.operator.weight_bytes >= LARGE_BYTES)
    kernel = fit_gemm(large, gpu, source=INT4_SOURCE, start=start, pinned=tuple(pinned))
    write_kernel(path, "sglang", "gemm", "int4", kernel)
    print(f"{path}: off by {percent(kernel.fit.fit_error)}, held out {percent(kernel.fit.heldout_error)}")


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("folder", nargs="?", type=Path)
    parser.add_argument("--write-int4", type=Path, help="hardware file of the A100 to write to")
    parser.add_argument("--fit-only", action="store_true", help="no refits")
    given = parser.parse_args()
    folder = given.folder or data_folder() / "moe_tp"
    frame = read_rows(present(folder / "quant_gemm.parquet"), need_time=True)
    lines = []
    for (recorded, engine), part in frame.groupby(["gpu", "engine"], observed=True):
        kept = part.reset_index(drop=True)
        times = kept["time_us"].to_numpy(dtype=np.float64)
        for index, operator in operators_of(kept):
            assert isinstance(operator, Gemm)
            rows = merged_repeats(Rows(operator, times[index]))
            gpu = load_gpu(GPU_OF_ROWS[str(recorded)])
            if given.write_int4 is not None:
                if operator.form == "int4":
                    write_int4(rows, gpu, given.write_int4)
                continue
            lines.append(line(rows, gpu, str(engine), refit=not given.fit_only))
    if lines:
        print(markdown(TextTable(HEADERS, tuple(lines), tuple(column > 1 for column in range(len(HEADERS))))))


if __name__ == "__main__":
    main()
