"""What drafting adds to the verification of a step: the passes of a drafter, and what an engine adds."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from medusa_sim.arrays import FloatArray
from medusa_sim.operators.operator import Size
from medusa_sim.specs.runtime import Runtime
from medusa_sim.step.compose import Cost
from medusa_sim.step.host import drafting_us
from medusa_sim.step.pass_time import setup_half_us
from medusa_sim.step.pass_work import PassWork
from medusa_sim.step.setting import Setting
from medusa_sim.step.step_time import StepTime
from medusa_sim.step.together import work_times
from medusa_sim.step.workload import Workload, verify

EAGER_BAND = 0.3
"""80 % half-width of what eager code takes around drafts: twice what its plain steps differ by on two
machines."""
LEVEL_HIDDEN = 4096
"""Width of the features of the model that `host_us_per_level` was taken from (Vicuna-7B).

1.3 ms a level there and 2 ms at a width of 5,120: with the square of the width, as the weights and features
that eager code moves between passes.
"""


def drafting_steps(setting: Setting, batch: Size, seq_len: Size, candidates: Size) -> tuple[StepTime, ...]:
    """What drafting adds to a verification step, pass by pass; nothing for scope `block`."""
    (steps,) = drafting_steps_of((setting,), batch, seq_len, candidates)
    return steps


def drafting_steps_of(
    settings: Sequence[Setting], batch: Size, seq_len: Size, candidates: Size
) -> list[tuple[StepTime, ...]]:
    """The same of settings that differ in their drafter alone.

    Depths of one drafter share passes, which are timed once.
    """
    workload = replace(verify(batch, seq_len, candidates), drafter_passes={})
    works = [drafting_passes(setting, workload) for setting in settings]
    every = {id(work): work for passes in works for work in passes}
    times = work_times(settings[0].latency, list(every.values())) if every else []
    time_of = dict(zip(every, times, strict=True))
    return [
        _steps(setting, batch, passes, tuple(time_of[id(work)] for work in passes))
        for setting, passes in zip(settings, works, strict=True)
    ]


def drafting_passes(setting: Setting, workload: Workload) -> tuple[PassWork, ...]:
    """The passes of a drafter in a step that verifies `workload`; none for scope `block`."""
    if setting.scope == "block" or setting.drafter is None:
        return ()
    return setting.drafter.work(setting.shard, workload, setting.runtime)


def _steps(
    setting: Setting, batch: Size, passes: tuple[PassWork, ...], steps: tuple[StepTime, ...]
) -> tuple[StepTime, ...]:
    """The timed passes in the share of rounds in which they run, and what an engine adds."""
    drafter = setting.drafter
    if setting.scope == "block" or drafter is None:
        return ()
    if setting.sure_shares and drafter.has_levels:
        shares = passes_reached(setting, len(passes))
        steps = tuple(step.in_share(share) for step, share in zip(steps, shares, strict=True))
    requests = np.ceil(np.asarray(batch) / setting.parallel.schedulers)  # of one host
    levels = sum(work.of == "draft" for work in passes) * (drafter.nodes_per_level > 1)
    hidden = setting.model.hidden if drafter.passes_features else None
    added = drafting_cost(
        setting.runtime,
        requests,
        looks_up=drafter.looks_up,
        width=drafter.nodes_per_level,
        levels_us=eager_levels_us(setting.runtime, levels, hidden),
    )
    return steps if added is None else (*steps, StepTime(cost=added))


def passes_reached(setting: Setting, passes: int) -> FloatArray:
    """(passes,) shares of the rounds in which each of a drafter's passes runs.

    All run in each, but those of drafts that come after one that the drafter is not sure of.
    """
    if setting.drafter is None or not (setting.sure_shares and setting.drafter.has_levels):
        return np.ones(passes)
    reading = 1 + setting.runtime.draft_reads_back
    further = np.cumprod(setting.sure_shares)[: max(passes - reading, 0)]
    return np.concatenate([np.ones(passes - further.size), further])


def drafting_cost(
    runtime: Runtime, batch: Size, *, looks_up: bool, width: int = 1, levels_us: float = 0.0
) -> Cost | None:
    """What an engine (N2) or eager code (N15) adds to a step for drafting; None where it adds nothing.

    levels_us: of eager code between the levels of a tree (`eager_levels_us`).
    """
    if runtime.engine is None:
        waits = runtime.host_us_per_lookup if looks_up else runtime.host_us_per_drafted_step + levels_us
        square = np.asarray((EAGER_BAND * waits) ** 2)
        return Cost(exposed_us=np.asarray(waits), draft_square=square) if waits else None
    added = drafting_us(runtime.engine, batch, looks_up=looks_up, width=width)
    gain = runtime.engine.lookup_gain_share if looks_up else runtime.engine.gain_share
    return Cost(
        exposed_us=added.time_us,
        draft_square=np.asarray(added.half_us**2),
        setup_half_us=setup_half_us(runtime, added.time_us),
        gain_square=np.asarray(gain.value**2),
    )


def eager_levels_us(runtime: Runtime, levels: int, hidden: int | None = None) -> float:
    """(N15): what eager code does between so many levels of a tree.

    hidden: width of the features that it moves; None: tokens alone, as of a draft model.
    """
    if hidden is None:
        return levels * runtime.host_us_per_model_level
    return levels * runtime.host_us_per_level * (hidden / LEVEL_HIDDEN) ** 2
