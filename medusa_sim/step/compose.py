"""Device, host and engine -> the time of a step: the one place where they are put together.

    t = |device, launching host|_3 + exposed
        device   kernels, and the gaps between them
        host     what launching them takes the host, which works ahead of the device
        exposed  what an engine adds after or before its kernels and hides behind nothing

What a serving engine adds to the kernels of a step (docs/method-engines.md), microseconds:

    (N1)  host     = max(0, a + b h + layers l - hidden)  every step of b requests
    (N2)  drafting = e + b h_s (+ tree)                   a step that drafts by forward passes
                   = b n                                  a step that looks its drafts up in the text
          pass     = |kernels, u|_3                       one of the drafter's passes
    (N16) pieces   = plan + layers piece                  a pass whose attention no whole graph holds
    (N3)  rows     = tokens filled up to the next captured size
          pass     = |kernels, layers u_e|_3              beyond the largest: the host launches layer by layer

Beyond the requests that a term was measured with (`specs/ranges.py`) it goes on as before, and its half-width
grows by what the requests beyond add: down to where they cost nothing more.

The terms are an engine's (`specs/engine.py`). Everything that prices a step (one step, a grid, rows of
operators, a search) adds `Cost`s and reads `time_us`; no other module knows this law.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, fields
from functools import cached_property
from typing import Literal, NamedTuple

import numpy as np
from msgspec import structs

from medusa_sim.arrays import BoolArray, FloatArray, IntArray, in_quadrature
from medusa_sim.latency.waves import norm_max
from medusa_sim.operators.operator import Size
from medusa_sim.specs.engine import Engine
from medusa_sim.specs.runtime import Runtime
from medusa_sim.specs.term import Term
from medusa_sim.step.workload import Launch, Workload

Pass = Literal["target", "draft", "continued"]
"""A forward pass of the target, one of a drafter, or kernels that continue the pass before them (heads)."""


def step_us(
    device_us: FloatArray, host_us: FloatArray | float, exposed_us: FloatArray | float = 0.0
) -> FloatArray:
    """Microseconds of a step: |device, host|_p + exposed with p = HOST_OVERLAP; arrays broadcast.

    Never below the longer of device and host; at most 26 % above it, where both take as long, since each
    then waits for the other now and again.
    """
    device, host = np.asarray(device_us), np.asarray(host_us)
    overlapped = norm_max(device, host, HOST_OVERLAP) if host.any() else device
    return np.asarray(overlapped + exposed_us) if np.any(exposed_us) else overlapped


def _nothing() -> FloatArray:
    return np.zeros(())


@dataclass(frozen=True, slots=True, kw_only=True)
class PassWork:
    """Kernels launched one after another, the runtime that launches them, and what they are for.

    of: a forward pass of the target or of a drafter, or heads that continue the pass before them. workload:
    the tokens that pass through, by which engines charge. layers: of the network that passes. schedulers:
    hosts that share its requests.
    """

    launches: tuple[Launch, ...]
    runtime: Runtime
    workload: Workload
    of: Pass
    layers: int = 0
    schedulers: int = 1

    @property
    def kernels(self) -> int:
        """How many are launched."""
        return sum(launch.kernels for launch in self.launches)


@dataclass(frozen=True, kw_only=True, eq=False)
class Cost:
    """What a step takes, before device, host and engine are put together; microseconds, shapes broadcast.

    device_us, host_us, exposed_us: as in `step_us`. below_square, above_square: squared half-widths of the
    80 % band of device_us; step_square, draft_square: of what an engine adds to every step, and to a step
    that drafts; source_us: half-width by which steps of a set-up lie beside those of others, plain and
    drafting alike, so that no ratio has it. gain_square: that of the logarithm of the ratio to a plain step,
    by which published speedups of an engine lie beside its terms. Costs of passes one after another add with
    `+`; their errors are taken as independent, but for that of the set-up, which they share.
    """

    device_us: FloatArray = field(default_factory=_nothing)
    host_us: FloatArray = field(default_factory=_nothing)
    exposed_us: FloatArray = field(default_factory=_nothing)
    below_square: FloatArray = field(default_factory=_nothing)
    above_square: FloatArray = field(default_factory=_nothing)
    step_square: FloatArray = field(default_factory=_nothing)
    draft_square: FloatArray = field(default_factory=_nothing)
    source_us: FloatArray = field(default_factory=_nothing)
    gain_square: FloatArray = field(default_factory=_nothing)

    @cached_property
    def time_us(self) -> FloatArray:
        """Device, host and engine together."""
        return step_us(self.device_us, self.host_us, self.exposed_us)

    @cached_property
    def low_us(self) -> FloatArray:
        """Lower end of the 80 % band."""
        low_us = self._low_us
        if not self.source_us.any():
            return low_us
        return np.asarray(self.time_us - np.sqrt((self.time_us - low_us) ** 2 + self.source_us**2))

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
        if not self.has_engine_band and not self.source_us.any():
            return high_us
        squares = self._engine_square + self.source_us**2
        return np.asarray(self.time_us + np.sqrt((high_us - self.time_us) ** 2 + squares))

    @property
    def kernel_halves(self) -> tuple[FloatArray, FloatArray]:
        """(slower, faster): half-widths of the kernels' 80 % band on the logarithm of the step."""
        slower, faster = np.asarray(self._slow_us / self.time_us), np.asarray(self.time_us / self._fast_us)
        return np.log(slower, out=slower), np.log(faster, out=faster)

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

    def each(self, take: Callable[[FloatArray], FloatArray]) -> Cost:
        """The cost with every array replaced by what `take` makes of it."""
        return Cost(**{name: take(getattr(self, name)) for name in COST_FIELDS})


