"""Fits and scores the kernels of linear attention, windows, sparse attention and hyper-connections.

    python benchmarks/mixer_kernels.py fit [GPU...]      fit every kernel, write it into hardware/
    python benchmarks/mixer_kernels.py score             fit and held-out errors of what is stored, by kernel
    python benchmarks/mixer_kernels.py transfer          parameters of one GPU on the rows of another

Rows: kernels_2026 of the data folder (benchmarks/recorded.py), which is not part of the project. Held out are
whole groups of shapes: numbers of heads, of tokens for hyper-connections.
"""

from __future__ import annotations

import sys
from collections import defaultdict
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from recorded import data_folder, present

from medusa_sim.arrays import FloatArray
from medusa_sim.calibrate.rows import FittedKernel, fitted_kernels, write_kernels
from medusa_sim.latency.stream import stream_time
from medusa_sim.operators.columns import texts
from medusa_sim.operators.stream import Stream
from medusa_sim.operators.table import operators_of, read_rows
from medusa_sim.specs.gpu import load_gpu

if TYPE_CHECKING:
    import pandas as pd

FILES = ("gdn", "kda", "mamba2", "hyper_connections", "window_attention", "sparse")
SECTIONS = ("recurrent", "window", "sparse", "hyper")
SOURCE = "aiconfigurator-core 0.12 (Apache-2.0): {gpu}, {engine} {versions}, kernels of 2026"
LARGEST_ERROR = 0.6
"""Held-out error beyond which rows are no kernel's: TensorRT-LLM's prompts of MiniMax-M3 on a B200 take 3 to
300 ms whatever their size.
"""
PAIRS = (("b200", "gb200"), ("gb200", "b200"), ("h100-sxm", "b200"), ("l40s", "rtx-pro-6000"))
"""Lender and borrower: cards of one architecture first."""


def tables(*names: str) -> list[pd.DataFrame]:
    """The checked rows of each file."""
    folder = present(data_folder() / "kernels_2026")
    return [read_rows(folder / f"{name}.parquet", need_time=True) for name in names or FILES]


def fit(gpus: list[str]) -> None:
    """Fit and write every kernel of these GPUs (all of the rows where none is named)."""
    for table in tables():
        found: dict[tuple[str, str], list[FittedKernel]] = defaultdict(list)
        for (gpu, engine), rows in table.groupby(["gpu", "engine"]):
            if gpus and gpu not in gpus:
                continue
            versions = " and ".join(sorted(rows["version"].unique()))
            source = SOURCE.format(gpu=gpu, engine=engine, versions=versions)
            card, frame = load_gpu(str(gpu)), rows.reset_index(drop=True)
            for each in fitted_kernels(frame, card, source, kernel_set=str(engine), leave_out=print):
                said = each.kernel.fit
                print(
                    f"{gpu} {engine} {each.section}.{each.key} {said.rows}: {said.heldout_error:.1%}",
                    flush=True,
                )
                if said.heldout_error < LARGEST_ERROR:
                    found[str(gpu), str(engine)].append(each)
        for (gpu, engine), kernels in found.items():
            print(write_kernels(Path("hardware"), load_gpu(gpu), engine, kernels), flush=True)


def score() -> None:
    """A line a stored kernel, and the means by section and phase."""
    errors: dict[str, list[float]] = defaultdict(list)
    cards = sorted({str(gpu) for table in tables("gdn") for gpu in table["gpu"].unique()})
    for gpu in cards:
        for set_name, held in load_gpu(gpu).kernels.items():
            for section in SECTIONS:
                for key, kernel in held.table(section).items():
                    if kernel.fit.inherited_from:
                        continue
                    said = kernel.fit
                    print(f"{gpu:14} {set_name:7} {section:10} {key:75} {said.rows:6} {said.fit_error:7.1%} "
                          f"{said.heldout_error:7.1%}")  # fmt: skip
                    errors["_".join([section, *key.split("@")[0].split("_")[:3]])].append(said.heldout_error)
    for name, each in sorted(errors.items()):
        print(
            f"{name:40} {len(each):4} kernels, held out: median {np.median(each):.1%}, worst {max(each):.1%}"
        )


def transfer() -> None:
    """One GPU's parameters on another's rows: mean error, and what holds 80 % of them beyond the own band."""
    for table in tables():
        for lender, borrower in PAIRS:
            rows = table[table["gpu"] == borrower].reset_index(drop=True)
            found = []
            for index, operator in operators_of(rows, by=("engine", "kernel")) if len(rows) else ():
                engine, name = (str(texts(rows, column, index[:1])[0]) for column in ("engine", "kernel"))
                held = load_gpu(lender).kernels.get(engine)
                if held is None or not isinstance(operator, Stream):
                    continue
                kernels = [kernel for section in SECTIONS for key, kernel in held.table(section).items()
                           if key.partition("@")[0] == operator.form and kernel.name == name]  # type: ignore[union-attr]  # fmt: skip
                for kernel in kernels[:1]:
                    told = stream_time(load_gpu(borrower), kernel, operator, cold=False)  # type: ignore[arg-type]
                    ends = (rows["time_us"].to_numpy()[index], told.low_us, told.high_us)
                    found.append([np.log(each / told.time_us) for each in ends])
            if found:
                what = rows["op"].iloc[0]
                every: FloatArray = np.concatenate(found, axis=1)
                error = np.abs(np.exp(-every[0]) - 1.0).mean()
                print(
                    f"{what:20} {lender:10} -> {borrower:14} {every.shape[1]:6} rows: {error:.1%}, beyond "
                    f"the own band +-{_beyond(*every):.2f}"
                )


def _beyond(measured: FloatArray, low: FloatArray, high: FloatArray) -> float:
    """What, in quadrature beside half the band, holds 80 % of the rows, in the logarithm."""
    off, half = np.abs(measured - (low + high) / 2.0), (high - low) / 2.0
    return float(np.quantile(np.sqrt(np.maximum(off**2 - half**2, 0.0)), 0.8))


if __name__ == "__main__":
    actions = {"fit": lambda: fit(sys.argv[2:]), "score": score, "transfer": transfer}
    if len(sys.argv) < 2 or sys.argv[1] not in actions:
        sys.exit(f"give one of {', '.join(actions)}: python benchmarks/mixer_kernels.py score")
    actions[sys.argv[1]]()
