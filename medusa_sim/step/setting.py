"""What stays the same over a grid of steps."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property

from medusa_sim.engines.runtime import Runtime
from medusa_sim.latency.model import LatencyModel
from medusa_sim.models.model import Model
from medusa_sim.models.parallel import ONE, Parallel
from medusa_sim.models.variants import on_one_gpu
from medusa_sim.step import Scope
from medusa_sim.step.drafter.base import Drafter
from medusa_sim.step.expert_union import CHAIN, Overlap
from medusa_sim.step.verified import Verified


@dataclass(frozen=True, kw_only=True)
class Setting:
    """What stays the same over a grid: the model, how it is run, and what drafts for it."""

    latency: LatencyModel
    model: Model
    runtime: Runtime
    scope: Scope
    drafter: Drafter | None = None
    """What drafts in a step; None: nothing does."""
    served_drafter: str = ""
    """Name of the drafter that verification steps serve, by which engines schedule them; empty: that of
    `drafter`."""
    compacted_drafts: int = 5
    """Drafts of the longest path, which sizes the compaction of the cache."""
    longest_drafts: int = 0
    """Drafts of the longest chain, where one may be longer than that; 0: none."""
    verified: Verified = Verified()  # noqa: RUF009  # frozen
    """Which of the candidates verification steps verify."""
    parallel: Parallel = ONE
    """The GPUs that share the model."""
    overlap: Overlap = CHAIN
    """How far the candidates of a sequence share experts."""

    @property
    def drafter_name(self) -> str:
        """Name of the drafter that verification steps serve; empty where there is none."""
        return self.served_drafter or ("" if self.drafter is None else self.drafter.name)

    @cached_property
    def prompt_runtime(self) -> Runtime:
        """The runtime with the kernels by which it reads prompts (`Engine.reading`)."""
        engine = self.runtime.engine
        return self.runtime if engine is None else replace(self.runtime, engine=engine.reading)

    @cached_property
    def shard(self) -> Model:
        """What one GPU holds of the model: all times are this one's."""
        return on_one_gpu(self.model, self.parallel)