COST_FIELDS = tuple(entry.name for entry in fields(Cost))


def along(values: FloatArray, index: IntArray | slice) -> FloatArray:
    """The entries `index` of the last axis; what does not vary along it stays as it is."""
    if values.ndim == 0 or values.shape[-1] == 1:
        return values
    return np.asarray(values[..., index])


def overhead_halves(step: Cost, plain: Cost) -> tuple[FloatArray, FloatArray]:
    """Half-widths (slower, faster) of the 80 % band of ln(step / plain).

    The kernels' band is that of `step`, alone where no engine adds anything. What an engine adds to every
    step moves the ratio by the difference of its shares in the two, what drafting adds by its own. Of both
    RATIO_SHARE counts: an engine's two steps read the same weights and K and V, so that part of the error of
    their kernels is common and cancels, and terms fitted to the same rounds err against each other. Beside
    both stands what speedups in the engine's version with that kind of drafter miss by (`gain_square`).
    """
    slower, faster = step.kernel_halves
    if not (step.has_engine_band or plain.has_engine_band):
        return slower, faster
    shared = np.sqrt(step.step_square) / step.time_us - np.sqrt(plain.step_square) / plain.time_us
    engine = in_quadrature(shared, np.sqrt(step.draft_square) / step.time_us)
    gain = np.sqrt(step.gain_square)
    low, high = (in_quadrature(RATIO_SHARE * in_quadrature(half, engine), gain) for half in (slower, faster))
    return low, high


RATIO_SHARE = 0.5
"""Of what the bands of kernels and of an engine's terms add up to in a ratio of its steps, for 80 %.

With it the bands hold 81 % of 151 published speedups, each predicted without its source; with one source left
out of this choice the others ask for 0.5 to 0.7 (`python benchmarks/engine_fit.py`). The rows do not tell
shares of kernels and of terms apart (benchmarks/log).
"""


