"""Fits unfused attention (`latency.unfused`) of one GPU to rows like the Medusa paper's Table 6.

QK^T and PV cost the same, so rows of both are one operator; held-out errors leave out whole context lengths,
the axis that matters.
"""

from __future__ import annotations

import numpy as np

from medusa_sim.errors import DataError
from medusa_sim.gpus.gpu import Gpu
from medusa_sim.gpus.kernels import UnfusedKernel
from medusa_sim.lab.calibrate.driver import UNFITTED, Budget, FitDriver, warm
from medusa_sim.lab.calibrate.rows import Rows
from medusa_sim.lab.calibrate.starts import Bounds
from medusa_sim.latency.unfused import unfused_attention_time
from medusa_sim.operators.attention import Attention

ROW_TILES = (64, 128)
"""Query rows of the library's tiles: Table 6 steps between 64 and 80 candidates and nowhere else."""

_BOUNDS = Bounds.of("unfused")
_SCALE = 0.01
"""Log error from which on errors count by size: a paper's rows scatter less than most."""


def fit_unfused(rows: Rows[Attention], gpu: Gpu, *, source: str, repeated: bool = True) -> UnfusedKernel:
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

    driver: FitDriver[Attention, UnfusedKernel] = FitDriver(
        gpu, warm(unfused_attention_time), Budget(folds=len(one_row))
    )

    def refit(kernel: UnfusedKernel, part: Rows[Attention]) -> UnfusedKernel:
        return driver.least_squares(kernel, _BOUNDS.limits, part, scale=_SCALE)

    start = UnfusedKernel(**_BOUNDS.starts, row_tiles=ROW_TILES, repeated=repeated, fit=UNFITTED)
    return driver.with_fit(refit(start, rows), rows, refit, source=source)
