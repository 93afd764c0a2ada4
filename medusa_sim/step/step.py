"""Kernels and a runtime -> the time of one step, its breakdown and what bounds it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property, reduce
from operator import add
from typing import Any

import numpy as np

from medusa_sim.arrays import FloatArray, as_float
from medusa_sim.latency.base import Bound, CodeArray, LatencyModel
from medusa_sim.operators.kinds import KIND_OF
from medusa_sim.operators.operator import Attention, Size
from medusa_sim.specs.engine_facts import backend_of
from medusa_sim.specs.gpu import Gpu
from medusa_sim.specs.model import Model
from medusa_sim.specs.nearness import between
from medusa_sim.specs.parallel import ONE, Parallel
from medusa_sim.specs.runtime import Runtime
from medusa_sim.specs.variants import on_one_gpu
from medusa_sim.step.chance import drafted_tokens, found_shares
from medusa_sim.step.compose import (
    Cost,
    PassWork,
    beside_kernels,
    drafting_cost,
    eager_levels_us,
    padded_tokens,
)
from medusa_sim.step.drafter.base import Drafter
from medusa_sim.step.kernels import WAITS, Kernels, priced, timed
from medusa_sim.step.network import acceptance_launches, step_launches
from medusa_sim.step.workload import CHAIN, Launch, Overlap, Part, Scope, Workload, decode, prefill, verify
from medusa_sim.units import BYTES_PER_ELEMENT


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """What stays the same over a grid: the model, how it is run, and what drafts for it.

    method: name of the drafter that verification steps serve, by which engines schedule them (empty: that of
    `drafter`). depth: the longest path of drafts, which sizes the cache compaction; a chain may be longer, up
    to `deepest` drafts. match_rate: share of the steps in which drafts are found, for a drafter that looks
    them up in the text. kept: shares of drafts that the drafter is sure of, given that it was of those before
    (empty: all are verified). parallel: the GPUs that share the model. overlap: how far the candidates of a
    sequence share experts.
    """

    latency: LatencyModel
    model: Model
    runtime: Runtime
    scope: Scope
    drafter: Drafter
    method: str = ""
    depth: int = 5
    deepest: int = 0
    match_rate: float = 1.0
    kept: tuple[float, ...] = ()
    parallel: Parallel = ONE
    overlap: Overlap = CHAIN

    @property
    def shard(self) -> Model:
        """What one GPU holds of the model: all times are this one's."""
        return on_one_gpu(self.model, self.parallel)


@dataclass(frozen=True, kw_only=True)
class StepTime:
    """Time of one step for every shape of a grid, microseconds. Steps add with `+`.

    cost: device, host and engine (`compose.Cost`), which give the time and its 80 % band. passes: those that
    were timed, each with its kernels, for what else follows from them.
    """

    cost: Cost
    passes: tuple[tuple[PassWork, Kernels], ...] = ()

    @property
    def works(self) -> tuple[PassWork, ...]:
        """The passes without their times (`step/server.py`)."""
        return tuple(work for work, _ in self.passes)

    @property
    def device_us(self) -> FloatArray:
        """Kernels and the gaps between them."""
        return self.cost.device_us

    @property
    def host_us(self) -> FloatArray:
        """What the host needs to launch them."""
        return self.cost.host_us

    @property
    def time_us(self) -> FloatArray:
        """Device, host and engine together (`compose.step_us`)."""
        return self.cost.time_us

    @property
    def low_us(self) -> FloatArray:
        """Lower end of the 80 % band."""
        return self.cost.low_us

    @property
    def high_us(self) -> FloatArray:
        """Upper end of the 80 % band."""
        return self.cost.high_us

    @cached_property
    def launch_us(self) -> float:
        """Gaps between kernels."""
        return sum(work.kernels * work.runtime.launch_us for work in self.works)

    @property
    def beside_us(self) -> FloatArray:
        """What is no kernel: gaps between them, and what of host and engine is not hidden behind them."""
        return self.time_us - sum(self.parts_us.values(), start=np.zeros(()))

    @cached_property
    def parts_us(self) -> dict[Part, FloatArray]:
        """Kernel time by slice, each in the smallest shape that holds it."""
        parts: dict[Part, FloatArray] = {}
        for _, kernels in self.passes:
            for part, time_us in kernels.parts_us.items():
                parts[part] = parts.get(part, 0.0) + time_us
        return parts

    @cached_property
    def waits_us(self) -> dict[Bound, FloatArray]:
        """Device time by what bounds it, WAITS; the gaps and the rest of the kernels are latency."""
        every = [kernels.waits_us for _, kernels in self.passes]
        return {
            code: reduce(add, (waits[code] for waits in every)) if every else np.zeros(()) for code in WAITS
        }

    @cached_property
    def source(self) -> CodeArray:
        """Worst `Source` code among the kernels."""
        worst: CodeArray = np.zeros((), dtype=np.int8)
        for _, kernels in self.passes:
            worst = np.maximum(worst, kernels.source)
        return worst

    @cached_property
    def bound(self) -> CodeArray:
        """`Bound` codes: what takes the largest share; the host where the device waits for it."""
        return bound_codes(self.waits_us, self.cost)

    def each(self, take: Callable[[FloatArray], FloatArray]) -> StepTime:
        """With every array replaced by what `take` makes of it; the works themselves stay as they are."""
        passes = tuple((work, kernels.each(take)) for work, kernels in self.passes)
        return StepTime(cost=self.cost.each(take), passes=passes)

    def __add__(self, other: StepTime) -> StepTime:
        """Both one after the other."""
        return StepTime(cost=self.cost + other.cost, passes=self.passes + other.passes)


