"""Acceptance -> kernels: what follows the LM head of a step that verified a tree."""

from __future__ import annotations

import numpy as np

from medusa_sim.models.mixers import Mixer
from medusa_sim.models.model import Model
from medusa_sim.operators.operator import Size
from medusa_sim.step.launch import Launch, elementwise_launch
from medusa_sim.step.workload import Workload


def acceptance_launches(
    model: Model, workload: Workload, depth: int, longest: Size | None = None
) -> tuple[Launch, ...]:
    """Tree bookkeeping, acceptance and cache compaction after the LM head.

    Gathering the candidates, comparing them with the target's choice, the running product along the
    paths and the best path are four kernels over the candidates; compaction copies the KV rows of at
    most longest + 1 accepted tokens of every layer (None: as deep as the tree).
    """
    copied = np.asarray(depth if longest is None else longest) + 1
    rows: dict[int, int] = {}
    for count, mixer in model.blocks(Mixer):
        if mixer.cache_row:
            rows[mixer.cache_row] = rows.get(mixer.cache_row, 0) + count
    tree = elementwise_launch(model, "tree_bookkeeping", "residual", "accept", workload.tokens, depth + 1, 4)
    return (
        tree,
        *(
            elementwise_launch(
                model,
                "cache_compaction",
                "embedding",
                "accept",
                np.asarray(workload.batch) * (copied * count),
                row,
            )
            for row, count in rows.items()
        ),
    )
