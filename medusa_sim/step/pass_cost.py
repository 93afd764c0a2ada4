"""One pass -> its time and band: kernels are timed, then host and engine are added (`compose.Cost`).

The time is |device, host|_3 + exposed (`compose.step_us`), of

    device  = sum of kernel times + launches launch_us
    host    = launches host_us_per_launch
              + host_us_per_step of a forward pass
              + what an engine's host does while the target's kernels run (N1), or launches where no graph
              holds them (N3)
    exposed = what an engine's host adds to the target's pass (N1), what the small kernels of a drafter leave
              idle (N2), and pieces (N16)

What errs with what, in the 80 % band of it:

    one kernel in every layer           adds up
    kernels measured on this GPU        independent of each other: in quadrature
    borrowed kernels of one kind        correlated: their common part (`Fit.together`) adds up
    all other kernels, one law's too    add up
    an engine's terms                   in quadrature with the kernels
    set-up (`setup_half_us`)            one error of all passes, plain and drafting: no ratio has it
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from medusa_sim.arrays import BoolArray, FloatArray
from medusa_sim.engines.backends import backend_of
from medusa_sim.engines.engine import Engine
from medusa_sim.engines.runtime import Runtime
from medusa_sim.engines.widening import least_half_width
from medusa_sim.latency.model import LatencyModel
from medusa_sim.operators.attention import Attention
from medusa_sim.operators.kinds import KIND_OF
from medusa_sim.operators.operator import Size
from medusa_sim.step.compose import Cost, step_us
from medusa_sim.step.graphs import is_captured
from medusa_sim.step.host import (
    NOTHING_ADDED,
    Added,
    drafting_pass_us,
    host_share,
    launching_us,
    overlapped_us,
    pieces_us,
    split_host,
)
from medusa_sim.step.pass_times import PassTimes
from medusa_sim.step.pass_work import PassWork
from medusa_sim.step.timed_kernels import TimedKernels, timed_kernels
from medusa_sim.step.workload import Workload, of_fullest
from medusa_sim.units import BYTES_PER_ELEMENT


def timed_pass(latency: LatencyModel, work: PassWork) -> PassTimes:
    """The time of one pass: of kernels that one runtime launches one after another."""
    kernels = timed_kernels(latency, work)
    cost = pass_cost(kernels, whole_graph=has_whole_graph(latency, kernels.work))
    return PassTimes(cost=cost, passes=(kernels,))


def device_us(latency: LatencyModel, work: PassWork) -> FloatArray:
    """Its device alone, without a band: kernels and gaps."""
    kernels = timed_kernels(latency, work)
    return kernels.device_us + kernels.gaps_us


def pass_cost(kernels: TimedKernels, *, whole_graph: bool = True) -> Cost:
    """Device, host and engine of one pass, with their errors.

    whole_graph: whether a graph holds the whole pass, attention included. Else the host plans it, and with
    several queries runs it in pieces.
    """
    work, device_us = kernels.work, kernels.device_us + kernels.gaps_us
    without_kernels = _host_and_engine(work, device_us, whole_graph=whole_graph)
    below_square, above_square = _kernel_squares(kernels)
    share_of_us = _set_up_us(work, device_us, without_kernels)
    set_up_half_us = setup_half_us(work.runtime, share_of_us, kernels.parts_us.get("experts", 0.0))
    return replace(
        without_kernels,
        device_us=device_us,
        below_square=below_square,
        above_square=above_square,
        setup_half_us=set_up_half_us + kernels.device_half_us,
    )


# Host and engine.


def _host_and_engine(work: PassWork, device_us: FloatArray, *, whole_graph: bool) -> Cost:
    """Cost of a pass but for its kernels."""
    engine, launches_us = work.runtime.engine, np.asarray(work.kernel_count * work.runtime.host_us_per_launch)
    if not work.is_forward:
        return Cost(host_us=launches_us)
    launches_us = launches_us + work.runtime.host_us_per_step
    if engine is None:
        return Cost(host_us=launches_us)
    pieces = NOTHING_ADDED if whole_graph else pieces_us(engine, work.layers, work.workload.query_tokens)
    if work.name == "target":
        return _target_in_engine(engine, work, device_us, launches_us, pieces)
    exposed = drafting_pass_us(engine, work.layers, device_us).plus(pieces)
    return Cost(host_us=launches_us, exposed_us=exposed.time_us, draft_square=np.asarray(exposed.half_us**2))


def _target_in_engine(
    engine: Engine, work: PassWork, device_us: FloatArray, launches_us: FloatArray, pieces: Added
) -> Cost:
    """Host and engine of the target's pass: (N1), (N3). launches_us: of the host; pieces: (N16)."""
    requests = of_fullest(work.workload.batch, work.schedulers)  # of one host
    hidden_us, exposed = split_host(engine, requests, work.layers)
    exposed = exposed.plus(pieces)
    launching = launching_us(engine, work.layers, _in_graph(engine, work.workload, requests))
    host_us = launches_us + hidden_us + launching.time_us
    # a plain step of as many requests may be in a graph: what launching adds is not what both steps share
    launching_half_us = np.zeros(())
    if launching.half_us.any():
        launching_half_us = host_share(host_us, overlapped_us(device_us, host_us)) * launching.half_us
    return Cost(
        host_us=host_us,
        exposed_us=exposed.time_us,
        step_square=np.asarray(exposed.half_us**2),
        draft_square=np.asarray(launching_half_us**2),
    )


