"""Collectives: what GPUs that share a model send each other.

Bytes that a rank must send over its link, with n ranks and a message of B bytes (the whole tensor, as
nccl-tests counts it), whatever the algorithm (C1):

    reduce-scatter, all-gather    B (n - 1) / n
    all-to-all                    B (n - 1) / n, since it keeps the nth part
    all-reduce                    2 B (n - 1) / n, one after the other (Patarasuk and Yuan 2009, "Bandwidth
                                  optimal all-reduce algorithms for clusters of workstations")

An all-reduce in one shot sends more, B (n - 1) to save a step; `latency/collective.py` prices it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from medusa_sim.arrays import FloatArray, as_float
from medusa_sim.operators.operator import Numbers, Operator, Size, Words
from medusa_sim.operators.row_schema import RowSchema
from medusa_sim.units import BYTES_PER_ELEMENT, Format

CollectiveKind = Literal["all_reduce", "all_gather", "reduce_scatter", "all_to_all"]
PASSES: dict[str, float] = {"all_reduce": 2.0, "all_gather": 1.0, "reduce_scatter": 1.0, "all_to_all": 1.0}
"""How often the share (n - 1) / n of a message crosses a rank's link."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Collective(Operator):
    """One collective that every GPU of a group calls with a message of `dtype` elements."""

    FAMILY = "collective"
    COLUMNS = ("message_bytes", "ranks")
    AXES = ("message_bytes",)
    LABELS = ("version", "one_shot_bytes")
    ROWS = RowSchema(
        numbers=("bytes", "ranks"),
        words={"version": ""},
        splits=("version",),
        blank_dtype="bf16",
    )

    kind: CollectiveKind
    message_bytes: Size
    """The whole tensor of a rank: what goes in and comes out of an all-reduce, the output of an all-gather,
    the input of a reduce-scatter and of an all-to-all."""
    ranks: Size
    """GPUs that take part."""
    version: str = ""
    """Version of the library, since algorithms change between releases; empty: the newest."""
    one_shot_bytes: float = 0.0
    """Largest message that the engine sends in one shot; 0: the library decides."""

    @classmethod
    def row_fields(cls, kind: str, form: Format, numbers: Numbers, words: Words) -> dict[str, Any]:
        """The message size, which rows call `bytes`."""
        del kind, form, words
        return {"message_bytes": numbers["bytes"]}

    @property
    def form(self) -> str:
        """Key of its kernels: the kind and the dtype."""
        return f"{self.kind}_{self.dtype}"

    @property
    def forms(self) -> tuple[str, ...]:
        """Keys of kernels that may serve, best first: the version's own, then the newest's."""
        own = [f"{self.kind}_{dtype}" for dtype in dict.fromkeys((self.dtype, "bf16", "fp16", "int8"))]
        return (*(f"{form}-{self.version}" for form in own[:3] if self.version), *own)

    @property
    def size(self) -> FloatArray:
        """Bytes of the message."""
        return as_float(self.message_bytes) * np.ones_like(as_float(self.ranks))

    @property
    def flops(self) -> FloatArray:
        """Additions of a reduction, n - 1 for each element of a rank's share; never what bounds it."""
        elements = as_float(self.message_bytes) / BYTES_PER_ELEMENT[self.dtype]
        adds = elements * (as_float(self.ranks) - 1.0) / as_float(self.ranks)
        return adds * (1.0 if self.kind in ("all_reduce", "reduce_scatter") else 0.0)

    @property
    def bytes(self) -> FloatArray:
        """Bytes that must cross a rank's memory bus: the message is read, and as many bytes are written."""
        return 2.0 * self.size

    @property
    def peers(self) -> Size:
        """The ranks."""
        return self.ranks

    @property
    def link_bytes(self) -> FloatArray:
        """Bytes that a rank must send: passes x B (n - 1) / n; none of one rank."""
        ranks = as_float(self.ranks)
        return PASSES[self.kind] * as_float(self.message_bytes) * (ranks - 1.0) / ranks
