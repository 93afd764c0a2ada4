"""One pass of a network in a step: what it launches, which runtime launches it, and what it is for."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from medusa_sim.engines.runtime import Runtime
from medusa_sim.step.launch import Launch
from medusa_sim.step.workload import Workload

Pass = Literal["target", "draft", "continued", "prompts"]
"""A forward pass of the target, one of a drafter, kernels that continue the pass before them (heads), or what
prompts add to a step, whose host and set-up count with the step's (`step.prompts`)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PassWork:
    """Kernels launched one after another, the runtime that launches them, and what they are for."""

    launches: tuple[Launch, ...]
    runtime: Runtime
    workload: Workload
    """The tokens that pass through, by which engines charge."""
    name: Pass
    """Which pass they are."""
    layers: int = 0
    """Layers of the network that passes."""
    reads_accepted: bool = False
    """Whether a drafter reads the tokens in it that were just accepted (`Backend.draft_graph`)."""
    schedulers: int = 1
    """Hosts that share its requests."""

    @property
    def is_forward(self) -> bool:
        """Whether it is a forward pass, with a host of its own."""
        return self.name in ("target", "draft")

    @property
    def is_plain(self) -> bool:
        """Whether it is the target's pass over one new token of each sequence."""
        return self.name == "target" and self.workload.phase == "decode"

    @property
    def kernel_count(self) -> int:
        """How many are launched."""
        return sum(launch.kernel_count for launch in self.launches)

    @property
    def gaps_us(self) -> float:
        """Gaps on the device between them."""
        return self.kernel_count * self.runtime.launch_us
