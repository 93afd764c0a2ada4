"""The law of a local engine's kernels, corrected by rows that a person measured on their own machine.

(O1)  law' = law with bandwidth f_1, arithmetic f_2, what is fixed f_3 and tiles f_4 times as fast
f    = least squares of ln(predicted / measured) over the rows, with ln f ~ N(0, SPREAD)
(O2)  what is left at the measured numbers of columns is interpolated between them, in proportion
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from medusa_sim.acceptance.heads import NORMAL_90TH
from medusa_sim.arrays import BoolArray, FloatArray
from medusa_sim.engines.runtime import Runtime
from medusa_sim.gpus.gpu import Gpu
from medusa_sim.gpus.local import LocalLaw, TypeLaw
from medusa_sim.latency.local import LocalLatency
from medusa_sim.models.model import Model
from medusa_sim.scenario.local_rows import LocalRow, read_rows
from medusa_sim.step.last_logits import last_logits
from medusa_sim.step.pass_cost import timed_pass
from medusa_sim.step.pass_times import PassTimes
from medusa_sim.step.setting import Setting
from medusa_sim.step.step import decode_step, verification_work

SPREAD = (0.12, 0.35, 0.35, 0.35)
"""Spread of devices around their law: bandwidth, arithmetic, what is fixed and tiles, in the logarithm.

