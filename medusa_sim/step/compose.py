"""Device, host and engine -> the time of a step: the one place where they are put together.

    t = |device, launching host|_3 + exposed
        device   kernels, and the gaps between them
        host     what launching them takes the host, which works ahead of the device
        exposed  what an engine adds after or before its kernels and hides behind nothing (`step/host.py`)

Everything that prices a step (one step, a grid, rows of operators, a search) adds `Cost`s and reads
`time_us`; no other module knows this law.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, fields, replace
from functools import cached_property
from typing import Literal

import numpy as np

from medusa_sim.arrays import FloatArray, Halves, IntArray, in_quadrature
from medusa_sim.operators.operator import Size
from medusa_sim.specs.engine import Engine
from medusa_sim.specs.nearness import between
from medusa_sim.specs.runtime import Runtime
from medusa_sim.step.host import (
    drafting_pass_us,
    drafting_us,
    host_share,
    host_us,
    launching_us,
    overlapped_us,
    pieces_us,
)
from medusa_sim.step.kernel_sums import Kernels
from medusa_sim.step.launch import Launch
from medusa_sim.step.workload import Workload

RATIO_SHARE = 0.5
"""Of what the bands of kernels and of an engine's terms add up to in a ratio of its steps, for 80 %.

With it the bands hold 81 % of 151 published speedups, each predicted without its source; with one source left
out of this choice the others ask for 0.5 to 0.7 (`python benchmarks/engine_fit.py`). The rows do not tell
shares of kernels and of terms apart (benchmarks/log).
"""
EAGER_BAND = 0.3
"""80 % half-width of what eager code takes around drafts: twice what its plain steps differ by on two
machines."""
LEVEL_HIDDEN = 4096
"""Width of the features of the model that `host_us_per_level` was taken from (Vicuna-7B).

