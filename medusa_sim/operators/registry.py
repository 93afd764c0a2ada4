"""Every operator by kind: what tables, latency models, calibration and measurement know."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from medusa_sim.operators.collective import COLLECTIVE_KINDS, DISPATCH_KINDS, Collective, Dispatch
from medusa_sim.operators.experts import Experts
from medusa_sim.operators.latent import LATENT_KINDS, LatentAttention
from medusa_sim.operators.operator import (
    ATTENTION_KINDS,
    ELEMENTWISE_KINDS,
    Attention,
    Elementwise,
    Gemm,
    Operator,
    Size,
)

OPERATORS: dict[str, type[Operator]] = {
    "gemm": Gemm,
    **dict.fromkeys(ATTENTION_KINDS, Attention),
    **dict.fromkeys(ELEMENTWISE_KINDS, Elementwise),
    "moe": Experts,
    **dict.fromkeys(LATENT_KINDS, LatentAttention),
    **dict.fromkeys(COLLECTIVE_KINDS, Collective),
    **dict.fromkeys(DISPATCH_KINDS, Dispatch),
}
"""Every operator by kind."""


def operator_of(kind: str, dtype: str, sizes: Mapping[str, Size], name: str | None = None) -> Operator:
    """The operator of a kind with the sizes of its COLUMNS. name None: the kind's."""
    made: Callable[..., Operator] = OPERATORS[kind]
    return made(name=name or kind, kind=kind, dtype=dtype, **sizes)