def beside_kernels(work: PassWork, device_us: FloatArray, *, whole_graph: bool = True) -> Cost:
    """What one pass takes beside its kernels, of which `device_us` is the time.

    host = launches x host_us_per_launch, and host_us_per_step for a forward pass of its own. exposed: what an
    engine's host adds to the target's pass (N1), and what a pass that no graph holds (N3) or a draft model's
    small kernels leave idle. whole_graph: whether a graph holds the whole pass, attention included; else the
    host plans it, and with several queries runs it in pieces (N16).
    """
    runtime, layers, query_tokens = work.runtime, work.layers, work.workload.query_tokens
    batch = np.ceil(np.asarray(work.workload.batch) / work.schedulers)
    own_pass = work.of != "continued"
    host = np.asarray(work.kernels * runtime.host_us_per_launch + own_pass * runtime.host_us_per_step)
    engine = runtime.engine
    if engine is None or not own_pass:
        return Cost(host_us=host)
    if work.of == "draft":
        longer = pass_us(engine, layers, device_us)
        if not whole_graph:
            longer = longer.plus(pieces_us(engine, layers, query_tokens))
        return Cost(
            host_us=host,
            exposed_us=longer.time_us,
            draft_square=np.asarray(longer.half_us**2),
            source_us=_source_us(engine, device_us + longer.time_us),
        )
    added = host_us(engine, batch, layers)
    if not whole_graph:
        added = added.plus(pieces_us(engine, layers, query_tokens))
    launching = launching_us(engine, layers, batch, batch * query_tokens)
    host = host + engine.hidden_us_per_step.value + launching.time_us
    own = _nothing()
    if launching.half_us.any():
        whole = norm_max(device_us, host, HOST_OVERLAP)
        # a plain step of as many requests may be in a graph: not what both steps share
        own = np.asarray(((host / whole) ** (HOST_OVERLAP - 1.0) * launching.half_us) ** 2)
    return Cost(
        host_us=host,
        exposed_us=added.time_us,
        step_square=np.asarray(added.half_us**2),
        draft_square=own,
        source_us=_source_us(engine, device_us + added.time_us),
    )


def _source_us(engine: Engine, time_us: FloatArray) -> FloatArray:
    """By how much what a set-up takes so long lies beside that of others, 80 % half-width."""
    share = engine.between_share.value
    return np.asarray(share * time_us) if share else _nothing()


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
        source_us=_source_us(runtime.engine, added.time_us),
        gain_square=np.asarray(gain.value**2),
    )


def eager_levels_us(runtime: Runtime, hidden: int, levels: int) -> float:
    """(N15): what eager code does between so many levels of a tree, on features so wide."""
    return levels * runtime.host_us_per_level * (hidden / LEVEL_HIDDEN) ** 2


EAGER_BAND = 0.3
"""80 % half-width of what eager code takes around drafts: twice what its plain steps differ by on two
machines."""
LEVEL_HIDDEN = 4096
"""Width of the features of the model that `host_us_per_level` was taken from (Vicuna-7B).

1.3 ms a level there and 2 ms at a width of 5,120: with the square of the width, as the weights and features
that eager code moves between passes.
"""


class Added(NamedTuple):
    """Microseconds that an engine adds, and the half-width of their 80 % band."""

    time_us: FloatArray
    half_us: FloatArray

    def plus(self, other: Added) -> Added:
        """Both, their errors independent."""
        return Added(self.time_us + other.time_us, np.hypot(self.half_us, other.half_us))


def host_us(engine: Engine, batch: Size, layers: int = 0) -> Added:
    """(N1): the work of the host in a step of `batch` requests that hides behind nothing.

    layers: of the model, where an engine is charged for each.

    Each request is sent one token or more in a step; what that takes (host_us_per_token) is added by
    `step/server.py`, where tokens are known.
    """
    added = _sum(
        (
            (engine.host_us_per_step, 1.0),
            (engine.layer_us, float(layers)),
            (engine.hidden_us_per_step, -1.0),
        ),
        ((engine.host_us_per_request, batch),),
    )
    return Added(np.maximum(added.time_us, 0.0), added.half_us)


def drafting_us(engine: Engine, batch: Size, *, looks_up: bool, width: int = 1) -> Added:
    """(N2): what drafting adds to a step of `batch` requests beside the drafter's forward passes.

    looks_up: the drafter finds its drafts in the text and runs no pass. width: nodes that each pass adds to a
    node; above 1 the drafts are a tree.
    """
    if looks_up:
        return _sum((), ((engine.lookup_us_per_request, batch),))
    return _sum(
        ((engine.draft_us_per_step, 1.0), (engine.tree_us_per_step, float(width > 1))),
        ((engine.draft_us_per_request, batch),),
    )


