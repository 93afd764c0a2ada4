"""Sliding-window attention: the keys that a layer's queries can see."""

from __future__ import annotations

import numpy as np

from medusa_sim.arrays import FloatArray, as_float
from medusa_sim.operators.operator import Size


def window_keys(kv_len: Size, q_len: Size, window: Size) -> FloatArray:
    """Keys that `q_len` new tokens read of a cache of `kv_len`, which includes them.

    Each token sees itself and the window - 1 before it (Beltagy et al. 2020, Longformer, arXiv 2004.05150,
    section 3.1, in its causal form), so that q_len of them in a row together see window + q_len - 1 keys:
    `Attention` with this kv_len has the bytes of the layer, and its FLOPs but for the masked corner. A window
    as long as the cache changes nothing.
    """
    return np.minimum(as_float(kv_len), as_float(window) + as_float(q_len) - 1.0)
