"""Predicted against every measured file of operators, and the roofline beside it: rows of docs/validation.md.

    python benchmarks/operator_rows.py            # the tables; seven seconds of one core
    python benchmarks/operator_rows.py --write    # into the page

`pairs` are the same rows as `make accuracy` takes them.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from pathlib import Path

import numpy as np
import pandas as pd
from common.measured_pairs import joined, kernel_pairs
from common.pages import write_tables
from common.script import command_line
from common.study import measured, table

from medusa_sim.acceptance.profile import load_acceptance
from medusa_sim.engines.runtime import load_runtime
from medusa_sim.gpus.gpu import Gpu, load_gpu
from medusa_sim.lab.reproduce import scores as paper_scores
from medusa_sim.lab.validate.operators import Score, scores
from medusa_sim.lab.validate.regrets import regrets
from medusa_sim.latency.by_name import LatencyName
from medusa_sim.operators.columns import SIZE_COLUMNS
from medusa_sim.operators.kinds import KIND_OF
from medusa_sim.operators.table import read_rows
from medusa_sim.report.words.numbers import percent
from medusa_sim.step.rows import predicted_rows

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


def pairs() -> pd.DataFrame:
    """Every row as a pair (`common/measured_pairs.py`)."""
    return joined(frames())


def frames() -> Iterator[pd.DataFrame]:
    """The same, kernel by kernel."""
    for path, gpu in files("*.parquet"):
        rows, library = compared(path, gpu, "calibrated"), path.stem.split("_")[-1]
        yield from kernel_pairs(rows, gpu, data=f"measured/{path.name}", engine=library)


def _refuse(line: str) -> None:
    """Every row of the published files has a kernel."""
    raise SystemExit(line)


def files(pattern: str) -> Iterator[tuple[Path, Gpu]]:
    """Files of rows with their GPU."""
    for path in sorted(measured("measured").glob(pattern)):
        yield path, load_gpu(GPU_OF_FILE[path.stem.split("_")[0]])


def compared(path: Path, gpu: Gpu, latency: LatencyName, *, by_shape: bool = True) -> pd.DataFrame:
    """Rows of a file with the predictions of `medusa-sim time --runtime kernel --cache as-measured`.

    by_shape: layers of one shape are one row, the median of their times, as in the fit and the refits.
    """
    rows = read_rows(path, need_time=True)
    if by_shape:
        shape = [name for name in (*SIZE_COLUMNS, "dtype") if name in rows]
        is_linear = rows[["m", "n", "k"]].notna().all(axis=1)
        linear = rows[is_linear].groupby(shape, sort=False, dropna=False)
        medians = linear["time_us"].transform("median")
        rows = rows.assign(time_us=rows["time_us"].mask(is_linear, medians))
        rows = rows[~is_linear | ~rows.duplicated(shape)].reset_index(drop=True)
    return predicted_rows(rows, gpu, load_runtime("kernel"), leave_out=_refuse, latency=latency, cold=False)


@cache
def scored(path: Path, gpu: Gpu, latency: LatencyName) -> dict[tuple[str, str, str], Score]:
    """Scores of a file by operator, dtype and size."""
    return {(s.op, s.dtype, s.size): s for s in scores(compared(path, gpu, latency), gpu)}


def score_rows() -> Iterator[tuple[object, ...]]:
    """One line for each file, operator and dtype."""
    for path, gpu in files("*.parquet"):
        found, ideal = scored(path, gpu, "calibrated"), scored(path, gpu, "roofline")
        for op, dtype in dict.fromkeys((op, dtype) for op, dtype, _ in found):
            every = found[op, dtype, "all"]
            part = found.get((op, dtype, "m <= 512")) or found.get((op, dtype, "KV beyond"))
            deciding, ratio = (percent(part.mean), percent(part.ratio)) if part else ("-", "-")
            yield (
                gpu.name, path.stem, op, dtype, every.rows, percent(ideal[op, dtype, "all"].mean, 0),
                percent(every.mean), percent(heldout(gpu, every)), deciding, percent(every.worst, 0), ratio,
                percent(every.within_band, 0),
            )  # fmt: skip


def range_rows() -> Iterator[tuple[object, ...]]:
    """Mean and worst error of linear layers by range of m."""
    for path, gpu in files("*_gemm_*.parquet"):
        found = scored(path, gpu, "calibrated")
        for dtype in dict.fromkeys(dtype for op, dtype, _ in found if op == "linear"):
            ranges = [
                found.get(("linear", dtype, size))
                for size in ("m 1..16", "m 17..64", "m 65..128", "m 129..512", "m > 512")
            ]
            cells = (f"{percent(each.mean)} / {percent(each.worst, 0)}" if each else "-" for each in ranges)
            yield (gpu.name, path.stem, dtype, *cells)


def regret_rows() -> Iterator[tuple[object, ...]]:
    """Choice regret over the models of each file."""
    curve = load_acceptance("paper-fig21")
    for path, gpu in files("*_gemm_torch.parquet"):
        cells = []
        for latency in ("calibrated", "roofline"):
            found = regrets(compared(path, gpu, latency, by_shape=False), curve)
            cells += [percent(float(np.mean([r.mean for r in found]))), percent(max(r.worst for r in found))]
        yield (gpu.name, path.stem, len(found), *cells)


def paper_rows() -> Iterator[tuple[object, ...]]:
    """Errors of the reproduction, one line for each target and quantity."""
    for row in paper_scores().to_dict("records"):
        words = (row[key] for key in ("target", "quantity", "baseline", "cells"))
        is_difference = "difference" in str(row["quantity"])
        errors = (float(str(row[key])) for key in ("mean_error", "worst_error"))
        told = (f"{error:.2f}" if is_difference else percent(error) for error in errors)
        yield (*words, *told, row["worst_cell"])


def tables_of_files() -> Iterator[str]:
    """The tables with a line for each file."""
    operators = "GPU | file | operator | dtype | rows | roofline | fit | held out | deciding | worst row"
    yield table(f"{operators} | ratio | in band", 4, score_rows())
    yield table("GPU | file | dtype | 1..16 | 17..64 | 65..128 | 129..512 | > 512", 3, range_rows())


def main() -> None:
    """Scores, linear layers by range of m, regrets, the papers."""
    given = command_line(__doc__, writes="the tables into docs/validation.md").parse_args()
    tables = [
        *tables_of_files(),
        table("GPU | file | models | mean | worst | roofline: mean | roofline: worst", 2, regret_rows()),
        table("target | quantity | baseline | cells | mean | worst | worst cell", 3, paper_rows()),
    ]
    print("\n".join(tables))
    if given.write:
        write_tables("validation.md", "rows", tables)


if __name__ == "__main__":
    main()