def pass_us(engine: Engine, layers: int, kernels_us: FloatArray) -> Added:
    """(N2): what a drafter's pass of so many layers takes longer than its kernels, whose host works ahead."""
    by_layer = structs.replace(engine.draft_us_per_layer, value=layers * engine.draft_us_per_layer.value)
    host = max(engine.draft_us_per_pass, by_layer, key=lambda term: term.value)
    whole = norm_max(kernels_us, np.asarray(host.value), HOST_OVERLAP)
    share = (host.value / np.maximum(whole, 1e-9)) ** (HOST_OVERLAP - 1.0)
    return Added(np.asarray(whole - kernels_us), np.asarray(share * host.half_width))


def pieces_us(engine: Engine, layers: int, query_tokens: Size) -> Added:
    """(N16): the plan of a pass whose attention no whole graph holds, and with several queries its pieces."""
    pieces = np.where(np.asarray(query_tokens) > 1, float(layers), 0.0)
    return _sum(((engine.plan_us_per_pass, 1.0), (engine.pieces_us_per_layer, pieces)))


HOST_OVERLAP = 3.0
"""Exponent of the smooth maximum of device and host: 1 adds, infinity overlaps perfectly.

From the plain steps of the Medusa paper (arXiv 2401.10774): Table 1 alone asks for 2.7, Table 4 for 4.1
(`tests/test_numbers.py` fits both; docs/method.md, host and device).
"""


def launching_us(engine: Engine, layers: int, batch: Size, rows: Size) -> Added:
    """(N3): the host in a pass of so many rows, while its kernels run; nothing where a graph holds it.

    The same law for every step: rows of prompts that ride on one count as those of requests.
    """
    captured = is_captured(engine, batch, np.asarray(rows) / np.maximum(np.asarray(batch), 1e-9))
    per_layer = engine.eager_us_per_layer
    launched = np.where(captured, 0.0, float(layers))
    return Added(launched * per_layer.value, launched * per_layer.half_width)


def _sum(
    terms: tuple[tuple[Term, FloatArray | float], ...], by_request: tuple[tuple[Term, Size], ...] = ()
) -> Added:
    """Sum of terms times what they are charged for; their errors are taken as independent.

    by_request: terms with the requests that they are charged for.
    """
    time_us = sum((np.asarray(term.value * times) for term, times in terms), np.zeros(()))
    squares = sum((np.asarray((term.half_width * times) ** 2) for term, times in terms), np.zeros(()))
    for term, batch in by_request:
        requests = np.asarray(batch, dtype=np.float64)
        time_us = time_us + term.value * requests
        squares = squares + (term.half_width * requests) ** 2 + (term.value * beyond(term, requests)) ** 2
    return Added(time_us, np.sqrt(squares))


def beyond(term: Term, requests: FloatArray) -> FloatArray:
    """Requests beyond those that a term was measured with."""
    known = None if term.measured is None else term.measured.requests
    return np.zeros(()) if known is None else np.maximum(requests - known, 0.0)


def padded_tokens(engine: Engine, batch: Size, query_tokens: Size) -> FloatArray:
    """(N3): rows of the linear layers of a step; beyond the largest captured size the tokens themselves."""
    requests, width = np.asarray(batch, dtype=np.float64), np.asarray(query_tokens, dtype=np.float64)
    tokens = requests * width
    if not engine.graph_sizes:
        return tokens
    sizes = np.asarray(engine.graph_sizes, dtype=np.float64)
    match engine.graph_unit:
        case "requests":
            padded = _next(sizes, requests) * width
        case "tokens":
            padded = _next(sizes, tokens)
        case "multiples":
            # the least size whose next multiple of the width holds the tokens
            padded = np.ceil(_next(sizes, tokens - width + 1.0) / width) * width
    return np.where(np.isfinite(padded), np.maximum(padded, tokens), tokens)


def _next(sizes: FloatArray, wanted: FloatArray) -> FloatArray:
    """The least size that holds what is wanted; infinity where none does."""
    return np.append(sizes, np.inf)[np.searchsorted(sizes, wanted - 1e-9)]


def is_captured(engine: Engine, batch: Size, query_tokens: Size) -> BoolArray:
    """Whether a graph of that size was captured."""
    if not engine.graph_sizes or engine.graph_holds_asked:
        return np.asarray(True)
    requests = np.asarray(batch, dtype=np.float64)
    size = requests if engine.graph_unit == "requests" else requests * np.asarray(query_tokens)
    return np.asarray(size <= engine.graph_sizes[-1])
