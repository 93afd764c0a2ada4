"""Fits the unfused attention model of `medusa_sim.latency.gemm` to rows like the Medusa paper's Table 6.

QK^T and PV cost the same, so rows of both are one operator. Held-out errors leave out whole context lengths,
so that they test the form along the axis that matters.
"""

from __future__ import annotations

import numpy as np

from medusa_sim.arrays import FloatArray
from medusa_sim.calibrate.fit import UNFITTED, Bounds, Rows, limits_of, refined, starts_of, with_fit
from medusa_sim.errors import DataError
from medusa_sim.latency.gemm import unfused_attention_time
from medusa_sim.operators.operator import Attention
from medusa_sim.specs.gpu import Gpu
from medusa_sim.specs.kernels import UnfusedKernel

ROW_TILES = (64, 128)
"""Query rows of the library's tiles: Table 6 steps between 64 and 80 candidates and nowhere else."""

_BOUNDS: Bounds = {
    "ramp_us": (30.0, 0.5, 200.0),
    "vector_ramp_us": (30.0, 0.5, 200.0),
    "bandwidth_fraction": (0.8, 0.3, 1.0),
    "peak_fraction": (0.8, 0.1, 1.0),
    "l2_ratio": (2.5, 1.0, 4.0),
    "norm": (2.0, 1.0, 20.0),
}
_SCALE = 0.01


def fit_unfused(
    rows: Rows[Attention], gpu: Gpu, *, source: str, repeated: bool = True, **_: object
) -> UnfusedKernel:
    """Kernel parameters of `rows`, with `fit` filled in. A second or two; deterministic.

    repeated: each row repeats one operator without clearing L2 in between. Raises DataError where the
    rows have fewer than three context lengths, or not both one query row and several: the fit could
    not tell a ramp from a bandwidth, or hold a length back.
    """
    lengths = rows.labels("kv_len")
    one_row = np.asarray(rows.operator.q_len) == 1
    if lengths.max() < 2 or not one_row.any() or one_row.all():
        raise DataError(
            f"{source}: unfused products at {lengths.max() + 1} context lengths, "
            f"{int(one_row.sum())} of {len(one_row)} rows with one query; "
            "a fit needs three lengths, and q_len of 1 as well as above"
        )

    def time_us(kernel: UnfusedKernel, part: Rows[Attention]) -> FloatArray:
        return unfused_attention_time(gpu, kernel, part.operator, cold=False).time_us

    def refit(kernel: UnfusedKernel, part: Rows[Attention]) -> UnfusedKernel:
        log_time = np.log(part.time_us)
        return refined(
            kernel, limits_of(_BOUNDS), lambda trial: np.log(time_us(trial, part)) - log_time, scale=_SCALE
        )

    kernel = refit(
        UnfusedKernel(**starts_of(_BOUNDS), row_tiles=ROW_TILES, repeated=repeated, fit=UNFITTED), rows
    )
    return with_fit(
        kernel,
        rows,
        time_us,
        lambda part: refit(kernel, part),
        source=source,
        folds=len(one_row),
    )
