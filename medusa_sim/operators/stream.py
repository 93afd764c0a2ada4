"""Operators that a kernel streams through: what they move, compute and do in turn, by class.

A class of bytes, FLOPs or steps has a coefficient of its own in `StreamKernel`; the counts themselves stand
here and with each operator, their FLOP and byte totals too.

Hyper-connections (DeepSeek-V4's mHC): `streams` residual streams, mixed before and after each block.

A site reads all streams, multiplies them with a matrix of streams (2 + streams) columns in fp32, makes it
doubly stochastic in some rounds of Sinkhorn, and writes one stream (`pre`); behind the block it reads the
streams and the block's output and writes the streams (`post`). With t tokens of width h:

    bytes  = t h (streams + 1) e before,  t h (2 streams + 1) e after                                  (J1)
    FLOPs  = 2 t (streams h) streams (2 + streams) before,  2 t h streams (streams + 1) after          (J2)
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import ClassVar, Literal, Self

import numpy as np

from medusa_sim.arrays import FloatArray, as_float
from medusa_sim.operators.operator import Operator, Size
from medusa_sim.operators.row_schema import RowSchema
from medusa_sim.units import BYTES_PER_ELEMENT

HOST_STEP = "launches"
"""A class of steps that only a host takes, in rows that no graph holds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Stream(Operator):
    """An operator whose kernels are told by classes of traffic, arithmetic and steps."""

    NEEDLESS: ClassVar[frozenset[str]] = frozenset()
    """Classes of bytes and FLOPs that kernels move and compute in vain."""
    ALTERNATIVE: ClassVar[frozenset[str]] = frozenset()
    """Classes of some libraries' kernels alone, which a fit keeps where they explain much."""
    LAUNCHES: ClassVar[int] = 4
    """Kernels that are launched one after another, at most."""

    @property
    @abstractmethod
    def loads(self) -> Mapping[str, FloatArray]:
        """Bytes by class."""

    @property
    @abstractmethod
    def work(self) -> Mapping[str, FloatArray]:
        """FLOPs by class, with what tiles of a fixed size compute in vain."""

    def steps(self, sms: int) -> Mapping[str, FloatArray]:
        """Counts of what takes its time in turn, on so many multiprocessors."""
        del sms
        return {}

    def as_run(self, architecture: str) -> Self:
        """What kernels of that architecture make of it: itself, unless they cannot take it whole."""
        del architecture
        return self

    @property
    def footprint(self) -> Mapping[str, FloatArray]:
        """Bytes that a repetition finds in L2 if they fit, by class, which count as far as they are moved."""
        return {name: moved for name, moved in self.loads.items() if name not in self.NEEDLESS}

    @property
    def bytes(self) -> FloatArray:
        """Bytes that must cross the memory bus in one launch."""
        return total_of(moved for name, moved in self.loads.items() if name not in self.NEEDLESS)

    @property
    def flops(self) -> FloatArray:
        """Floating-point operations of one launch."""
        return total_of(done for name, done in self.work.items() if name not in self.NEEDLESS)


def total_of(parts: Iterable[FloatArray]) -> FloatArray:
    """The sum of arrays that broadcast."""
    total: FloatArray = np.zeros(())
    for part in parts:
        total = total + part
    return total


BEFORE, AFTER = "pre", "post"
CONNECTION_WIDTHS = {BEFORE: (0.5, 0.5), AFTER: (1.0, 0.5)}
"""Hidden widths a token, for each stream and beside, that a kernel both reads and writes: half of (J1)."""
_TILE = 64.0
"""Tokens of a block that multiplies with Tensor Cores, which libraries take for more tokens than that."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HyperConnection(Stream):
    """Mixing `streams` residual streams of `tokens` tokens at `sites` places, before or after the blocks."""

    FAMILY = "hyper_connections"
    COLUMNS = ("tokens", "hidden", "streams", "sites")
    AXES = ("tokens",)
    SIZE = AXES
    LABELS = ("part",)
    ROWS = RowSchema(
        numbers=("tokens", "hidden"),
        optional={"streams": 4.0, "sites": 1.0},
        words={"part": BEFORE},
        splits=("part",),
        blank_dtype="bf16",
    )

    kind: Literal["hyper_connections"] = "hyper_connections"
    tokens: Size = field()
    hidden: Size
    streams: Size = 4
    sites: Size = 1
    part: str = BEFORE

    @property
    def form(self) -> str:
        """Key of its kernels: the part."""
        return self.part

    @property
    def forms(self) -> tuple[str, ...]:
        """Keys of kernels that may serve."""
        return (self.part,)

    @property
    def loads(self) -> Mapping[str, FloatArray]:
        """Streams read and written (J1)."""
        streams = as_float(self.streams)
        passed = (streams if self.part == BEFORE else 2.0 * streams) + 1.0
        moved = passed * self.size * as_float(self.hidden) * as_float(self.sites)
        return {"streams": BYTES_PER_ELEMENT[self.dtype] * moved}

    @property
    def work(self) -> Mapping[str, FloatArray]:
        """The products (J2)."""
        streams = as_float(self.streams)
        columns = streams * (2.0 + streams) if self.part == BEFORE else streams + 1.0
        return {"mix": 2.0 * self.size * as_float(self.sites) * streams * as_float(self.hidden) * columns}

    def steps(self, sms: int) -> Mapping[str, FloatArray]:
        """Waves of tokens over the multiprocessors; before the blocks those that read the matrix at once."""
        steps = {"waves": np.ceil(self.size / sms), "tiles": np.ceil(self.size / (_TILE * sms))}
        if self.part == BEFORE:  # each of them all of it, from L2
            steps |= {"few": np.minimum(self.size, _TILE), "busy": np.minimum(self.size, float(sms))}
        return steps
