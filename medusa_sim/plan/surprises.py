"""Steps that would surprise a reader of an answer, each with what explains it.

`activated_experts`  drafts of a mixture that cost much, since each activates more experts
`slower_with_more`   one request more that gives less throughput
`slower_format_us`   narrow weights that are slower than those that were published
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from medusa_sim.arrays import FloatArray
from medusa_sim.errors import MedusaSimError
from medusa_sim.grid.cells import Cells
from medusa_sim.step.expert_union import union
from medusa_sim.step.step import decode_step

COSTLY = 0.1
"""Share of a plain step from which one further draft counts as costly."""
SLOWER = 0.03
"""Share of plain throughput that one more request may cost before an answer names it."""
_NOTICEABLE = 0.005
"""Share of a step by which a format is slower; less is not seen in three digits."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ActivatedExperts:
    """The searched batches at which one draft is costly because of the experts that it activates.

    first, last: the range; worst: the batch of it where a draft costs most. plain, activated: experts of a
    layer that a plain step and a step with one draft read there, of `experts`. cost: what their layers take
    longer there, over the plain step. capped: whether the range ends with the search.
    """

    seq_len: int
    first: int
    last: int
    worst: int
    plain: float
    activated: float
    experts: int
    cost: float
    capped: bool


def activated_experts(cells: Cells) -> ActivatedExperts | None:
    """The range at the first searched length; None for a model without experts, or where none is costly.

    At few requests a step reads few experts whatever it verifies; at many it reads nearly all of them anyway.
    Between, every further candidate of a request activates experts that plain decoding would not have read,
    and a step bound by memory grows with the bytes that it reads.
    """
    surface = cells.surface
    experts = surface.setting.model.experts
    counts = surface.configurations.counts
    if experts is None or 2 not in counts:
        return None
    decode_us = np.broadcast_to(surface.decode.time_us, (*surface.shape, 1))[:, 0, 0]
    with_counts = np.broadcast_to(surface.verify.parts_us["experts"], (*surface.shape, counts.size))
    with_draft = with_counts[:, 0, np.searchsorted(counts, 2)]
    without = np.broadcast_to(surface.decode.parts_us["experts"], (*surface.shape, 1))[:, 0, 0]
    cost = (with_draft - without) / decode_us
    batch = surface.batch
    read = [union(experts.experts, experts.topk, batch, tokens, surface.setting.overlap) for tokens in (1, 2)]
    costly = np.flatnonzero((cost >= COSTLY) & (read[1] - read[0] >= 1.0))
    if costly.size == 0:
        return None
    worst = int(costly[np.argmax(cost[costly])])
    return ActivatedExperts(
        seq_len=int(surface.seq_len[0]),
        first=int(batch[costly[0]]),
        last=int(batch[costly[-1]]),
        worst=int(batch[worst]),
        plain=float(read[0][worst]),
        activated=float(read[1][worst]),
        experts=experts.experts,
        cost=float(cost[worst]),
        capped=bool(costly[-1] == batch.size - 1),
    )


def slower_with_more(cells: Cells) -> tuple[tuple[int, float], ...]:
    """Batches after which one more request costs over SLOWER of the plain throughput, each with the change.

    Over all lengths, the largest first: a row of tiles begins there, or a graph of another size.
    """
    if cells.scenario.scope == "block":
        return ()
    batch, by_count = cells.surface.batch, cells.by_count  # a search has priced these
    rate = by_count.tokens_per_s[..., 0]
    change: FloatArray = np.min(np.diff(rate, axis=0) / rate[:-1], axis=1)
    if not change.size:
        return ()
    named = (change < -SLOWER) & np.all(by_count.fits[1:, :, 0], axis=1)
    return tuple((int(batch[i]), float(change[i])) for i in np.argsort(change) if named[i])


def slower_format_us(cells: Cells) -> tuple[float, float] | None:
    """The plain step at the first batch and length, and that of the model as published, if it is quicker.

    Narrow weights lose where a GPU's share of a layer is small: each kernel's start then counts more.
    """
    scenario, surface = cells.scenario, cells.surface
    asked = scenario.arguments
    if scenario.scope == "block" or scenario.runtime.local or not (asked.dtype or asked.weight_dtype):
        return None
    try:
        published = scenario.but(dtype=None, weight_dtype=None, kernels=None)
        plain = decode_step(published.setting, surface.batch[0], surface.seq_len[0])
    except MedusaSimError:  # the GPU has no kernels for it
        return None
    own_us, published_us = float(np.ravel(surface.decode.time_us)[0]), float(plain.time_us)
    return (own_us, published_us) if own_us > (1.0 + _NOTICEABLE) * published_us else None
