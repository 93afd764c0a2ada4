"""Operators whose kernels are described by classes of bytes, of FLOPs and of steps that run in turn.

An operator counts each class. A kernel (`gpus.kernels.StreamKernel`) has one fitted coefficient for each,
and `latency/stream.py` adds them up.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import ClassVar, Self

import numpy as np

from medusa_sim.arrays import FloatArray
from medusa_sim.operators.operator import Operator

HOST_STEP = "launches"
"""Class of steps that cost the host alone, in rows that were measured without a CUDA graph."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Stream(Operator):
    """An operator that sorts its bytes, FLOPs and steps into classes."""

    NEEDLESS: ClassVar[frozenset[str]] = frozenset()
    """Classes of extra work that some kernels do; not counted in `bytes` and `flops`."""
    ALTERNATIVE: ClassVar[frozenset[str]] = frozenset()
    """Classes that only some libraries' kernels have; a fit keeps one if it explains much."""
    LAUNCHES: ClassVar[int] = 4
    """Most kernels that are launched one after another."""

    @property
    @abstractmethod
    def loads(self) -> Mapping[str, FloatArray]:
        """Bytes by class."""

    @property
    @abstractmethod
    def work(self) -> Mapping[str, FloatArray]:
        """FLOPs by class, with the padding of tiles of a fixed size."""

    def steps(self, sms: int) -> Mapping[str, FloatArray]:
        """Counts by class of what runs one after another on `sms` multiprocessors."""
        del sms
        return {}

    def as_run(self, architecture: str) -> Self:
        """The operator as kernels of an architecture run it: itself, unless they split it."""
        del architecture
        return self

    @property
    def footprint(self) -> Mapping[str, FloatArray]:
        """Bytes by class that a repeated benchmark finds in L2, if the kernel moves them and they fit."""
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
