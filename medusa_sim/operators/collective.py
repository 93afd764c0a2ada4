"""What GPUs that share a model send each other: collectives, and dispatch of tokens to experts.

What a rank must send over its link, with n ranks and a message of B bytes (the whole tensor, as nccl-tests
counts it), whatever the algorithm (C1):

    reduce-scatter, all-gather    B (n - 1) / n
    all-to-all                    B (n - 1) / n, since it keeps the nth part
    all-reduce                    2 B (n - 1) / n, one after the other (Patarasuk and Yuan 2009, "Bandwidth
                                  optimal all-reduce algorithms for clusters of workstations")
    one-shot all-reduce           B (n - 1), to each of the others in one step
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np

from medusa_sim.arrays import FloatArray, as_float
from medusa_sim.operators.operator import Numbers, Operator, Size, Words
from medusa_sim.operators.row_schema import RowSchema
from medusa_sim.units import BYTES_PER_ELEMENT, Format

CollectiveKind = Literal["all_reduce", "all_gather", "reduce_scatter", "all_to_all"]
DispatchKind = Literal["dispatch", "combine"]
PASSES: dict[str, float] = {"all_reduce": 2.0, "all_gather": 1.0, "reduce_scatter": 1.0, "all_to_all": 1.0}
"""How often the share (n - 1) / n of a message crosses a rank's link."""
ONE_NODE = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Collective(Operator):
    """One collective of GPUs that each call it with a message. dtype: of its elements."""

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
    """Of the library, whose releases change their algorithms; empty: the newest."""
    one_shot_bytes: float = 0.0
    """The largest message that is sent in one shot where an engine says so; 0: as the library does."""

    @classmethod
    def row_fields(cls, kind: str, form: Format, numbers: Numbers, words: Words) -> dict[str, Any]:
        """The message, which rows call `bytes`."""
        del kind, form, words
        return {"message_bytes": numbers["bytes"]}

    @property
    def form(self) -> str:
        """Key of its kernels: what is done, and the dtype."""
        return f"{self.kind}_{self.dtype}"

    @property
    def forms(self) -> tuple[str, ...]:
        """Keys of kernels that may serve, best first: of the version, then of the newest."""
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
        """Bytes that must cross the memory bus of a rank: the message read, and as much written."""
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Dispatch(Operator):
    """Expert parallelism's all-to-all: `dispatch` takes tokens to the ranks of their experts, `combine` back.

    dtype: of what travels.
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
    """Of one rank."""
    hidden: Size
    """Width of a token."""
    topk: Size
    """Experts that a token goes to."""
    experts: Size
    """Experts of the layer, spread evenly over the ranks."""
    ranks: Size
    nodes: Size = ONE_NODE
    """Over which the ranks are spread."""
    sms: Size = 0
    """Multiprocessors that the kernel may use; 0: it decides."""
    phase: str = ""
    """A further name of what is done, such as a preparation or a combination in fewer bits."""

    @classmethod
    def row_fields(cls, kind: str, form: Format, numbers: Numbers, words: Words) -> dict[str, Any]:
        """Of rows whose `ep` is the number of ranks; no node is one node."""
        del kind, form
        nodes = np.maximum(numbers["nodes"], ONE_NODE)
        phase = str(words["phase"][0]).removeprefix("alltoall_")
        return {"phase": phase, "ranks": numbers["ep"], "nodes": nodes}

    @property
    def form(self) -> str:
        """Key of its kernels: what is done, and the dtype."""
        return f"{self.phase or self.kind}_{self.dtype}"

    @property
    def forms(self) -> tuple[str, ...]:
        """Keys of kernels that may serve, best first."""
        dtypes = tuple(dict.fromkeys((self.dtype, "bf16", "fp8", "nvfp4")))
        actions = dict.fromkeys((self.phase or self.kind, self.kind))
        return tuple(f"{action}_{dtype}" for action in actions for dtype in dtypes)

    @property
    def copies(self) -> FloatArray:
        """Ranks that a token goes to: n (1 - (1 - 1 / n)^topk), its experts spread by chance."""
        ranks = as_float(self.ranks)
        return ranks * (1.0 - (1.0 - 1.0 / ranks) ** as_float(self.topk))

    @property
    def _values(self) -> FloatArray:
        """Values of all copies of a rank's tokens."""
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
