"""How a benchmark of experts spreads tokens: drawn again, since its rows did not record it.

aiconfigurator's collector (power_law_logits_v3 and balanced_logits of its helper.py, Apache-2.0) draws how
many tokens each expert of a layer gets, and times the busiest rank. Its rows say the law alone, so what a
kernel met is an expectation over draws of the same kind. The seed is fixed: the same table every time.
"""

from __future__ import annotations

import numpy as np
import pandas as pd
from numpy.typing import NDArray

Counts = NDArray[np.int64]
SEED, DRAWS = 20, 40
TILES = (16, 64, 128)
KEYS = ["experts", "topk", "ep", "distribution", "tokens"]
_MANY, _FEW = (1.0, 0.8), (0.01, 2.0)
"""Ends of the law where there are more pairs than experts (the upper one times the tokens), and else."""


def with_routing(rows: pd.DataFrame) -> pd.DataFrame:
    """Rows of experts with what their rank holds: `local_experts_hit`, `local_rows`, rows of whole tiles."""
    known = rows[KEYS].drop_duplicates()
    found = pd.DataFrame([expected(*key) for key in known.itertuples(index=False)], index=known.index)
    return rows.drop(columns=found.columns, errors="ignore").merge(known.join(found), on=KEYS, how="left")


def expected(experts: int, topk: int, ep: int, distribution: str, tokens: int) -> dict[str, float]:
    """Means of the busiest rank over DRAWS: experts that are hit, pairs, rows of whole tiles."""
    law, _, alpha = distribution.rpartition("_")
    if law:
        counts = drawn(experts, topk, ep, float(alpha), tokens)
        ranks = counts.sum(axis=2)
        local = counts[np.arange(DRAWS), ranks.argmax(axis=1)]
    else:
        local = balanced(experts, topk, tokens).reshape(ep, -1)[:1]
    return {
        "local_experts_hit": float((local > 0).sum(axis=1).mean()),
        "local_rows": float(local.sum(axis=1).mean()),
        **{f"local_rows_tile{tile}": float((-(-local // tile)).sum(axis=1).mean() * tile) for tile in TILES},
    }


def balanced(experts: int, topk: int, tokens: int) -> Counts:
    """(experts,) tokens of each: places a stride apart, the next token one further."""
    stride = -(-experts // topk)
    step = 1.0 if tokens >= stride else stride / tokens
    places = (np.arange(tokens)[:, None] * step + np.arange(topk) * stride) % experts
    return np.bincount(places.astype(np.int64).ravel(), minlength=experts)


def drawn(experts: int, topk: int, ep: int, alpha: float, tokens: int) -> Counts:
    """(draws, ranks, experts of a rank) tokens of each expert under a power law, none above `tokens`."""
    pairs = tokens * topk
    low, high = (_MANY[0], _MANY[1] * tokens) if pairs > experts else _FEW
    uniform = np.random.default_rng([SEED, experts, topk, ep, tokens]).random((DRAWS, experts))
    power = 1.0 - alpha
    weight = ((high**power - low**power) * uniform + low**power) ** (1.0 / power)
    counts = np.rint(weight / weight.sum(axis=1, keepdims=True) * pairs).astype(np.int64)
    counts = np.minimum(counts, tokens).reshape(DRAWS, ep, experts // ep)
    lacking = pairs - counts.sum(axis=(1, 2))
    counts = raised(counts, np.maximum(lacking, 0), tokens)
    # Taking from the largest is giving to the smallest, seen from above.
    return tokens - raised(tokens - counts, np.maximum(-lacking, 0), tokens)


def raised(counts: Counts, extra: Counts, bound: int) -> Counts:
    """Counts (draws, ranks, n) with `extra` (draws,) more: a rank after the other, its smallest first."""
    room = (bound - counts).sum(axis=2)
    given = np.zeros_like(room)
    left = extra.copy()
    while (left > 0).any():
        has = given < room
        number = np.maximum(has.sum(axis=1), 1)
        share = (left // number)[:, None] + (has.cumsum(axis=1) <= (left % number)[:, None])
        more = np.where(has, np.minimum(share, room - given), 0)
        given += more
        left -= more.sum(axis=1)
    rising = np.sort(counts, axis=2)
    sums, number = rising.cumsum(axis=2), np.arange(1, counts.shape[2] + 1)
    raising = np.maximum((number * rising - sums <= given[..., None]).sum(axis=2), 1)[..., None]
    level, rest = np.divmod(np.take_along_axis(sums, raising - 1, axis=2) + given[..., None], raising)
    return np.where(number <= raising, level + (number <= rest), rising)
