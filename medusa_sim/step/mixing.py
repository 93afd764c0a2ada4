"""Where a mixer is asked for its kernels: its layers, what they process, who runs them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Generic, TypeVar

from medusa_sim.operators.operator import Size
from medusa_sim.specs.mixers import Mixer
from medusa_sim.specs.model import Model
from medusa_sim.specs.runtime import Runtime
from medusa_sim.step.workload import Workload

MixerT = TypeVar("MixerT", bound=Mixer)


@dataclass(frozen=True, slots=True, kw_only=True)
class Mixing(Generic[MixerT]):
    """Layers whose mixers are alike but for their windows."""

    model: Model
    """With the mixer's linear layers in their format."""
    variants: tuple[tuple[int, MixerT], ...]
    """(layers, mixer) of every window."""
    workload: Workload
    runtime: Runtime
    unfused_keys: Size
    """Keys of products that are no fused kernel."""

    @property
    def count(self) -> int:
        """All of these layers."""
        return sum(count for count, _ in self.variants)

    @property
    def rows(self) -> Size:
        """Rows of their linear layers."""
        return self.workload.rows
