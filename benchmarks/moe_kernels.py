"""Fits layers of experts of serving engines, and scores them on models that were held out.

    python benchmarks/moe_kernels.py fit [GPU ...]      writes hardware/*.toml
    python benchmarks/moe_kernels.py score [GPU ...]    a table: each model predicted by a fit without it

The rows are not part of this project (CONTRIBUTING.md): `moe_tp/moe.parquet` lies in $MEDUSA_SIM_DATA or
../shared/data. Rows with a word in `suspect` and those of expert parallelism are left out: how their tokens
were spread over ranks was not recorded.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd
from recorded import GPU_OF_ROWS, data_folder

from medusa_sim.arrays import FloatArray
from medusa_sim.calibrate.fit import Rows
from medusa_sim.calibrate.moe import refitted_experts
from medusa_sim.calibrate.rows import fitted_kernels, write_kernels
from medusa_sim.calibrate.scores import growth_mape, mape
from medusa_sim.latency.moe import experts_time
from medusa_sim.operators.experts import Experts
from medusa_sim.operators.table import operators_of
from medusa_sim.operators.table_check import check_rows
from medusa_sim.report.numbers import NOTHING, percent
from medusa_sim.report.text import TextTable, markdown
from medusa_sim.specs.expert_kernel import ExpertKernel
from medusa_sim.specs.gpu import Gpu, load_gpu

ROOT = Path(__file__).resolve().parents[1]
HEADERS = (
    "GPU",
    "kernels",
    "kernel",
    "rows",
    "models",
    "fit",
    "held out",
    "worst model",
    "growth",
    "in band",
)


def table(gpus: list[str]) -> Iterator[tuple[Gpu, str, pd.DataFrame]]:
    """Rows of each GPU and engine that can be used."""
    every = pd.read_parquet(data_folder() / "moe_tp" / "moe.parquet")
    every = every[(every["ep"] == 1) & (every["inter"] % every["tp"] == 0)]
    for name, rows in every.groupby("gpu", observed=True):
        if GPU_OF_ROWS[str(name)] not in (gpus or GPU_OF_ROWS.values()):
            continue
        for engine, part in rows.groupby("engine", observed=True):
            frame = part.reset_index(drop=True)
            yield (
                load_gpu(GPU_OF_ROWS[str(name)]),
                str(engine),
                check_rows(frame, "moe.parquet", need_time=True),
            )


def source_of(engine: str, frame: pd.DataFrame) -> str:
    """One line that is kept with the parameters."""
    versions = ", ".join(sorted(frame["version"].astype(str).unique()))
    return (
        f"aiconfigurator-core 0.12 (Apache-2.0): {engine} {versions}, fused MoE layers of published models, "
        "tensor parallel 1 to 8, routing balanced and power law, CUDA graph"
    )


def fit(gpus: list[str]) -> None:
    """Fit every kernel and write it into the shipped hardware files."""
    for gpu, engine, frame in table(gpus):
        fitted = []
        for each in fitted_kernels(frame, gpu, source_of(engine, frame), kernel_set=engine, leave_out=print):
            errors = each.kernel.fit
            print(
                f"{gpu.name} {engine}:{each.key} {errors.fit_error:.1%}, held out {errors.heldout_error:.1%}"
            )
            fitted.append(each)
        write_kernels(ROOT / "hardware", load_gpu(gpu.name), engine, fitted)


@dataclass(frozen=True, slots=True, kw_only=True)
class Held:
    """Predictions of rows whose model no fit has seen."""

    frame: pd.DataFrame
    measured_us: FloatArray
    fitted_us: FloatArray
    held_us: FloatArray
    inside: FloatArray


def held_out(gpu: Gpu, kernel: ExpertKernel, form: str, frame: pd.DataFrame) -> Held:
    """Each model predicted by the shipped kernel, fitted again without that model; its rule stays."""
    ((_, operator),) = operators_of(frame)
    if not isinstance(operator, Experts):
        raise SystemExit("moe.parquet has rows of another operator")
    rows = Rows(operator, frame["time_us"].to_numpy(dtype=np.float64))
    held_us = np.empty_like(rows.time_us)
    models = frame["model"].astype(str).to_numpy()
    for model in np.unique(models):
        own = models == model
        if own.all():  # of a single model, widths are left out where it is fitted
            held_us = experts_time(gpu, kernel, operator, cold=False).time_us
            break
        refit = refitted_experts(kernel, rows.where(~own), gpu)
        held_us[own] = experts_time(gpu, refit, rows.where(own).operator, cold=False).time_us
    found = experts_time(gpu, kernel, operator, cold=False, form=form)
    inside = (rows.time_us >= found.low_us) & (rows.time_us <= found.high_us)
    return Held(
        frame=frame,
        measured_us=rows.time_us,
        fitted_us=found.time_us,
        held_us=held_us,
        inside=inside.astype(np.float64),
    )


def ratio_error(held: Held) -> float:
    """Mean error of T(2, 4, 8 times the tokens) / T of the same layer and routing."""
    layers = held.frame.groupby(["model", "tp", "distribution"], observed=True).ngroup()
    tokens = held.frame["tokens"].to_numpy(dtype=np.int64)
    return growth_mape(held.held_us, held.measured_us, tokens, np.asarray(layers, dtype=np.int64))


def score(gpus: list[str]) -> Iterator[tuple[str, ...]]:
    """One line for each kernel of the shipped hardware files."""
    for gpu, engine, frame in table(gpus):
        clean = frame[frame["suspect"].astype(str) == ""]
        for key, kernel in gpu.kernels[engine].moe.items():
            if kernel.fit.inherited_from:
                continue
            form = key.partition("@")[0]
            of_kernel = clean[clean["kernel"].astype(str) == kernel.name].reset_index(drop=True)
            rows = next(index for index, operator in operators_of(of_kernel) if operator.form == form)
            held = held_out(gpu, kernel, form, of_kernel.iloc[rows].reset_index(drop=True))
            errors = np.abs(held.held_us / held.measured_us - 1.0)
            by_model = pd.Series(errors).groupby(held.frame["model"].astype(str)).mean()
            alone = len(by_model) == 1
            worst = NOTHING if alone else f"{percent(float(by_model.max()))} {by_model.idxmax()}"
            yield (
                gpu.name,
                f"{engine}:{form}",
                kernel.name,
                str(len(errors)),
                str(len(by_model)),
                percent(mape(held.fitted_us, held.measured_us)),
                percent(kernel.fit.heldout_error if alone else float(errors.mean())),
                worst,
                percent(ratio_error(held)),
                percent(float(held.inside.mean()), 0),
            )


def main() -> None:
    """Fit, or print the table."""
    what, *gpus = sys.argv[1:] or [""]
    if what == "fit":
        fit(gpus)
    elif what == "score":
        print(markdown(TextTable(HEADERS, tuple(score(gpus)), tuple(i > 2 for i in range(len(HEADERS))))))
    else:
        raise SystemExit(__doc__)


if __name__ == "__main__":
    main()
