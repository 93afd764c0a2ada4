"""What a serving engine adds to the kernels of a step (docs/method-engines.md).

    (N1)  host     = max(0, a + b' h - hidden)            every step of b requests, b' = min(b, 256)
    (N2)  drafting = e + b' h_s (+ tree)                  a step that drafts by forward passes
                   = b n                                  a step that looks its drafts up in the text
          pass     = |kernels, u|_3                       one of the drafter's passes
    (N16) pieces   = plan + layers piece                  a pass whose attention no whole graph holds
    (N3)  rows     = tokens filled up to the next captured size
    (N4)  choice   = sampling_us + r V sampling_bytes / B a token for each of r rows of V logits

The terms are an engine's (`specs/engine.py`), B is the bandwidth. Times are microseconds.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from msgspec.structs import replace

from medusa_sim.arrays import BoolArray, FloatArray
from medusa_sim.latency.waves import norm_max
from medusa_sim.operators.operator import Size
from medusa_sim.specs.engine import Engine, Term
from medusa_sim.specs.gpu import Gpu
from medusa_sim.units import US_PER_S


class Added(NamedTuple):
    """Microseconds that an engine adds, and the half-width of their 80 % band."""

    time_us: FloatArray
    half_us: FloatArray

    def plus(self, other: Added) -> Added:
        """Both, their errors independent."""
        return Added(self.time_us + other.time_us, np.hypot(self.half_us, other.half_us))


def host_us(engine: Engine, batch: Size) -> Added:
    """(N1): the work of the host in a step of `batch` requests that hides behind nothing.

    Each request is sent one token or more in a step; what that takes (host_us_per_token) is added by
    `step/server.py`, where tokens are known.
    """
    requests = _measured_requests(batch)
    terms = (
        (engine.host_us_per_step, 1.0),
        (engine.host_us_per_request, requests),
        (engine.hidden_us_per_step, -1.0),
    )
    added = _sum(terms)
    return Added(np.maximum(added.time_us, 0.0), added.half_us)


def drafting_us(engine: Engine, drafter: str, passes: int, batch: Size, width: int = 1) -> Added:
    """(N2): what drafting adds beside its passes. passes: forward passes of the drafter, 0 for a look-up.

    width: nodes that each pass adds to a node; above 1 the drafts are a tree.
    """
    if passes == 0 and drafter in LOOKUPS:
        return _sum(((engine.lookup_us_per_request, np.asarray(batch, dtype=np.float64)),))
    requests = _measured_requests(batch)
    is_tree = float(width > 1)
    return _sum(
        (
            (engine.draft_us_per_step, 1.0),
            (engine.tree_us_per_step, is_tree),
            (engine.draft_us_per_request, requests),
        )
    )


def pass_us(engine: Engine, layers: int, kernels_us: FloatArray) -> Added:
    """(N2): what a drafter's pass of so many layers takes longer than its kernels, whose host works ahead."""
    by_layer = replace(engine.draft_us_per_layer, value=layers * engine.draft_us_per_layer.value)
    host = max(engine.draft_us_per_pass, by_layer, key=lambda term: term.value)
    whole = norm_max(kernels_us, np.asarray(host.value), HOST_OVERLAP)
    share = (host.value / np.maximum(whole, 1e-9)) ** (HOST_OVERLAP - 1.0)
    return Added(np.asarray(whole - kernels_us), np.asarray(share * host.half_width))


def pieces_us(engine: Engine, layers: int, query_tokens: Size) -> Added:
    """(N16): the plan of a pass whose attention no whole graph holds, and with several queries its pieces."""
    pieces = np.where(np.asarray(query_tokens) > 1, float(layers), 0.0)
    return _sum(((engine.plan_us_per_pass, 1.0), (engine.pieces_us_per_layer, pieces)))


def prompt_pass_us(device_us: FloatArray, launching_us: FloatArray | float) -> FloatArray:
    """(N8): a pass of prompts whose kernels the host launches one by one, ahead of the device."""
    return norm_max(device_us, np.asarray(launching_us), HOST_OVERLAP)


