"""The papers' measures of speculative decoding, under the names they use.

Medusa (arXiv 2401.10774, appendix B): acceleration rate, overhead, speedup. RSD (arXiv 2402.14160,
appendix C.2): block efficiency, MBSU, token rate. All broadcast.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from medusa_sim.arrays import FloatArray
from medusa_sim.errors import DataError
from medusa_sim.units import US_PER_S


def acceleration_rate(tokens: npt.ArrayLike, steps: npt.ArrayLike) -> FloatArray:
    """Tokens decoded per decoding step, 1 for plain decoding (Medusa appendix B).

    Raises:
        DataError: no steps, or fewer tokens than steps (each step emits at least one).
    """
    emitted, taken = np.asarray(tokens, dtype=np.float64), np.asarray(steps, dtype=np.float64)
    if np.any(taken <= 0.0) or np.any(emitted < taken):
        raise DataError("acceleration rate needs at least one step and one token per step")
    return np.asarray(emitted / taken)


def block_efficiency(accepted_draft_tokens: npt.ArrayLike) -> FloatArray:
    """Accepted draft tokens + 1, averaged over the last axis of target calls (RSD appendix C.2).

    The same quantity as the acceleration rate. Raises DataError for no calls or negative counts.
    """
    accepted = np.asarray(accepted_draft_tokens, dtype=np.float64)
    if accepted.size == 0 or np.any(accepted < 0.0):
        raise DataError("block efficiency needs at least one target call and counts from 0")
    return np.asarray(accepted.mean(axis=-1) + 1.0)


def mbsu(efficiency: npt.ArrayLike, draft_length: npt.ArrayLike, draft_ratio: npt.ArrayLike) -> FloatArray:
    """Memory-bound speed-up: efficiency / (L r + 1), r = draft size / target size (RSD appendix C.2).

    The paper's text gives r upside down (target / draft); its tables use draft / target.
    """
    length, ratio = np.asarray(draft_length, dtype=np.float64), np.asarray(draft_ratio, dtype=np.float64)
    return np.asarray(np.asarray(efficiency, dtype=np.float64) / (length * ratio + 1.0))


def token_rate_per_s(efficiency: npt.ArrayLike, step_us: npt.ArrayLike) -> FloatArray:
    """Tokens per second of one sequence whose speculative step takes `step_us` (RSD appendix C.2)."""
    return np.asarray(
        np.asarray(efficiency, dtype=np.float64) * US_PER_S / np.asarray(step_us, dtype=np.float64)
    )


def overhead(verify_step_us: npt.ArrayLike, decode_step_us: npt.ArrayLike) -> FloatArray:
    """Time of a speculative step over that of a plain one (Medusa appendix B)."""
    return np.asarray(
        np.asarray(verify_step_us, dtype=np.float64) / np.asarray(decode_step_us, dtype=np.float64)
    )


def speedup(acceleration: npt.ArrayLike, step_overhead: npt.ArrayLike) -> FloatArray:
    """Acceleration rate / overhead (Medusa appendix B)."""
    return np.asarray(
        np.asarray(acceleration, dtype=np.float64) / np.asarray(step_overhead, dtype=np.float64)
    )
