"""What drafting adds to the verification of a step: the passes of a drafter, and what an engine adds."""

from __future__ import annotations

from collections.abc import Hashable, Sequence

import numpy as np

from medusa_sim.engines.runtime import Runtime
from medusa_sim.operators.operator import Size
from medusa_sim.step.compose import Cost
from medusa_sim.step.drafter.base import PassDrafter
from medusa_sim.step.host import drafting_us
from medusa_sim.step.pass_cost import setup_half_us, timed_pass
from medusa_sim.step.pass_times import PassTimes
from medusa_sim.step.setting import Setting
from medusa_sim.step.workload import Workload, of_fullest, verify

EAGER_BAND = 0.3
"""80 % half-width of what eager code takes around drafts: twice what its plain steps differ by on two
machines."""
LEVEL_HIDDEN = 4096
"""Width of the features of the model that `host_us_per_level` was taken from (Vicuna-7B).

1.3 ms a level there and 2 ms at a width of 5,120: with the square of the width, as the weights and features
that eager code moves between passes.
"""


def drafting_times(setting: Setting, batch: Size, seq_len: Size, candidates: Size) -> tuple[PassTimes, ...]:
    """What drafting adds to a verification step, pass by pass; nothing for scope `block`."""
    (passes,) = drafting_times_of((setting,), batch, seq_len, candidates)
    return passes


def drafting_times_of(
    settings: Sequence[Setting], batch: Size, seq_len: Size, candidates: Size
) -> list[tuple[PassTimes, ...]]:
    """The same of settings that differ in their drafter alone.

    Passes of drafters of one kind, which differ in rows alone, are timed together.
    """
    workload = verify(batch, seq_len, candidates)
    passes: list[tuple[PassTimes, ...]] = [()] * len(settings)
    together: dict[Hashable, list[int]] = {}
    for index, setting in enumerate(settings):
        drafter = setting.drafter
        if setting.scope == "block" or drafter is None:
            continue
        if isinstance(drafter, PassDrafter) and drafter.differs_in_rows:
            together.setdefault((type(drafter), drafter.width), []).append(index)
        else:
            works = drafter.work(setting.shard, workload, setting.runtime)
            passes[index] = tuple(timed_pass(setting.latency, work) for work in works)
    for indices in together.values():
        timed = _timed_together([settings[index] for index in indices], workload)
        for index, times in zip(indices, timed, strict=True):
            passes[index] = times
    return [_in_a_step(setting, batch, times) for setting, times in zip(settings, passes, strict=True)]


def _timed_together(settings: Sequence[Setting], workload: Workload) -> list[tuple[PassTimes, ...]]:
    """The timed passes of drafters of one kind.

    Chains of 1, 2 and 3 drafts run the same first, second and third level: each level is timed once, all of
    them along a last axis. What else a drafter runs (`own_work`) grows with its depth, and all depths are
    timed along that axis.
    """
    drafters = [setting.drafter for setting in settings if isinstance(setting.drafter, PassDrafter)]
    longest = max(drafters, key=lambda drafter: drafter.depth)
    runtime, latency = settings[0].runtime, settings[0].latency
    asked = settings[0].shard, workload.mapped(lambda sizes: sizes[..., None]), runtime
    depths = np.asarray([drafter.depth for drafter in drafters])
    passes = [timed_pass(latency, work) for work in longest.own_work(*asked, depths)]
    levels: dict[int, PassTimes] = {}
    for is_first in (True, False):  # the first reads one token, each other as many as a level drafts
        if some := [level for level in longest.levels(runtime) if (level == 0) == is_first]:
            together = timed_pass(latency, longest.level_work(*asked, np.asarray(some)))
            levels |= {level: together.one_of(index) for index, level in enumerate(some)}
    return [
        (*(times.one_of(index) for times in passes), *(levels[level] for level in drafter.levels(runtime)))
        for index, drafter in enumerate(drafters)
    ]


def _in_a_step(setting: Setting, batch: Size, passes: tuple[PassTimes, ...]) -> tuple[PassTimes, ...]:
    """The timed passes in the share of steps in which they run, and what an engine adds."""
    drafter, runtime, sure_shares = setting.drafter, setting.runtime, setting.verified.sure_shares
    if setting.scope == "block" or drafter is None:
        return ()
    if sure_shares and drafter.has_levels:  # drafts may come after one that the drafter is not sure of
        reading = 1 + runtime.draft_reads_back
        further = np.cumprod(sure_shares)[: max(len(passes) - reading, 0)].tolist()
        always = len(passes) - len(further)
        reached = (times.in_share(share) for times, share in zip(passes[always:], further, strict=True))
        passes = (*passes[:always], *reached)
    added = drafting_cost(
        runtime,
        of_fullest(batch, setting.parallel.schedulers),
        looks_up=drafter.looks_up,
        width=drafter.nodes_per_level,
        levels_us=eager_levels_us(
            runtime, drafter.tree_levels, setting.model.hidden if drafter.passes_features else None
        ),
    )
    return passes if added is None else (*passes, PassTimes(cost=added))


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
    gain_share = runtime.engine.lookup_gain_share if looks_up else runtime.engine.gain_share
    gain = max(gain_share.value, runtime.engine.far_gain_share.value)
    return Cost(
        exposed_us=added.time_us,
        draft_square=np.asarray(added.half_us**2),
        setup_half_us=setup_half_us(runtime, added.time_us),
        gain_square=np.asarray(gain**2),
    )


def eager_levels_us(runtime: Runtime, levels: int, hidden: int | None = None) -> float:
    """(N15): what eager code does between so many levels of a tree.

    hidden: width of the features that it moves; None: tokens alone, as of a draft model.
    """
    if hidden is None:
        return levels * runtime.host_us_per_model_level
    return levels * runtime.host_us_per_level * (hidden / LEVEL_HIDDEN) ** 2
