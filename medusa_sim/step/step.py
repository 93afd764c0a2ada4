"""The steps of an engine: plain decoding, a prompt, verification, drafting."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import numpy as np

from medusa_sim.arrays import FloatArray, as_float
from medusa_sim.latency.base import CodeArray
from medusa_sim.operators.operator import Size
from medusa_sim.specs.runtime import Runtime
from medusa_sim.step.accepting import acceptance_launches
from medusa_sim.step.chance import drafted_tokens, found_shares
from medusa_sim.step.compose import PassWork, drafting_cost, eager_levels_us
from medusa_sim.step.graphs import padded_tokens
from medusa_sim.step.launch import Launch
from medusa_sim.step.network import step_launches
from medusa_sim.step.pass_time import StepTime, work_time
from medusa_sim.step.setting import Setting
from medusa_sim.step.workload import Workload, decode, prefill, verify


def decode_step(setting: Setting, batch: Size, seq_len: Size) -> StepTime:
    """One plain decoding step: no drafter, no tree. Arrays of batch and seq_len broadcast."""
    return work_time(setting.latency, decode_work(setting, batch, seq_len))


def decode_work(setting: Setting, batch: Size, seq_len: Size) -> PassWork:
    """Kernels of `decode_step`."""
    return _target_work(setting, decode(batch, seq_len))


def prefill_step(setting: Setting, batch: Size, seq_len: Size) -> StepTime:
    """The whole prompt of `seq_len` tokens at once."""
    return work_time(setting.latency, _target_work(setting, prefill(batch, seq_len)))


def verification_step(setting: Setting, batch: Size, seq_len: Size, candidates: Size) -> StepTime:
    """Verification of `candidates` tokens and acceptance, without drafting.

    Scope `block` has the paper's operators alone, as its simulation does. Where drafts are looked up the time
    is the mean over how many requests find any (N5), where they end early the mean over how long they are.
    """
    if setting.match_rate == 1.0 and not setting.sure_shares:
        return work_time(setting.latency, verification_work(setting, batch, seq_len, candidates))
    return _mean_verification_step(setting, batch, seq_len, candidates)


def _mean_verification_step(setting: Setting, batch: Size, seq_len: Size, candidates: Size) -> StepTime:
    """The mean over how many tokens a step verifies, in a last axis that is summed away."""
    requests, tokens = np.broadcast_arrays(as_float(batch), as_float(candidates))
    if setting.sure_shares:
        widths, weights = drafted_tokens(requests, tokens - 1.0, setting.sure_shares)
    else:
        found, weights = found_shares(requests, min(max(setting.match_rate, 1e-12), 1.0 - 1e-12))
        widths = 1.0 + (tokens[..., None] - 1.0) * found
    of_width = replace(setting, match_rate=1.0, sure_shares=())
    sizes = np.asarray(batch)[..., None], np.asarray(seq_len)[..., None], widths
    steps = work_time(setting.latency, verification_work(of_width, *sizes))

    def mean(values: FloatArray) -> FloatArray:
        if not values.ndim:
            return values
        return np.asarray(values[..., 0] if values.shape[-1] == 1 else (values * weights).sum(axis=-1))

    def worst(sources: CodeArray) -> CodeArray:
        return sources.max(axis=-1) if sources.ndim else sources

    mixed = steps.mapped(mean, worst)
    ((_, kernels),) = mixed.passes
    return replace(mixed, passes=((verification_work(setting, batch, seq_len, candidates), kernels),))


def verification_work(setting: Setting, batch: Size, seq_len: Size, candidates: Size) -> PassWork:
    """Kernels of `verification_step`."""
    width = processed_tokens(setting, candidates)
    workload = replace(verify(batch, seq_len, width), overlap=setting.overlap)
    setting = replace(setting, runtime=setting.runtime.drafting(setting.drafter_name))
    accepting = setting.scope == "model" and not setting.runtime.chain_only
    longest = _longest_path(setting, candidates)
    more = (
        acceptance_launches(setting.shard, workload, setting.compacted_drafts, longest) if accepting else ()
    )
    return _target_work(setting, workload, more)


def _longest_path(setting: Setting, candidates: Size) -> Size:
    """Drafts of the longest path of so many candidates, for which caches are compacted."""
    if setting.longest_drafts <= setting.compacted_drafts:
        return setting.compacted_drafts
    return np.asarray(np.clip(np.asarray(candidates) - 1, setting.compacted_drafts, setting.longest_drafts))


def step_works(setting: Setting, batch: int, seq_len: int, candidates: int) -> tuple[PassWork, ...]:
    """The passes of one step, the target's first; one candidate is plain decoding without any drafting."""
    if candidates == 1:
        return (_target_work(setting, decode(batch, seq_len)),)
    verification = verification_work(setting, batch, seq_len, candidates)
    if setting.scope == "block" or setting.drafter is None:
        return (verification,)
    workload = verify(batch, seq_len, candidates)
    return (verification, *setting.drafter.work(setting.shard, workload, setting.runtime))


def processed_tokens(setting: Setting, candidates: Size) -> Size:
    """Tokens that a step of `candidates` processes per sequence in the mean over (N5).

    Drafts that are looked up in the text are verified where the look-up finds any; elsewhere the step is
    plain.
    """
    if setting.match_rate == 1.0:
        return candidates
    return 1.0 + setting.match_rate * (np.asarray(candidates, dtype=np.float64) - 1.0)


def _target_work(setting: Setting, workload: Workload, more: tuple[Launch, ...] = ()) -> PassWork:
    workload = padded(workload, setting.runtime)
    launches = (*step_launches(setting.shard, workload, setting.runtime, setting.scope), *more)
    return PassWork(
        launches=launches,
        runtime=setting.runtime,
        workload=workload,
        of="target",
        layers=setting.model.layers,
        schedulers=setting.parallel.schedulers,
    )


def padded(workload: Workload, runtime: Runtime) -> Workload:
    """The workload as an engine runs it: filled up to a captured size (N3). Prompts are not captured."""
    if runtime.engine is None or workload.phase == "prefill":
        return workload
    rows = padded_tokens(runtime.engine, workload.batch, workload.query_tokens)
    return replace(workload, padded_rows=rows)


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
    own_requests = np.ceil(np.asarray(batch) / setting.parallel.schedulers)
    levels = sum(work.of == "draft" for work in passes) * (drafter.nodes_per_level > 1)
    added = drafting_cost(
        setting.runtime,
        own_requests,
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


def speculative_step(setting: Setting, batch: Size, seq_len: Size, candidates: Size) -> StepTime:
    """One speculative step: drafting, verification of `candidates` tokens, acceptance.

    At one candidate this still drafts: use `decode_step` for plain decoding.
    """
    step = verification_step(setting, batch, seq_len, candidates)
    for drafting in drafting_steps(setting, batch, seq_len, candidates):
        step = step + drafting
    return step