Plain speeds of devices that were left out err by a tenth, their slopes by a third (docs/local.md)."""
NOISE = 0.03
"""Spread of a row: two runs of llama-bench differ by one or two hundredths, more on a warm laptop."""
LEAST_BAND = 0.03
_FIXED = ("launch_us", "pass_us", "attention_us", "step_us", "routing_us", "sorted_us")
"""Times of a law that do not depend on sizes."""


def corrected_by_file(gpu: Gpu, model: Model, runtime: Runtime, path: Path) -> LocalLatency:
    """The latency model of a machine, corrected by a file of rows that it was measured with."""
    return _with_rows(gpu, model, runtime, tuple(read_rows(path).rows))


@lru_cache(maxsize=16)
def _with_rows(gpu: Gpu, model: Model, runtime: Runtime, rows: tuple[LocalRow, ...]) -> LocalLatency:
    """The same; scenarios that differ elsewhere share the fit."""
    return corrected(LocalLatency(gpu, runtime.local), model, runtime, rows)


def corrected(
    latency: LocalLatency, model: Model, runtime: Runtime, rows: Sequence[LocalRow]
) -> LocalLatency:
    """The latency model with its law corrected by rows of this model on this machine (O1, O2)."""
    from scipy.optimize import least_squares

    if not rows:
        return latency
    measured = np.log([row.time_us for row in rows])
    noise = NOISE * np.sqrt(1.0 + 3.0 / np.array([row.passes for row in rows]))
    spread = np.asarray(SPREAD)

    def residuals(factors: FloatArray) -> FloatArray:
        times = pass_times(replace_law(latency, scaled(latency.law, *np.exp(factors))), model, runtime, rows)
        return np.concatenate([(np.log(times) - measured) / noise, factors / spread])

    found = least_squares(residuals, np.zeros(len(SPREAD)), xtol=1e-3, ftol=1e-4)
    jacobian = np.asarray(found.jac)
    factors, own = found.x, slice(len(rows))
    fitted = replace_law(latency, scaled(latency.law, *np.exp(factors)))
    curve: tuple[tuple[float, float], ...] = ()
    for _ in range(3):  # what is put on products is not all of a step
        with_curve = replace_law(fitted, msgspec.structs.replace(fitted.law, curve=curve))
        left = measured - np.log(pass_times(with_curve, model, runtime, rows))
        curve = _curve(rows, left, curve)
    if curve[-1][0] <= fitted.law.limit:  # behind the switch other kernels run
        curve = (*curve, (fitted.law.limit + 1.0, 0.0))
    # rows that the four factors used up: few where rows say little beside what is known of devices
    used = np.trace(jacobian[own] @ np.linalg.solve(jacobian.T @ jacobian, jacobian[own].T))
    errors = found.fun[own] * noise
    band = max(LEAST_BAND, NORMAL_90TH * float(np.sqrt((errors**2).sum() / (len(rows) - used))))
    beyond = (float(max(row.columns for row in rows)), latency.law.band)
    own_law = msgspec.structs.replace(
        fitted.law, curve=curve, band=min(band, latency.law.band), beyond=beyond
    )
    return replace_law(fitted, own_law)


def band_without_rows(latency: LocalLatency) -> float:
    """Half-width, in the logarithm, of passes of a device whose own rows are not known."""
    return LocalLatency(latency.gpu, latency.law.backend).law.band


def replace_law(latency: LocalLatency, law: LocalLaw) -> LocalLatency:
    """A device with another law."""
    return LocalLatency(latency.gpu, law.backend, law, latency.clock)


def scaled(law: LocalLaw, bandwidth: float, arithmetic: float, fixed: float, tiled: float) -> LocalLaw:
    """The law of a device that is faster by a factor in each; tiled: arithmetic of kernels in tiles."""

    def of(kind: TypeLaw) -> TypeLaw:
        ops = {name: getattr(kind, name) / arithmetic for name in ("unpack", "column")}
        if kind.single is not None:
            ops["single"] = kind.single / arithmetic
        blocks = tuple((columns, block / arithmetic) for columns, block in kind.blocks)
        return msgspec.structs.replace(kind, share=kind.share * bandwidth, blocks=blocks, **ops)

    def tiles(matrix: Any) -> Any:
        ops = {name: getattr(matrix, name) / tiled for name in ("unpack", "column")}
        return msgspec.structs.replace(
            matrix, share=matrix.share * bandwidth, peak=matrix.peak * tiled, **ops
        )

    us = {name: getattr(law, name) / fixed for name in _FIXED}
    return msgspec.structs.replace(
        law,
        types={name: of(kind) for name, kind in law.types.items()},
        matrix=tiles(law.matrix),
        grouped=tiles(law.grouped),
        half=None if law.half is None else tiles(law.half),
        attention_share=law.attention_share * bandwidth,
        **us,
    )


def pass_times(latency: LocalLatency, model: Model, runtime: Runtime, rows: Sequence[LocalRow]) -> FloatArray:
    """Predicted times of the rows, microseconds."""
    times_us = np.empty(len(rows))
    for own, step in passes(latency, model, runtime, rows):
        times_us[own] = step.time_us
    return times_us


def passes(
    latency: LocalLatency, model: Model, runtime: Runtime, rows: Sequence[LocalRow]
) -> Iterator[tuple[BoolArray, PassTimes]]:
    """(which rows, their steps): decoding, and prompts, which ask for one token's logits (`last_logits`)."""
    law = msgspec.structs.replace(latency.law, row_us_per_million=0.0)
    setting = Setting(
        latency=replace_law(latency, law), model=model, runtime=runtime.kernels_alone, scope="model",
    )  # fmt: skip
    columns, depth = np.array([row.columns for row in rows]), np.array([int(row.depth) for row in rows])
    decodes = np.array([row.is_batch or row.columns == 1 for row in rows])
    if decodes.any():
        yield decodes, decode_step(setting, columns[decodes], depth[decodes])
    if not decodes.all():
        work = verification_work(setting, 1, depth[~decodes], columns[~decodes])
        yield ~decodes, timed_pass(setting.latency, replace(work, launches=last_logits(work.launches, 1)))


def _curve(
    rows: Sequence[LocalRow], left: FloatArray, before: tuple[tuple[float, float], ...]
) -> tuple[tuple[float, float], ...]:
    """(columns, ln factor): `before`, plus what is left at each number of columns, averaged over passes."""
    kept = dict(before)
    by_columns: dict[int, list[tuple[float, float]]] = {}
    for row, each in zip(rows, left, strict=True):
        by_columns.setdefault(row.columns, []).append((float(each), row.passes))
    for columns, every in by_columns.items():
        value, weight = np.array(every).T
        kept[columns] = float(np.clip(kept.get(columns, 0.0) + np.average(value, weights=weight), -0.7, 0.7))
    return tuple(sorted(kept.items()))