def _in_graph(engine: Engine, workload: Workload, requests: Size) -> BoolArray:
    """Whether a graph holds a pass of so many requests a host; what launches prompts is `step.prompts`'."""
    if workload.phase == "prefill":
        return np.asarray(True)
    return is_captured(engine, requests, workload.query_tokens, workload.graph_tokens)


def has_whole_graph(latency: LatencyModel, work: PassWork) -> bool:
    """Whether the engine's graph of this pass holds its attention too (`engines.backends`)."""
    if work.runtime.engine is None or not work.is_forward or work.workload.phase == "prefill":
        return True
    for operator in (launch.operator for launch in work.launches):
        attention = KIND_OF[operator.kind].attention
        if not attention:
            continue
        backend = backend_of(
            work.runtime.library,
            latency.gpu.architecture,
            attention=attention,
            bytes_of_kv=BYTES_PER_ELEMENT[operator.stored_dtype],
            head_dim=float(np.max(operator.head_dim)) if isinstance(operator, Attention) else 0.0,
            chosen=work.runtime.backend,
        )
        return backend.full_graph and (backend.draft_graph or not work.reads_accepted)
    return True


# The band.


def _kernel_squares(kernels: TimedKernels) -> tuple[FloatArray, FloatArray]:
    """(downwards, upwards) squared half-widths of the kernels of a pass.

    Of plain steps a share counts where such were measured (`Runtime.kernels_half_share`).
    """
    below_square, above_square = kernels.band.squares
    half_share = kernels.work.runtime.kernels_half_share
    if not kernels.work.is_plain or half_share >= 1.0:
        return below_square, above_square
    return half_share**2 * below_square, half_share**2 * above_square


def _set_up_us(work: PassWork, device_us: FloatArray, cost: Cost) -> FloatArray:
    """Microseconds of the pass that its set-up's error is a share of.

    In an engine: device and exposed time. Prompts count in the step that they ride on.
    """
    if work.runtime.engine is None:
        return step_us(device_us, cost.host_us)
    return np.zeros(()) if work.name == "prompts" else device_us + cost.exposed_us


def setup_half_us(runtime: Runtime, pass_us: FloatArray, experts_us: FloatArray | float = 0.0) -> FloatArray:
    """Half-width by which steps of one set-up differ from those of others (`Cost.setup_half_us`).

    pass_us: what it is a share of; experts_us: of that its layers of experts.
    """
    own_share = 0.0 if runtime.engine is None else runtime.engine.between_share.value
    return np.asarray(np.hypot(own_share * pass_us, least_half_width(runtime.widenings, pass_us, experts_us)))
