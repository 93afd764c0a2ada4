"""A latency model: anything that turns operators into times."""

from __future__ import annotations

from typing import Protocol, runtime_checkable

from medusa_sim.errors import CoverageError, SpecError
from medusa_sim.gpus.gpu import Gpu
from medusa_sim.latency.operator_time import OperatorTime
from medusa_sim.operators.operator import Operator


@runtime_checkable
class LatencyModel(Protocol):
    """Anything that turns operators into times."""

    @property
    def name(self) -> str:
        """`roofline`, `calibrated` or `measured`."""
        ...

    @property
    def gpu(self) -> Gpu:
        """The device whose kernels are timed."""
        ...

    def time(self, operator: Operator) -> OperatorTime:
        """Time of one launch. Raises SpecError (no peak for the dtype) or CoverageError."""
        ...


def known_time(latency: LatencyModel, operator: Operator) -> OperatorTime | None:
    """Time of one launch; None where the model has no kernel of it."""
    try:
        return latency.time(operator)
    except (SpecError, CoverageError):
        return None
