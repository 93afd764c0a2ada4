"""Fits the unfused attention model of `medusa_sim.latency.unfused` to rows like the Medusa paper's Table 6.

The objective is the sum of smoothed absolute log errors (soft l1). Held-out errors come from refits in
which whole context lengths are left out, so that they test the form along the axis that matters.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields

import msgspec
import numpy as np

from medusa_sim.arrays import BoolArray, FloatArray
from medusa_sim.calibrate.residuals import residual_bands
from medusa_sim.errors import DataError
from medusa_sim.latency.unfused import unfused_attention_time
from medusa_sim.operators.operator import Attention
from medusa_sim.specs.gpu import Gpu
from medusa_sim.specs.kernels import Fit, Residual, UnfusedKernel

ROW_TILES = (64, 128)
"""Query rows of the library's tiles: Table 6 steps between 64 and 80 candidates and nowhere else."""

RANGES_OF_ROWS: tuple[int, ...] = (16, 512, 1024, 4096)
"""Upper ends of the ranges of q_len x batch for which residual bands are kept."""

_BOUNDS: dict[str, tuple[float, float, float]] = {
    # start, lowest, highest
    "ramp_us": (30.0, 0.5, 200.0),
    "vector_ramp_us": (30.0, 0.5, 200.0),
    "bandwidth_fraction": (0.8, 0.3, 1.0),
    "peak_fraction": (0.8, 0.1, 1.0),
    "l2_ratio": (2.5, 1.0, 4.0),
    "norm": (2.0, 1.0, 20.0),
}
_SCALE = 0.01


@dataclass(frozen=True, slots=True, kw_only=True)
class UnfusedRows:
    """Measured QK^T or PV products, one entry per row; heads are query heads, kv_heads those of K and V."""

    batch: FloatArray
    q_len: FloatArray
    kv_len: FloatArray
    heads: FloatArray
    kv_heads: FloatArray
    head_dim: FloatArray
    time_us: FloatArray
    dtype: str

    def where(self, keep: BoolArray) -> UnfusedRows:
        """The rows for which `keep` is true."""
        columns = {
            field.name: getattr(self, field.name)[keep] for field in fields(self) if field.name != "dtype"
        }
        return UnfusedRows(**columns, dtype=self.dtype)

    @property
    def operator(self) -> Attention:
        """All rows as one operator. QK^T and PV cost the same, so `qk` stands for both."""
        return Attention(
            name="rows",
            kind="qk",
            batch=self.batch,
            q_len=self.q_len,
            kv_len=self.kv_len,
            heads=self.heads,
            kv_heads=self.kv_heads,
            head_dim=self.head_dim,
            dtype=self.dtype,
        )


def fit_unfused(rows: UnfusedRows, gpu: Gpu, *, source: str, repeated: bool = True) -> UnfusedKernel:
    """Kernel parameters of `rows`, with `fit` filled in. A second or two; deterministic.

    repeated: each row repeats one operator without clearing L2 in between. Raises DataError where the
    rows have fewer than three context lengths, or not both one query row and several: the fit could
    not tell a ramp from a bandwidth, or hold a length back.
    """
    lengths = np.unique(rows.kv_len)
    one_row = rows.q_len == 1
    if len(lengths) < 3 or not one_row.any() or one_row.all():
        raise DataError(
            f"{source}: unfused products at {len(lengths)} context lengths, "
            f"{int(one_row.sum())} of {len(one_row)} rows with one query; "
            "a fit needs three lengths, and q_len of 1 as well as above"
        )
    kernel = _fitted(rows, gpu, _start(source, len(one_row), repeated=repeated))
    heldout_us = np.empty_like(rows.time_us)
    for length in lengths:
        held = rows.kv_len == length
        heldout_us[held] = _time_us(_fitted(rows.where(~held), gpu, kernel), rows.where(held), gpu)
    fit = Fit(
        source=source,
        rows=len(one_row),
        fit_error=_error(_time_us(kernel, rows, gpu), rows),
        heldout_error=_error(heldout_us, rows),
        residuals=residual_bands(rows.time_us, heldout_us, rows.q_len * rows.batch, RANGES_OF_ROWS),
    )
    return msgspec.structs.replace(kernel, fit=fit)


def _start(source: str, count: int, *, repeated: bool) -> UnfusedKernel:
    band = (Residual(size_max=float(RANGES_OF_ROWS[-1]), low=1.0, high=1.0),)
    return UnfusedKernel(
        **{name: start for name, (start, _, _) in _BOUNDS.items()},
        row_tiles=ROW_TILES,
        repeated=repeated,
        fit=Fit(source=source, rows=count, fit_error=0.0, heldout_error=0.0, residuals=band),
    )


def _fitted(rows: UnfusedRows, gpu: Gpu, start: UnfusedKernel) -> UnfusedKernel:
    from scipy.optimize import least_squares

    _, lowest, highest = (np.log(column) for column in zip(*_BOUNDS.values(), strict=True))
    log_time = np.log(rows.time_us)

    def residual(log_values: FloatArray) -> FloatArray:
        errors: FloatArray = np.log(_time_us(_replaced(start, log_values), rows, gpu)) - log_time
        return errors

    guess = np.clip(np.log([getattr(start, name) for name in _BOUNDS]), lowest + 1e-6, highest - 1e-6)
    found = least_squares(residual, guess, bounds=(lowest, highest), loss="soft_l1", f_scale=_SCALE)
    return _replaced(start, found.x)


def _replaced(kernel: UnfusedKernel, log_values: Sequence[float] | FloatArray) -> UnfusedKernel:
    values = np.exp(np.asarray(log_values, dtype=np.float64)).tolist()
    return msgspec.structs.replace(kernel, **dict(zip(_BOUNDS, values, strict=True)))


def _time_us(kernel: UnfusedKernel, rows: UnfusedRows, gpu: Gpu) -> FloatArray:
    return unfused_attention_time(gpu, kernel, rows.operator, cold=False).time_us


def _error(predicted_us: FloatArray, rows: UnfusedRows) -> float:
    return float(np.mean(np.abs(predicted_us / rows.time_us - 1.0)))
