"""One pass of a network in a step: what it launches, which runtime launches it, and what it is for."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from medusa_sim.specs.runtime import Runtime
from medusa_sim.step.launch import Launch
from medusa_sim.step.workload import Workload

Pass = Literal["target", "draft", "continued"]
"""A forward pass of the target, one of a drafter, or kernels that continue the pass before them (heads)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PassWork:
    """Kernels launched one after another, the runtime that launches them, and what they are for."""

    launches: tuple[Launch, ...]
    runtime: Runtime
    workload: Workload
    """The tokens that pass through, by which engines charge."""
    of: Pass
    """Which pass they are."""
    layers: int = 0
    """Layers of the network that passes."""
    schedulers: int = 1
    """Hosts that share its requests."""

    @property
    def kernels(self) -> int:
        """How many are launched."""
        return sum(launch.kernels for launch in self.launches)

    @property
    def gaps_us(self) -> float:
        """Gaps on the device between them."""
        return self.kernels * self.runtime.launch_us
