"""What an engine's host adds to the kernels of a step, microseconds with their 80 % bands.

    (N1)  host     = max(0, a + b h + layers l - hidden)  every step of b requests
    (N2)  drafting = e + b h_s (+ tree)                   a step that drafts by forward passes
                   = b lookup                            a step that looks its drafts up in the text
          pass     = |kernels, u|_3                       one of the drafter's passes
    (N3)  pass     = |kernels, layers u_e|_3              a step beyond the largest graph, layer by layer
    (N16) pieces   = plan + layers piece                  a pass whose attention no whole graph holds

Each function is one of these; `Engine` says which term each letter is. Beyond the requests that a term was
measured with (`engines/ranges.py`) it goes on as before, and its half-width grows by what the requests beyond
add: down to where they cost nothing more.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from msgspec import structs

from medusa_sim.arrays import BoolArray, FloatArray
from medusa_sim.engines.engine import Engine
from medusa_sim.engines.term import Term
from medusa_sim.operators.operator import Size

HOST_OVERLAP = 3.0
"""Exponent of the smooth maximum of device and host: 1 adds, infinity overlaps perfectly.

From the plain steps of the Medusa paper (arXiv 2401.10774): Table 1 alone asks for 2.7, Table 4 for 4.1
(`tests/test_numbers.py` fits both; docs/method.md, host and device).
"""


def overlapped_us(device_us: FloatArray | float, host_us: FloatArray | float) -> FloatArray:
    """Microseconds of kernels that a host launches ahead of the device: |device, host|_3 (N8), HOST_OVERLAP.

    As long as the longer of both, and at most 26 % above it, where both take as long, since each then waits
    for the other now and again. Of arrays or of numbers, as `load` has them.
    """
    whole_us: FloatArray = (device_us**HOST_OVERLAP + host_us**HOST_OVERLAP) ** (1.0 / HOST_OVERLAP)
    return whole_us


def host_share(host_us: FloatArray | float, whole_us: FloatArray) -> FloatArray:
    """Derivative of `overlapped_us` with respect to the host's time, from 0 to 1."""
    share: FloatArray = (host_us / np.maximum(whole_us, 1e-9)) ** (HOST_OVERLAP - 1.0)
    return share


class Added(NamedTuple):
    """Microseconds that an engine adds, and the half-width of their 80 % band."""

    time_us: FloatArray
    half_us: FloatArray

    def plus(self, other: Added) -> Added:
        """Both, their errors independent."""
        return Added(self.time_us + other.time_us, np.hypot(self.half_us, other.half_us))


NOTHING_ADDED = Added(np.zeros(()), np.zeros(()))


class SplitHost(NamedTuple):
    """The host's work in a step, by what the device does meanwhile."""

    hidden_us: float
    """While kernels run: host and kernels overlap (`overlapped_us`)."""
    exposed: Added
    """While the device waits: it adds to the step."""


def split_host(engine: Engine, batch: Size, layers: int = 0) -> SplitHost:
    """(N1): the host's work in a step of `batch` requests, what kernels hide and what they do not.

    layers: of the model, where an engine is charged for each.

    Each request is sent one token or more in a step; what that takes (host_us_per_token) is added by
    `step/sampling.py`, where tokens are known.
    """
    added = sum_of_terms(
        (
            (engine.host_us_per_step, 1.0),
            (engine.layer_us, float(layers)),
            (engine.hidden_us_per_step, -1.0),
        ),
        ((engine.host_us_per_request, batch),),
    )
    exposed = Added(np.maximum(added.time_us, 0.0), added.half_us)
    return SplitHost(hidden_us=engine.hidden_us_per_step.value, exposed=exposed)


def drafting_us(engine: Engine, batch: Size, *, looks_up: bool, width: int = 1) -> Added:
    """(N2): what drafting adds to a step of `batch` requests besides the drafter's forward passes.

    looks_up: the drafter finds its drafts in the text and runs no pass. width: nodes that each pass adds to a
    node; above 1 the drafts are a tree.
    """
    if looks_up:
        return sum_of_terms((), ((engine.lookup_us_per_request, batch),))
    return sum_of_terms(
        ((engine.draft_us_per_step, 1.0), (engine.tree_us_per_step, float(width > 1))),
        ((engine.draft_us_per_request, batch),),
    )


def drafting_pass_us(engine: Engine, layers: int, kernels_us: FloatArray) -> Added:
    """(N2): what a drafter's pass of so many layers takes longer than its kernels, whose host works ahead."""
    by_layer = structs.replace(engine.draft_us_per_layer, value=layers * engine.draft_us_per_layer.value)
    host = max(engine.draft_us_per_pass, by_layer, key=lambda term: term.value)
    whole_us = overlapped_us(kernels_us, host.value)
    half_us = host_share(host.value, whole_us) * host.half_width
    return Added(np.asarray(whole_us - kernels_us), np.asarray(half_us))


def pieces_us(engine: Engine, layers: int, query_tokens: Size) -> Added:
    """(N16): the plan of a pass whose attention no whole graph holds, and with several queries its pieces."""
    pieces = np.where(np.asarray(query_tokens) > 1, float(layers), 0.0)
    return sum_of_terms(((engine.plan_us_per_pass, 1.0), (engine.pieces_us_per_layer, pieces)))


def launching_us(engine: Engine, layers: int, captured: BoolArray | bool) -> Added:
    """(N3): the host in a pass, while its kernels run; nothing where a graph holds it (`captured`)."""
    per_layer = engine.eager_us_per_layer
    launched = np.where(captured, 0.0, float(layers))
    return Added(launched * per_layer.value, launched * per_layer.half_width)


def sum_of_terms(
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
        beyond = requests_beyond(term, requests)
        squares = squares + (term.half_width * requests) ** 2 + (term.value * beyond) ** 2
    return Added(time_us, np.sqrt(squares))


def requests_beyond(term: Term, requests: FloatArray) -> FloatArray:
    """Requests beyond those that a term was measured with."""
    measured = None if term.measured is None else term.measured.requests
    return np.zeros(()) if measured is None else np.maximum(requests - measured, 0.0)
