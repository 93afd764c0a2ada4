"""What tokens cost, in money and in energy (docs/method.md, cost).

    (W1)  $ per million tokens = 1e6 GPUs price / (3600 tokens/s)
    (W4)  joule per token      = GPUs watts / (tokens/s)

price: dollars per GPU-hour. watts: of one GPU (`step/watts.py`). tokens/s: of all GPUs together, emitted
tokens alone.
"""

from __future__ import annotations

import numpy as np

from medusa_sim.arrays import FloatArray

_S_PER_HOUR = 3600.0
_MILLION = 1e6


def usd_per_million_tokens(
    usd_per_gpu_hour: float | None, gpus: int, tokens_per_s: FloatArray | float
) -> FloatArray:
    """(W1), shaped as the rate; nan without a price."""
    price = np.nan if usd_per_gpu_hour is None else usd_per_gpu_hour
    return np.asarray(_MILLION * gpus * price / _S_PER_HOUR / np.asarray(tokens_per_s))


def joule_per_token(watts: FloatArray | float, tokens_per_s: FloatArray | float) -> FloatArray:
    """(W4), shaped as the two broadcast; watts: of all GPUs together."""
    return np.asarray(np.asarray(watts) / np.asarray(tokens_per_s))
