"""Communication between GPUs: collectives of tensor parallelism, dispatch and combine of expert parallelism.

What a rank must send over its link, with n ranks and a message of B bytes (the whole tensor, as nccl-tests
counts it), whatever the algorithm: reduce-scatter and all-gather B (n - 1) / n; an all-reduce is one after
the other, 2 B (n - 1) / n (Patarasuk and Yuan 2009, "Bandwidth optimal all-reduce algorithms for clusters of
workstations"); one-shot all-reduce instead sends B to each of the n - 1 others, in one step; an all-to-all
keeps the nth part, B (n - 1) / n.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import ClassVar, Literal, Self, get_args

import numpy as np

from medusa_sim.arrays import FloatArray, as_float
from medusa_sim.operators.operator import Numbers, Operator, Size, Words
from medusa_sim.specs.formats import Format
from medusa_sim.units import BYTES_PER_ELEMENT

CollectiveKind = Literal["all_reduce", "all_gather", "reduce_scatter", "all_to_all"]
DispatchKind = Literal["dispatch", "combine"]
COLLECTIVE_KINDS: tuple[str, ...] = get_args(CollectiveKind)
DISPATCH_KINDS: tuple[str, ...] = get_args(DispatchKind)
PASSES: dict[str, float] = {"all_reduce": 2.0, "all_gather": 1.0, "reduce_scatter": 1.0, "all_to_all": 1.0}
"""How often the share (n - 1) / n of a message crosses a rank's link."""
ONE_NODE = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Collective(Operator):
    """One collective of `ranks` GPUs that each call it with a message of `message_bytes`.

    The message is the whole tensor of a rank: what goes in and comes out of an all-reduce, the output of an
    all-gather, the input of a reduce-scatter and of an all-to-all. dtype: of its elements. version: of the
    library, empty for the newest; releases change their algorithms.
    """

    FAMILY = "collective"
    COLUMNS = ("message_bytes", "ranks")
    AXES = ("message_bytes",)
    LABELS = ("version",)
    NUMBERS = ("bytes", "ranks")
    WORDS: ClassVar[Mapping[str, str]] = {"version": ""}
    SPLITS = ("version",)
    BLANK_DTYPE = "bf16"

    kind: CollectiveKind
    message_bytes: Size
    ranks: Size
    version: str = ""

    @classmethod
    def of_rows(cls, kind: str, form: Format, numbers: Numbers, words: Words) -> Self:
        """Rows of a table, whose `bytes` is the message."""
        return cls(
            name=kind,
            kind=kind,  # type: ignore[arg-type]  # a key of OPERATORS
            dtype=form.dtype,
            version=str(words["version"][0]),
            message_bytes=numbers["bytes"],
            ranks=numbers["ranks"],
        )

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

    tokens: of one rank. hidden: width of a token. topk of `experts` experts, spread evenly over `ranks`.
    nodes: over which the ranks are spread. sms: that the kernel may use (0: it decides). dtype: of what
    travels. phase: a further name of what is done, such as a preparation or a combination in fewer bits.
    """

    FAMILY = "dispatch"
    COLUMNS = ("tokens", "hidden", "topk", "experts", "ranks", "nodes", "sms")
    AXES = ("tokens",)
    NUMBERS = ("tokens", "hidden", "topk", "experts", "ep")
    OPTIONAL: ClassVar[Mapping[str, float]] = {"nodes": 0.0, "sms": 0.0}
    LABELS = ("phase",)
    WORDS: ClassVar[Mapping[str, str]] = {"phase": ""}
    SPLITS = ("phase",)
    BLANK_DTYPE = "bf16"

    kind: DispatchKind
    tokens: Size = field()
    hidden: Size
    topk: Size
    experts: Size
    ranks: Size
    nodes: Size = ONE_NODE
    sms: Size = 0
    phase: str = ""

    @classmethod
    def of_rows(cls, kind: str, form: Format, numbers: Numbers, words: Words) -> Self:
        """Rows of a table, whose `ep` is the number of ranks; no node is one node."""
        sizes = {name: numbers[name] for name in cls.COLUMNS if name not in ("ranks", "nodes")}
        return cls(
            name=kind,
            kind=kind,  # type: ignore[arg-type]  # a key of OPERATORS
            dtype=form.dtype,
            phase=str(words["phase"][0]).removeprefix("alltoall_"),
            ranks=numbers["ep"],
            nodes=np.maximum(as_float(numbers["nodes"]), ONE_NODE),
            **sizes,
        )

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
    def size(self) -> FloatArray:
        """The tokens of one rank."""
        return as_float(self.tokens)

    @property
    def copies(self) -> FloatArray:
        """Ranks that a token goes to: n (1 - (1 - 1 / n)^topk), its experts spread by chance."""
        ranks = as_float(self.ranks)
        return ranks * (1.0 - (1.0 - 1.0 / ranks) ** as_float(self.topk))

    @property
    def flops(self) -> FloatArray:
        """Additions of the combination: one for each value that arrives; never what bounds it."""
        adds = as_float(self.tokens) * self.copies * as_float(self.hidden)
        return adds * (1.0 if self.kind == "combine" else 0.0)

    @property
    def bytes(self) -> FloatArray:
        """Bytes that must cross a rank's memory bus: every copy of a token read and written once."""
        copies = as_float(self.tokens) * self.copies
        return 2.0 * BYTES_PER_ELEMENT[self.dtype] * copies * as_float(self.hidden)

    @property
    def peers(self) -> Size:
        """The ranks."""
        return self.ranks

    @property
    def link_bytes(self) -> FloatArray:
        """Bytes that a rank must send: copies for other ranks, (n - 1) / n of all."""
        ranks = as_float(self.ranks)
        copies = as_float(self.tokens) * self.copies * (ranks - 1.0) / ranks
        return BYTES_PER_ELEMENT[self.dtype] * copies * as_float(self.hidden)
