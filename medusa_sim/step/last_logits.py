"""Passes that want logits of each sequence's last token alone, as llama.cpp runs prompts and draft models."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from medusa_sim.operators.elementwise import Elementwise
from medusa_sim.operators.gemm import Gemm
from medusa_sim.operators.operator import Size
from medusa_sim.step.launch import Launch

_LAST = ("up_proj", "gate_proj", "gate_up_proj", "down_proj", "activation", "lm_head", "next_token")
"""Operators of rows whose logits are asked for, of the last layer and after it."""


def last_logits(launches: Iterable[Launch], rows: Size) -> tuple[Launch, ...]:
    """Kernels of a pass that wants logits of `rows` tokens alone: so run the head and the last layer's MLP.

    rows: the last token of each sequence.

    llama.cpp takes the rows that are asked for after the attention of its last layer.
    """
    kept: list[Launch] = []
    for launch in launches:
        operator, is_last = launch.operator, launch.operator.name in _LAST
        if not is_last or not isinstance(operator, Gemm | Elementwise):
            kept.append(launch)
            continue
        kept.append(replace(launch, operator=replace(operator, m=rows), count=1))
        if launch.count > 1:
            kept.append(replace(launch, count=launch.count - 1))
    return tuple(kept)
