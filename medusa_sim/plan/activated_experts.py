"""Batches at which a mixture of experts makes drafts costly: each draft activates more experts there.

At few requests a step reads few experts whatever it verifies; at many it reads nearly all of them anyway.
Between, every further candidate of a request activates experts that plain decoding would not have read, and a
step bound by memory grows with the bytes that it reads.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from medusa_sim.grid.cells import Cells
from medusa_sim.step.expert_union import union

COSTLY = 0.1
"""Share of a plain step from which one further draft counts as costly."""


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
    """The range at the first searched length; None for a model without experts, or where none is costly."""
    surface = cells.surface
    experts = surface.setting.model.experts
    counts = surface.configurations.counts
    if experts is None or 2 not in counts:
        return None
    decode_us = np.broadcast_to(surface.decode.time_us, (*surface.shape, 1))[:, 0, 0]
    # what the layers of experts take longer with one draft, over the plain step
    with_draft, without = (
        np.broadcast_to(step.parts_us["experts"], (*surface.shape, size))[:, 0, column]
        for step, size, column in (
            (surface.verify, counts.size, int(np.searchsorted(counts, 2))),
            (surface.decode, 1, 0),
        )
    )
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