def bound_codes(waits_us: dict[Bound, FloatArray], cost: Cost) -> CodeArray:
    """`Bound` codes of steps that wait so long for memory and compute, and cost so much."""
    memory, compute = (waits_us[code] for code in WAITS)
    latency = cost.device_us - (memory + compute)
    code = np.maximum(
        np.int8(Bound.COMPUTE) * (compute > memory),
        np.int8(Bound.LATENCY) * (latency > np.maximum(memory, compute)),
    )
    waits = cost.host_us + cost.exposed_us > cost.device_us
    return np.asarray(np.maximum(code, np.int8(Bound.HOST) * waits))


def work_time(latency: LatencyModel, work: PassWork) -> StepTime:
    """Time of kernels that one runtime launches one after another (`kernels_time`)."""
    work = replace(work, launches=tuple(priced(latency, work.launches)))
    return kernels_time(latency, work, timed(latency, work.runtime, work.launches))


def device_us(latency: LatencyModel, work: PassWork) -> FloatArray:
    """`work_time` on the device alone, without a band."""
    kernels = timed(latency, work.runtime, priced(latency, work.launches))
    return kernels.device_us + work.kernels * work.runtime.launch_us


def kernels_time(latency: LatencyModel, work: PassWork, kernels: Kernels) -> StepTime:
    """Time of a pass whose kernels are timed.

    device = sum of kernel times + launches x launch_us; host and engine: `compose`. The band adds the
    half-widths of different kernels in quadrature (their residuals are taken as independent), those of one
    kernel in every layer linearly, and so those of kernels that nobody measured on this GPU, of borrowed ones
    what they are off by together (`step.kernels.BORROWED_SHARE`).
    """
    device_us = kernels.device_us + work.kernels * work.runtime.launch_us
    beside = beside_kernels(work, device_us, whole_graph=has_whole_graph(latency, work))
    below, above, shared_below, shared_above = kernels.spread
    cost = replace(
        beside,
        device_us=device_us,
        source_us=_of_experts(work.runtime, kernels, beside.source_us) + kernels.device_half_us,
        below_square=below + shared_below**2 if shared_below.any() else below,
        above_square=above + shared_above**2 if shared_above.any() else above,
    )
    return StepTime(cost=cost, passes=((work, kernels),))


def _of_experts(runtime: Runtime, kernels: Kernels, source_us: FloatArray) -> FloatArray:
    """Half-width by which a set-up's steps lie beside those of others, that of layers of experts with it."""
    share = 0.0 if runtime.engine is None else runtime.engine.experts_between
    if not share or (experts_us := kernels.parts_us.get("experts")) is None:
        return source_us
    return between(source_us, share, experts_us)


def step_kernels(gpu: Gpu, runtime: Runtime, dtype: str) -> str:
    """Name of the kernel set of a whole step. Raises SpecError where the runtime names none for the dtype."""
    named = runtime.kernel_set(dtype)
    return named if named == "paper" else gpu.step_kernels.get(dtype, named)


def has_whole_graph(latency: LatencyModel, work: PassWork) -> bool:
    """Whether the engine's graph of this pass holds its attention too (`specs.engine_facts`)."""
    if work.runtime.engine is None or work.of == "continued" or work.workload.phase == "prefill":
        return True
    reads_accepted = work.of == "draft" and bool(np.any(np.asarray(work.workload.query_tokens) > 1))
    for operator in (launch.operator for launch in work.launches):
        attention = KIND_OF[operator.kind].attention
        if not attention:
            continue
        backend = backend_of(
            work.runtime.library,
            latency.gpu.architecture,
            latent=attention == "latent",
            sparse=attention == "sparse",
            bytes_of_kv=BYTES_PER_ELEMENT[operator.stored_dtype],
            head_dim=float(np.max(operator.head_dim)) if isinstance(operator, Attention) else 0.0,
            chosen=work.runtime.backend,
        )
        return backend.full_graph and (backend.draft_graph or not reads_accepted)
    return True


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
    work = verification_work(setting, batch, seq_len, candidates)
    if setting.match_rate == 1.0 and not setting.kept:
        return work_time(setting.latency, work)
    sizes = np.broadcast_arrays(as_float(batch), as_float(candidates))
    if setting.kept:
        widths, weights = drafted_tokens(sizes[0], sizes[1] - 1.0, setting.kept)
    else:
        found, weights = found_shares(sizes[0], min(max(setting.match_rate, 1e-12), 1.0 - 1e-12))
        widths = 1.0 + (sizes[1][..., None] - 1.0) * found
    whole = replace(setting, match_rate=1.0, kept=())
    lengths = np.asarray(seq_len)[..., None]
    each = work_time(setting.latency, verification_work(whole, np.asarray(batch)[..., None], lengths, widths))

    def mean(values: FloatArray) -> FloatArray:
        if not values.ndim:
            return values
        return np.asarray(values[..., 0] if values.shape[-1] == 1 else (values * weights).sum(axis=-1))

    mixed = each.each(mean)
    (_, kernels), *_ = mixed.passes
    source = each.source
    worst = kernels.with_source(source.max(axis=-1) if source.ndim else source)
    return StepTime(cost=mixed.cost, passes=((work, worst),))


