"""Operators that a kernel streams through: what they move, compute and do in turn, by class.

A class of bytes, FLOPs or steps has a coefficient of its own in `StreamKernel`; the counts themselves stand
here and with each operator, their FLOP and byte totals too.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import ClassVar, Self

import numpy as np

from medusa_sim.arrays import FloatArray
from medusa_sim.operators.operator import Operator


@dataclass(frozen=True, slots=True, kw_only=True)
class Stream(Operator):
    """An operator whose kernels are told by classes of traffic, arithmetic and steps.

    NEEDLESS: classes of bytes and FLOPs that kernels move and compute in vain. LAUNCHES: kernels that are
    launched one after another, at most.
    """

    NEEDLESS: ClassVar[frozenset[str]] = frozenset()
    LAUNCHES: ClassVar[int] = 4

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
    def footprint_bytes(self) -> FloatArray:
        """What a repetition finds in L2 if it fits."""
        return self.bytes

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
