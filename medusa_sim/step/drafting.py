"""What drafting adds to the verification of a step: the passes of a drafter, and what an engine adds."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import numpy as np

from medusa_sim.arrays import FloatArray
from medusa_sim.operators.operator import Size
from medusa_sim.step.compose import PassWork, drafting_cost, eager_levels_us
from medusa_sim.step.pass_time import StepTime, work_time
from medusa_sim.step.setting import Setting
from medusa_sim.step.workload import verify


@dataclass(slots=True)
class SharedPasses:
    """Passes that depths of one drafter have in common on a grid, so that each is timed once."""

    by_level: dict[tuple[int, int], PassWork] = field(default_factory=dict)
    """By (width, level): one of the drafter's passes (`drafter.base.level_passes`)."""
    timed: dict[int, tuple[PassWork, StepTime]] = field(default_factory=dict)
    """By the pass' id, which stays its own as long as it is held here."""

    def time(self, setting: Setting, work: PassWork) -> StepTime:
        """The time of a pass."""
        if id(work) not in self.timed:
            self.timed[id(work)] = work, work_time(setting.latency, work)
        return self.timed[id(work)][1]


def drafting_steps(
    setting: Setting, batch: Size, seq_len: Size, candidates: Size, shared: SharedPasses | None = None
) -> tuple[StepTime, ...]:
    """What drafting adds to a verification step, pass by pass; nothing for scope `block`.

    shared: passes that one drafter at other depths has on the same batches and lengths in the same setting.
    """
    drafter, shared = setting.drafter, shared or SharedPasses()
    if setting.scope == "block" or drafter is None:
        return ()
    workload = replace(verify(batch, seq_len, candidates), drafter_passes=shared.by_level)
    passes = drafter.work(setting.shard, workload, setting.runtime)
    steps = tuple(shared.time(setting, work) for work in passes)
    if setting.sure_shares and drafter.has_levels:
        shares = _passes_reached(setting, len(passes))
        steps = tuple(_in_share(step, share) for step, share in zip(steps, shares, strict=True))
    requests = np.ceil(np.asarray(batch) / setting.parallel.schedulers)  # of one host
    levels = sum(work.of == "draft" for work in passes) * (drafter.nodes_per_level > 1)
    added = drafting_cost(
        setting.runtime,
        requests,
        looks_up=drafter.looks_up,
        width=drafter.nodes_per_level,
        levels_us=eager_levels_us(setting.runtime, setting.model.hidden, levels),
    )
    return steps if added is None else (*steps, StepTime(cost=added))


def _passes_reached(setting: Setting, passes: int) -> FloatArray:
    """Shares of the rounds in which each pass of a drafter runs; what reads and the first draft's: in all."""
    reading = 1 + setting.runtime.draft_reads_back
    further = np.cumprod(setting.sure_shares)[: max(passes - reading, 0)]
    return np.concatenate([np.ones(passes - further.size), further])


def _in_share(step: StepTime, share: float) -> StepTime:
    """A pass that runs in this share of the rounds."""
    return step.mapped(lambda values: values * share)
