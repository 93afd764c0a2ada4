"""Fits layers of experts of serving engines, and scores them on models that were held out.

    python benchmarks/moe_kernels.py fit [GPU ...]      writes hardware/*.toml
    python benchmarks/moe_kernels.py score [GPU ...]    a table: each model predicted by a fit without it
    python benchmarks/moe_kernels.py spread [GPU ...]   rows of expert parallelism, which no fit has seen

The rows are not part of this project (CONTRIBUTING.md): `moe_tp/moe.parquet` lies in $MEDUSA_SIM_DATA or
../shared/data. Rows with a word in `suspect` and those of expert parallelism are left out: how their tokens
were spread over ranks was not recorded. `spread` predicts them nevertheless, and prints the half-width (of
the logarithm) that, added in quadrature to the kernels' own bands, holds 80 % of them: in `latency/moe.py`.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd
from recorded import GPU_OF_ROWS, data_folder, present
from scipy.optimize import brentq

from medusa_sim.arrays import FloatArray
from medusa_sim.calibrate.fit import Rows, growth_mape, mape
from medusa_sim.calibrate.moe import refitted_experts
from medusa_sim.calibrate.rows import fitted_kernels, write_kernels
from medusa_sim.latency.base import residual_band
from medusa_sim.latency.moe import SPREAD_ERROR, experts_time
from medusa_sim.operators.experts import Experts
from medusa_sim.operators.table import check_rows, operators_of
from medusa_sim.report.text import NOTHING, TextTable, markdown, percent
from medusa_sim.specs.fitted import ExpertKernel
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


SPREAD_HEADERS = (
    "GPU",
    "kernels",
    "kernel",
    "rows",
    "error",
    "too long by",
    "in its own band",
    "in the band of spread experts",
)


def table(gpus: list[str], *, spread: bool = False) -> Iterator[tuple[Gpu, str, pd.DataFrame]]:
    """Rows of each GPU and engine that can be used; those of expert parallelism where `spread`."""
    every = pd.read_parquet(present(data_folder() / "moe_tp" / "moe.parquet"))
    every = every[((every["ep"] > 1) == spread) & (every["inter"] % every["tp"] == 0)]
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
    for gpu, engine, form, kernel, frame in rows_of_kernels(gpus):
        held = held_out(gpu, kernel, form, frame)
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


def rows_of_kernels(
    gpus: list[str], *, spread: bool = False
) -> Iterator[tuple[Gpu, str, str, ExpertKernel, pd.DataFrame]]:
    """GPU, engine, format and kernel of the shipped files, with its rows that carry no word in `suspect`."""
    for gpu, engine, frame in table(gpus, spread=spread):
        clean = frame[frame["suspect"].astype(str) == ""]
        for key, kernel in gpu.kernels[engine].moe.items():
            if kernel.fit.inherited_from:
                continue
            form = key.partition("@")[0]
            of_kernel = clean[clean["kernel"].astype(str) == kernel.name].reset_index(drop=True)
            for index, operator in operators_of(of_kernel) if len(of_kernel) else ():
                if operator.form == form:
                    yield gpu, engine, form, kernel, of_kernel.iloc[index].reset_index(drop=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class Spread:
    """Rows of expert parallelism of one kernel: measured / predicted, and its own band of that."""

    ratio: FloatArray
    low: FloatArray
    high: FloatArray

    def inside(self, error: float) -> float:
        """Share of the rows in the band with `error` added to its half-width in quadrature."""
        half = np.hypot(0.5 * np.log(self.high / self.low), error)
        return float(np.mean(np.abs(np.log(self.ratio / np.sqrt(self.low * self.high))) <= half))


def spread(gpus: list[str]) -> Iterator[tuple[tuple[str, ...], Spread]]:
    """One line for each kernel with rows of expert parallelism."""
    for gpu, engine, form, kernel, frame in rows_of_kernels(gpus, spread=True):
        ((_, operator),) = operators_of(frame)
        assert isinstance(operator, Experts)
        measured_us = frame["time_us"].to_numpy(dtype=np.float64)
        predicted_us = experts_time(gpu, kernel, operator, cold=False).time_us
        low, high = residual_band(kernel.fit.residuals, operator.size)
        found = Spread(ratio=measured_us / predicted_us, low=low, high=high)
        line = (
            gpu.name,
            f"{engine}:{form}",
            kernel.name,
            str(len(measured_us)),
            percent(mape(predicted_us, measured_us)),
            percent(float(np.mean(predicted_us / measured_us)) - 1.0),
            percent(found.inside(0.0), 0),
            percent(found.inside(SPREAD_ERROR), 0),
        )
        yield line, found


def print_spread(gpus: list[str]) -> None:
    """The table, and the half-width to add."""
    lines, found = zip(*spread(gpus), strict=True)
    print(markdown(TextTable(SPREAD_HEADERS, lines, tuple(i > 2 for i in range(len(SPREAD_HEADERS))))))
    needed = brentq(lambda error: np.mean([each.inside(error) for each in found]) - 0.8, 0.0, 2.0)
    print(f"\nFor 80 % of the rows of a kernel, in the mean over kernels, add {needed:.2f}")


def main() -> None:
    """Fit, or print the table."""
    what, *gpus = sys.argv[1:] or [""]
    if what == "fit":
        fit(gpus)
    elif what == "score":
        print(markdown(TextTable(HEADERS, tuple(score(gpus)), tuple(i > 2 for i in range(len(HEADERS))))))
    elif what == "spread":
        print_spread(gpus)
    else:
        raise SystemExit(__doc__)


if __name__ == "__main__":
    main()
