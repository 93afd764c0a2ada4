"""The operators that steps of the decoder are made of: what to measure."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from dataclasses import dataclass, field

import numpy as np

from medusa_sim.gpus.gpu import Gpu
from medusa_sim.lab.measure.predicted_step import MASK, decoder_step
from medusa_sim.latency.operator_time import Bound, OperatorTime, Source
from medusa_sim.models.model import Model
from medusa_sim.operators.attention import Attention
from medusa_sim.operators.elementwise import Elementwise
from medusa_sim.operators.gemm import Gemm
from medusa_sim.operators.operator import Operator


@dataclass(frozen=True, slots=True)
class _Asked:
    """A latency model that remembers what it was asked, and takes no time."""

    gpu: Gpu
    operators: list[Operator] = field(default_factory=list)
    name: str = "asked"

    def time(self, operator: Operator) -> OperatorTime:
        self.operators.append(operator)
        nothing = np.zeros(np.broadcast_shapes(*(np.shape(size) for size in operator.sizes.values())))
        return OperatorTime(
            time_us=nothing,
            low_us=nothing,
            high_us=nothing,
            bound=np.full(nothing.shape, Bound.MEMORY, dtype=np.int8),
            source=np.full(nothing.shape, Source.MEASURED, dtype=np.int8),
        )


def step_operators(
    model: Model, gpu: Gpu, cells: Iterable[tuple[int, int, int]], seq_len: int
) -> list[Gemm | Elementwise | Attention]:
    """Each operator of the steps once, sizes whole numbers. cells: (batch, candidates, depth of the tree).

    The mask is left out: it is no operator of an engine, and passes of any width tell its time.
    """
    asked = _Asked(gpu)
    for batch, candidates, depth in cells:
        decoder_step(model, asked, batch, seq_len, candidates, depth)
    distinct: dict[tuple[object, ...], Gemm | Elementwise | Attention] = {}
    for operator in asked.operators:
        if operator.name == MASK or not isinstance(operator, Gemm | Elementwise | Attention):
            continue  # the decoder has no other kinds
        whole = operator.with_columns(**{name: int(size) for name, size in operator.sizes.items()})
        if whole.kind != "gemm":  # a place in a model is no name of a row
            whole = dataclasses.replace(whole, name=whole.kind)
        distinct.setdefault((*whole.key, *whole.axes), whole)
    return list(distinct.values())
