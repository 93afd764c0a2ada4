"""What every latency model returns."""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from typing import Protocol, TypeAlias

import numpy as np
import numpy.typing as npt

from medusa_sim.arrays import FloatArray
from medusa_sim.operators.operator import Operator

CodeArray: TypeAlias = npt.NDArray[np.int8]


class Bound(IntEnum):
    """What a kernel waits for."""

    MEMORY = 0
    COMPUTE = 1
    LATENCY = 2
    """The fixed ramp of starting and draining kernels, or the gaps between them, take the largest share."""
    HOST = 3
    """The host cannot launch kernels as fast as the device finishes them (whole steps only)."""


class Source(IntEnum):
    """Where a time comes from, most trustworthy first. Merging takes the worst. Never defaulted."""

    MEASURED = 0
    INTERPOLATED = 1
    CALIBRATED = 2
    ROOFLINE = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class OperatorTime:
    """Time of one launch of an operator, for every shape it holds.

    time_us, low_us, high_us: microseconds; low and high bound 80 % of the held-out residuals.
    bound: `Bound` codes. source: `Source` codes. All broadcast against the operator's shape.
    """

    time_us: FloatArray
    low_us: FloatArray
    high_us: FloatArray
    bound: CodeArray
    source: CodeArray


class LatencyModel(Protocol):
    """Anything that turns operators into times."""

    @property
    def name(self) -> str:
        """`roofline`, `calibrated` or `measured`."""
        ...

    def time(self, operator: Operator) -> OperatorTime:
        """Time of one launch. Raises SpecError (no peak for the dtype) or CoverageError."""
        ...