def verification_work(setting: Setting, batch: Size, seq_len: Size, candidates: Size) -> PassWork:
    """Kernels of `verification_step`."""
    width = processed_tokens(setting, candidates)
    workload = replace(verify(batch, seq_len, width), overlap=setting.overlap)
    setting = replace(setting, runtime=setting.runtime.drafting(setting.method or setting.drafter.name))
    accepting = setting.scope == "model" and not setting.runtime.chain_only
    longest = _longest_path(setting, candidates)
    more = acceptance_launches(setting.shard, workload, setting.depth, longest) if accepting else ()
    return _target_work(setting, workload, more)


def _longest_path(setting: Setting, candidates: Size) -> Size:
    """Drafts of the longest path of so many candidates, for which caches are compacted."""
    if setting.deepest <= setting.depth:
        return setting.depth
    return np.asarray(np.clip(np.asarray(candidates) - 1, setting.depth, setting.deepest))


def step_works(setting: Setting, batch: int, seq_len: int, candidates: int) -> tuple[PassWork, ...]:
    """The passes of one step, the target's first; one candidate is plain decoding without any drafting."""
    if candidates == 1:
        return (_target_work(setting, decode(batch, seq_len)),)
    verification = verification_work(setting, batch, seq_len, candidates)
    if setting.scope == "block":
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


def drafting_works(
    setting: Setting, batch: Size, seq_len: Size, candidates: Size, kept: dict[Any, Any]
) -> tuple[PassWork, ...]:
    """Passes of `drafting_steps`, with the same `kept`; none for scope `block`."""
    if setting.scope == "block":
        return ()
    workload = replace(verify(batch, seq_len, candidates), kept=kept)
    return setting.drafter.work(setting.shard, workload, setting.runtime)


def drafting_steps(
    setting: Setting,
    batch: Size,
    seq_len: Size,
    candidates: Size,
    kept: dict[Any, Any] | None = None,
) -> tuple[StepTime, ...]:
    """What drafting adds to a verification step; nothing for scope `block`.

    kept: passes that one drafter at other depths has on the same batches and lengths in the same setting.
    """
    if setting.scope == "block":
        return ()
    known = {} if kept is None else kept
    passes = drafting_works(setting, batch, seq_len, candidates, known)
    for work in passes:
        if id(work) not in known:
            known[id(work)] = work, work_time(setting.latency, work)
    timed = tuple(known[id(work)][1] for work in passes)
    drafter = setting.drafter
    if setting.kept and drafter.has_levels:
        timed = tuple(map(_reached, timed, _passes_reached(setting, len(passes))))
    own_requests = np.ceil(np.asarray(batch) / setting.parallel.schedulers)
    levels = sum(work.of == "draft" for work in passes) * (drafter.nodes_per_level > 1)
    added = drafting_cost(
        setting.runtime,
        own_requests,
        looks_up=drafter.looks_up,
        width=drafter.nodes_per_level,
        levels_us=eager_levels_us(setting.runtime, setting.model.hidden, levels),
    )
    return timed if added is None else (*timed, StepTime(cost=added))


def _passes_reached(setting: Setting, passes: int) -> FloatArray:
    """Shares of the rounds in which each pass of a drafter runs; what reads and the first draft's: in all."""
    reading = 1 + setting.runtime.draft_reads_back
    further = np.cumprod(setting.kept)[: max(passes - reading, 0)]
    return np.concatenate([np.ones(passes - further.size), further])


def _reached(step: StepTime, share: float) -> StepTime:
    """A pass that runs in so many of the rounds."""
    ((_, kernels),) = step.passes
    fewer = step.each(lambda values: values * share)
    ((work, part),) = fewer.passes
    return StepTime(cost=fewer.cost, passes=((work, part.with_source(kernels.source)),))


def verify_step(setting: Setting, batch: Size, seq_len: Size, candidates: Size) -> StepTime:
    """One speculative step: drafting, verification of `candidates` tokens, acceptance.

    At one candidate this still drafts: use `decode_step` for plain decoding.
    """
    step = verification_step(setting, batch, seq_len, candidates)
    for drafting in drafting_steps(setting, batch, seq_len, candidates):
        step = step + drafting
    return step
