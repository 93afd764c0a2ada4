"""The 80 % band that held-out residuals put around a predicted time."""

from __future__ import annotations

import numpy as np

from medusa_sim.arrays import FloatArray
from medusa_sim.specs.fitted import Residual


def residual_band(residuals: tuple[Residual, ...], size: FloatArray) -> tuple[FloatArray, FloatArray]:
    """(low, high) factors on the predicted time for every size; beyond the last range its factors are kept.

    size: m of a GEMM, q_len x batch of an attention operator, m of an elementwise kernel.
    """
    edges = np.asarray([residual.size_max for residual in residuals])
    index = np.minimum(np.searchsorted(edges, size), len(edges) - 1)
    low = np.asarray([residual.low for residual in residuals])[index]
    high = np.asarray([residual.high for residual in residuals])[index]
    return low, high