1.3 ms a level there and 2 ms at a width of 5,120: with the square of the width, as the weights and features
that eager code moves between passes.
"""
Pass = Literal["target", "draft", "continued"]
"""A forward pass of the target, one of a drafter, or kernels that continue the pass before them (heads)."""


def step_us(
    device_us: FloatArray, host_us: FloatArray | float, exposed_us: FloatArray | float = 0.0
) -> FloatArray:
    """Microseconds of a step: |device, host|_3 + exposed (`overlapped_us`); arrays broadcast."""
    device, host = np.asarray(device_us), np.asarray(host_us)
    launched = overlapped_us(device, host) if host.any() else device
    return np.asarray(launched + exposed_us) if np.any(exposed_us) else launched


def _nothing() -> FloatArray:
    return np.zeros(())


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


@dataclass(frozen=True, kw_only=True, eq=False)
class Cost:
    """What a step takes, before device, host and engine are put together; microseconds, shapes broadcast.

    Costs of passes one after another add with `+`; their errors are taken as independent, but for that of the
    set-up, which they share.
    """

    device_us: FloatArray = field(default_factory=_nothing)
    """Kernels and the gaps between them."""
    host_us: FloatArray = field(default_factory=_nothing)
    """The host that launches them, ahead of the device."""
    exposed_us: FloatArray = field(default_factory=_nothing)
    """What hides behind neither."""
    below_square: FloatArray = field(default_factory=_nothing)
    """Squared half-width of the 80 % band of `device_us`, downwards."""
    above_square: FloatArray = field(default_factory=_nothing)
    """The same upwards."""
    step_square: FloatArray = field(default_factory=_nothing)
    """The same of what an engine adds to every step."""
    draft_square: FloatArray = field(default_factory=_nothing)
    """The same of what it adds to a step that drafts."""
    setup_half_us: FloatArray = field(default_factory=_nothing)
    """Half-width by which steps of a set-up lie beside those of others, plain and drafting alike, so that no
    ratio has it."""
    gain_square: FloatArray = field(default_factory=_nothing)
    """Squared half-width of the logarithm of the ratio to a plain step, by which an engine's published
    speedups lie beside its terms."""

    @cached_property
    def time_us(self) -> FloatArray:
        """Device, host and engine together."""
        return step_us(self.device_us, self.host_us, self.exposed_us)

    @cached_property
    def low_us(self) -> FloatArray:
        """Lower end of the 80 % band."""
        low_us = self._low_us
        if not self.setup_half_us.any():
            return low_us
        return np.asarray(self.time_us - np.sqrt((self.time_us - low_us) ** 2 + self.setup_half_us**2))

    @property
    def _low_us(self) -> FloatArray:
        low_us = self._fast_us
        if not self.has_engine_band:
            return low_us
        below_us = np.sqrt((self.time_us - low_us) ** 2 + self._engine_square)
        # an engine adds nothing negative: kernels alone, at their fastest, are the floor
        floor_us = np.minimum(low_us, step_us(self._fast_device_us, self.host_us))
        return np.maximum(self.time_us - below_us, floor_us)

    @cached_property
    def high_us(self) -> FloatArray:
        """Upper end of the 80 % band."""
        high_us = self._slow_us
        if not self.has_engine_band and not self.setup_half_us.any():
            return high_us
        squares = self._engine_square + self.setup_half_us**2
        return np.asarray(self.time_us + np.sqrt((high_us - self.time_us) ** 2 + squares))

    @property
    def kernel_halves(self) -> Halves:
        """Half-widths of the step by the band of its kernels alone."""
        return Halves.within(self._fast_us, self.time_us, self._slow_us)

    @property
    def halves(self) -> Halves:
        """Half-widths of the step."""
        return Halves.within(self.low_us, self.time_us, self.high_us)

    @cached_property
    def _slow_us(self) -> FloatArray:
        """With kernels at the upper end of their band."""
        return step_us(self.device_us + np.sqrt(self.above_square), self.host_us, self.exposed_us)

    @cached_property
    def _fast_us(self) -> FloatArray:
        """With kernels at the lower end of their band."""
        return step_us(self._fast_device_us, self.host_us, self.exposed_us)

    @property
    def _fast_device_us(self) -> FloatArray:
        return np.asarray(self.device_us - np.sqrt(self.below_square))

    @property
    def has_engine_band(self) -> bool:
        """Whether an engine adds anything uncertain."""
        return bool(self.step_square.any() or self.draft_square.any())

    @property
    def _engine_square(self) -> FloatArray:
        return np.asarray(self.step_square + self.draft_square)

    def __add__(self, other: Cost) -> Cost:
        """Both one after the other."""
        return Cost(**{name: getattr(self, name) + getattr(other, name) for name in COST_FIELDS})

    def mapped(self, change: Callable[[FloatArray], FloatArray]) -> Cost:
        """The cost with every array replaced by what `change` makes of it."""
        return Cost(**{name: change(getattr(self, name)) for name in COST_FIELDS})


COST_FIELDS = tuple(entry.name for entry in fields(Cost))


def along(values: FloatArray, index: IntArray | slice) -> FloatArray:
    """The entries `index` of the last axis; what does not vary along it stays as it is."""
    if values.ndim == 0 or values.shape[-1] == 1:
        return values
    return np.asarray(values[..., index])


def overhead_halves(step: Cost, plain: Cost) -> Halves:
    """Half-widths of the overhead step / plain.

    The kernels' band is that of `step`, alone where no engine adds anything. What an engine adds to every
    step moves the ratio by the difference of its shares in the two, what drafting adds by its own. Of both
    RATIO_SHARE counts: an engine's two steps read the same weights and K and V, so that part of the error of
    their kernels is common and cancels, and terms fitted to the same rounds err against each other. Beside
    both stands what speedups in the engine's version with that kind of drafter miss by (`gain_square`).
    """
    kernels = step.kernel_halves
    if not (step.has_engine_band or plain.has_engine_band):
        return kernels
    shared = np.sqrt(step.step_square) / step.time_us - np.sqrt(plain.step_square) / plain.time_us
    engine = in_quadrature(shared, np.sqrt(step.draft_square) / step.time_us)
    gain = np.sqrt(step.gain_square)
    return Halves(*(in_quadrature(RATIO_SHARE * in_quadrature(half, engine), gain) for half in kernels))


def pass_cost(work: PassWork, kernels: Kernels, *, whole_graph: bool = True) -> Cost:
    """What one pass takes, whose kernels are timed.

    device = sum of kernel times + launches x launch_us. host = launches x host_us_per_launch, for a forward
    pass of its own host_us_per_step, and in the target's pass what an engine hides or launches outside graphs
    (N3). exposed: what an engine's host adds to the target's pass (N1), what a draft model's small kernels
    leave idle, and pieces (N16). whole_graph: whether a graph holds the whole pass, attention included; else
    the host plans it, and with several queries runs it in pieces.

    The band adds the half-widths of different kernels in quadrature (their residuals are taken as
    independent), those of one kernel in every layer linearly, and so those of kernels that nobody measured on
    this GPU, of borrowed ones what those of one kind are off by together (`Fit.together`).
    """
    device_us = kernels.device_us + work.gaps_us
    beside = _beside_kernels(work, device_us, whole_graph=whole_graph)
    below_square, above_square = kernels.spread.squares
    return replace(
        beside,
        device_us=device_us,
        setup_half_us=_with_experts(work.runtime, kernels, beside.setup_half_us) + kernels.device_half_us,
        below_square=below_square,
        above_square=above_square,
    )


def _beside_kernels(work: PassWork, device_us: FloatArray, *, whole_graph: bool) -> Cost:
    """What a pass takes beside its kernels and the gaps between them (`pass_cost`)."""
    runtime, engine = work.runtime, work.runtime.engine
    launches_us = np.asarray(work.kernels * runtime.host_us_per_launch)
    if work.of == "continued":
        return Cost(host_us=launches_us)
    launches_us = launches_us + runtime.host_us_per_step
    if engine is None:
        return Cost(host_us=launches_us)
    query_tokens = work.workload.query_tokens
    batch = np.ceil(np.asarray(work.workload.batch) / work.schedulers)
    if work.of == "draft":
        added = drafting_pass_us(engine, work.layers, device_us)
    else:
        added = host_us(engine, batch, work.layers)
    if not whole_graph:
        added = added.plus(pieces_us(engine, work.layers, query_tokens))
    exposed = Cost(
        host_us=launches_us,
        exposed_us=added.time_us,
        setup_half_us=_setup_half_us(engine, device_us + added.time_us),
    )
    if work.of == "draft":
        return replace(exposed, draft_square=np.asarray(added.half_us**2))
    launching = launching_us(engine, work.layers, batch, batch * query_tokens)
    hidden_us = launches_us + engine.hidden_us_per_step.value + launching.time_us
    # a plain step of as many requests may be in a graph: what launching adds is not what both steps share
    launching_half_us = _nothing()
    if launching.half_us.any():
        launching_half_us = host_share(hidden_us, overlapped_us(device_us, hidden_us)) * launching.half_us
    return replace(
        exposed,
        host_us=hidden_us,
        step_square=np.asarray(added.half_us**2),
        draft_square=np.asarray(launching_half_us**2),
    )


def _setup_half_us(engine: Engine, time_us: FloatArray) -> FloatArray:
    """Half-width by which what takes so long in one set-up lies beside that of others."""
    share = engine.between_share.value
    return np.asarray(share * time_us) if share else _nothing()


def _with_experts(runtime: Runtime, kernels: Kernels, setup_half_us: FloatArray) -> FloatArray:
    """`_setup_half_us` of a pass with what layers of experts have besides."""
    share = 0.0 if runtime.engine is None else runtime.engine.experts_between
    if not share or (experts_us := kernels.parts_us.get("experts")) is None:
        return setup_half_us
    return between(setup_half_us, share, experts_us)


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
        setup_half_us=_setup_half_us(runtime.engine, added.time_us),
        gain_square=np.asarray(gain.value**2),
    )


def eager_levels_us(runtime: Runtime, hidden: int, levels: int) -> float:
    """(N15): what eager code does between so many levels of a tree, on features so wide."""
    return levels * runtime.host_us_per_level * (hidden / LEVEL_HIDDEN) ** 2