HOST_OVERLAP = 3.0
"""Exponent of the smooth maximum of device and host: 1 adds, infinity overlaps perfectly.

From the plain steps of the Medusa paper (arXiv 2401.10774): Table 1 alone asks for 2.7, Table 4 for 4.8
(`medusa-sim reproduce table1-rates`, docs/method.md, host and device).
"""
MEASURED_REQUESTS = 256.0
"""Up to which what an engine charges per request was measured; more are charged as much as these."""


def _measured_requests(batch: Size) -> FloatArray:
    return np.minimum(np.asarray(batch, dtype=np.float64), MEASURED_REQUESTS)


LOOKUPS = ("ngram", "suffix")
"""Drafters that look drafts up in the text and run no network."""


def _sum(terms: tuple[tuple[Term, FloatArray | float], ...]) -> Added:
    """Sum of terms times what they are charged for; their errors are taken as independent."""
    time_us = sum((np.asarray(term.value * times) for term, times in terms), np.zeros(()))
    squares = sum((np.asarray((term.half_width * times) ** 2) for term, times in terms), np.zeros(()))
    return Added(time_us, np.sqrt(squares))


def padded_tokens(engine: Engine, batch: Size, query_tokens: Size) -> FloatArray:
    """(N3): rows of the linear layers of a step; beyond the largest captured size the tokens themselves."""
    requests, width = np.asarray(batch, dtype=np.float64), np.asarray(query_tokens, dtype=np.float64)
    tokens = requests * width
    if not engine.graph_sizes:
        return tokens
    sizes = np.asarray(engine.graph_sizes, dtype=np.float64)
    match engine.graph_unit:
        case "requests":
            found = _next(sizes, requests) * width
        case "tokens":
            found = _next(sizes, tokens)
        case "multiples":
            # the least size whose next multiple of the width holds the tokens
            found = np.ceil(_next(sizes, tokens - width + 1.0) / width) * width
    return np.where(np.isfinite(found), np.maximum(found, tokens), tokens)


def _next(sizes: FloatArray, wanted: FloatArray) -> FloatArray:
    """The least size that holds what is wanted; infinity where none does."""
    return np.append(sizes, np.inf)[np.searchsorted(sizes, wanted - 1e-9)]


def is_captured(engine: Engine, batch: Size, query_tokens: Size) -> BoolArray:
    """Whether a graph of that size was captured."""
    if not engine.graph_sizes:
        return np.asarray(True)
    requests = np.asarray(batch, dtype=np.float64)
    size = requests if engine.graph_unit == "requests" else requests * np.asarray(query_tokens)
    return np.asarray(size <= engine.graph_sizes[-1])


def choice_us(engine: Engine, gpu: Gpu, rows: Size, vocab: int) -> FloatArray:
    """(N4): logits to fp32 and the largest of each row."""
    read = np.asarray(rows, dtype=np.float64) * vocab * engine.sampling_bytes_per_logit.value
    return engine.sampling_us.value + read / gpu.bandwidth_bytes_per_s * US_PER_S


def filter_us(engine: Engine, gpu: Gpu, rows: Size, vocab: int, *, top_k: bool) -> FloatArray:
    """Top-p (and top-k) of the requests of a server over `rows` rows of logits (N6), microseconds.

    vocab: 0 where the model's generation_config asks for neither.
    """
    asked = np.asarray(rows, dtype=np.float64)
    full = engine.filter_full_rows.value
    counted = np.minimum(asked, full) + engine.filter_share_beyond.value * np.maximum(asked - full, 0.0)
    if not vocab:
        return np.zeros(asked.shape)
    logits = vocab * (1.0 + engine.filter_top_k_share.value * top_k) * counted
    each_us = engine.filter_us_per_million.value / 1e6
    each_us += engine.filter_bytes_per_logit.value / gpu.bandwidth_bytes_per_s * US_PER_S
    return np.asarray(engine.filter_us.value + each_us * logits)
