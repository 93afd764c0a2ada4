"""Dispatch of tokens to experts that are spread over GPUs, and their combination afterwards.

A token is sent once to every rank that holds one of its experts, however many of them it holds.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np

from medusa_sim.arrays import FloatArray, as_float
from medusa_sim.operators.operator import Numbers, Operator, Size, Words
from medusa_sim.operators.row_schema import RowSchema
from medusa_sim.units import BYTES_PER_ELEMENT, Format

DispatchKind = Literal["dispatch", "combine"]
ONE_NODE = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Dispatch(Operator):
    """Expert parallelism's all-to-all: `dispatch` sends tokens to the ranks of their experts, `combine` back.

    `dtype` is that of the values on the link.
    """

    FAMILY = "dispatch"
    COLUMNS = ("tokens", "hidden", "topk", "experts", "ranks", "nodes", "sms")
    AXES = ("tokens",)
    SIZE = AXES
    ROWS = RowSchema(
        numbers=("tokens", "hidden", "topk", "experts", "ep"),
        optional={"nodes": 0.0, "sms": 0.0},
        words={"phase": ""},
        splits=("phase",),
        blank_dtype="bf16",
    )
    LABELS = ("phase",)

    kind: DispatchKind
    tokens: Size = field()
    """Tokens of one rank."""
    hidden: Size
    """Width of a token."""
    topk: Size
    """Experts of each token."""
    experts: Size
    """Experts of the layer, the same number on every rank."""
    ranks: Size
    nodes: Size = ONE_NODE
    """Nodes that hold the ranks."""
    sms: Size = 0
    """Multiprocessors that the kernel may use; 0: its own choice."""
    phase: str = ""
    """Name of a variant, such as a preparation or a combination in fewer bits; empty: none."""

    @classmethod
    def row_fields(cls, kind: str, form: Format, numbers: Numbers, words: Words) -> dict[str, Any]:
        """Ranks, which rows call `ep`; a row without nodes has one node."""
        del kind, form
        nodes = np.maximum(numbers["nodes"], ONE_NODE)
        phase = str(words["phase"][0]).removeprefix("alltoall_")
        return {"phase": phase, "ranks": numbers["ep"], "nodes": nodes}

    @property
    def form(self) -> str:
        """Key of its kernels: variant or kind, and the dtype."""
        return f"{self.phase or self.kind}_{self.dtype}"

    @property
    def forms(self) -> tuple[str, ...]:
        """Keys of kernels that may serve, best first."""
        dtypes = tuple(dict.fromkeys((self.dtype, "bf16", "fp8", "nvfp4")))
        actions = dict.fromkeys((self.phase or self.kind, self.kind))
        return tuple(f"{action}_{dtype}" for action in actions for dtype in dtypes)

    @property
    def copies(self) -> FloatArray:
        """Ranks that receive a token, n (1 - (1 - 1 / n)^topk): the mean over random experts."""
        ranks = as_float(self.ranks)
        return ranks * (1.0 - (1.0 - 1.0 / ranks) ** as_float(self.topk))

    @property
    def _values(self) -> FloatArray:
        """Numbers in all copies of a rank's tokens."""
        return as_float(self.tokens) * self.copies * as_float(self.hidden)

    @property
    def flops(self) -> FloatArray:
        """Additions of the combination: one for each value that arrives; never what bounds it."""
        return self._values * (1.0 if self.kind == "combine" else 0.0)

    @property
    def bytes(self) -> FloatArray:
        """Bytes that must cross a rank's memory bus: every copy of a token read and written once."""
        return 2.0 * BYTES_PER_ELEMENT[self.dtype] * self._values

    @property
    def peers(self) -> Size:
        """The ranks."""
        return self.ranks

    @property
    def link_bytes(self) -> FloatArray:
        """Bytes that a rank must send: copies for other ranks, (n - 1) / n of all."""
        ranks = as_float(self.ranks)
        return BYTES_PER_ELEMENT[self.dtype] * self._values * (ranks - 1.0) / ranks
