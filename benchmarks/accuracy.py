"""Writes the rows of docs/accuracy.md: predicted against every measured file, with the roofline beside it.

The rows are not part of this project (CONTRIBUTING.md); their folder is the argument, $MEDUSA_SIM_DATA, or
../shared/data. `make accuracy` runs this.
"""

from __future__ import annotations

import sys
from collections.abc import Hashable, Iterator, Mapping
from pathlib import Path

import numpy as np
import pandas as pd
from pages import write_tables
from recorded import data_folder, present
from scores import table

from medusa_sim.acceptance.profile import load_acceptance
from medusa_sim.latency.by_name import LatencyName
from medusa_sim.operators.kinds import KIND_OF
from medusa_sim.operators.table import read_rows
from medusa_sim.report.text import percent
from medusa_sim.reproduce import scores as paper_scores
from medusa_sim.specs.gpu import Gpu, load_gpu
from medusa_sim.specs.runtime import load_runtime
from medusa_sim.step.rows import predicted_rows
from medusa_sim.validate.operators import Score, regrets, scores

GPU_OF_FILE = {
    "a100": "a100-80gb-pcie",
    "a100sxm": "a100-80gb-sxm",
    "a40": "a40",
    "a6000": "rtx-a6000",
    "h100": "h100-sxm",
    "h100sxm": "h100-sxm",
    "h200sxm": "h200-sxm",
    "l40s": "l40s",
}


def heldout(gpu: Gpu, score: Score) -> float:
    """Leave-shape-out error that was stored with the fit; NaN where the kernel is borrowed."""
    chosen = gpu.kernel_set(load_runtime("kernel").kernel_set(score.dtype))
    is_linear = score.op == "linear"
    kernels = KIND_OF["gemm" if is_linear else score.op].table(chosen)
    kernel = kernels.get(score.dtype if is_linear else score.op)
    return float("nan") if kernel is None or kernel.fit.inherited_from else kernel.fit.heldout_error


def _refuse(line: str) -> None:
    """Every row of the published files has a kernel."""
    raise SystemExit(line)


def compared(path: Path, gpu: Gpu, latency: LatencyName) -> pd.DataFrame:
    """Rows of a file with the predictions of `medusa-sim time --runtime kernel --cache as-measured`."""
    rows = read_rows(path, need_time=True)
    return predicted_rows(rows, gpu, load_runtime("kernel"), leave_out=_refuse, latency=latency, cold=False)


def score_rows(folder: Path) -> Iterator[tuple[str, ...]]:
    """One line for each file, operator and dtype."""
    for path in sorted(folder.glob("*.parquet")):
        gpu = load_gpu(GPU_OF_FILE[path.stem.split("_")[0]])
        found = scores(compared(path, gpu, "calibrated"), gpu)
        ideal = {(s.op, s.dtype, s.size): s for s in scores(compared(path, gpu, "roofline"), gpu)}
        by_key = {(s.op, s.dtype, s.size): s for s in found}
        for op, dtype in dict.fromkeys((score.op, score.dtype) for score in found):
            every = by_key[op, dtype, "all"]
            part = by_key.get((op, dtype, "m <= 512")) or by_key.get((op, dtype, "KV beyond"))
            yield (
                gpu.name,
                path.stem,
                op,
                dtype,
                str(every.rows),
                percent(ideal[op, dtype, "all"].mean, 0),
                percent(every.mean),
                percent(heldout(gpu, every)),
                percent(part.mean) if part else "-",
                percent(every.worst, 0),
                percent(part.ratio) if part else "-",
                percent(every.within_band, 0),
            )


def range_rows(folder: Path) -> Iterator[tuple[str, ...]]:
    """Mean and worst error of linear layers by range of m."""
    for path in sorted(folder.glob("*_gemm_*.parquet")):
        gpu = load_gpu(GPU_OF_FILE[path.stem.split("_")[0]])
        found = [s for s in scores(compared(path, gpu, "calibrated"), gpu) if s.op == "linear"]
        for dtype in dict.fromkeys(score.dtype for score in found):
            ranges = {s.size: s for s in found if s.dtype == dtype}
            cells = [
                f"{percent(ranges[size].mean)} / {percent(ranges[size].worst, 0)}" if size in ranges else "-"
                for size in ("m 1..16", "m 17..64", "m 65..128", "m 129..512", "m > 512")
            ]
            yield (gpu.name, path.stem, dtype, *cells)


def regret_rows(folder: Path) -> Iterator[tuple[str, ...]]:
    """Choice regret over the models of each file."""
    curve = load_acceptance("paper-fig21")
    for path in sorted(folder.glob("*_gemm_torch.parquet")):
        gpu = load_gpu(GPU_OF_FILE[path.stem.split("_")[0]])
        cells = []
        for latency in ("calibrated", "roofline"):
            found = regrets(compared(path, gpu, latency), curve)
            cells += [percent(float(np.mean([r.mean for r in found]))), percent(max(r.worst for r in found))]
        yield (gpu.name, path.stem, str(len(found)), *cells)


def paper_rows() -> Iterator[tuple[str, ...]]:
    """Errors of the reproduction, one line for each target and quantity."""
    for record in paper_scores().to_dict("records"):
        words = (str(record[key]) for key in ("target", "quantity", "baseline", "cells"))
        errors = (_error(record, key) for key in ("mean_error", "worst_error"))
        yield (*words, *errors, str(record["worst_cell"]))


def _error(record: Mapping[Hashable, object], key: str) -> str:
    value = float(str(record[key]))
    return f"{value:.2f}" if "difference" in str(record["quantity"]) else percent(value)


def main() -> None:
    """Write the tables: scores, linear layers by range of m, regrets, the papers."""
    folder = present(data_folder(*sys.argv[1:2]) / "measured")
    headers = (
        ("GPU | file | operator | dtype | rows | roofline | fit | held out | deciding | worst row | ratio "
         "| in band", 4),
        ("GPU | file | dtype | 1..16 | 17..64 | 65..128 | 129..512 | > 512", 3),
        ("GPU | file | models | mean | worst | roofline: mean | worst", 2),
        ("target | quantity | baseline | cells | mean | worst | worst cell", 3),
    )  # fmt: skip
    found = (score_rows(folder), range_rows(folder), regret_rows(folder), paper_rows())
    tables = [table(*titles, rows) for titles, rows in zip(headers, found, strict=True)]
    write_tables("accuracy.md", "rows", tables)


if __name__ == "__main__":
    main()
