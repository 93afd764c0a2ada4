"""What a serving engine adds to the kernels of a step (docs/method.md, engines).

    (N1)  host     = max(0, a + b h - hidden)             every step of b requests
    (N2)  drafting = e + K u + b h_s                      a step that drafts by K forward passes
                   = b n                                  a step that looks its drafts up in the text
    (N3)  rows     = tokens filled up to the next captured size
    (N4)  choice   = sampling_us + r V sampling_bytes / B a token for each of r rows of V logits

The terms are an engine's (`specs/engine.py`), B is the bandwidth. Times are microseconds.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from medusa_sim.arrays import BoolArray, FloatArray
from medusa_sim.operators.operator import Size
from medusa_sim.specs.engine import Engine, Term
from medusa_sim.specs.gpu import Gpu
from medusa_sim.units import US_PER_S


class Added(NamedTuple):
    """Microseconds that an engine adds, and the half-width of their 80 % band."""

    time_us: FloatArray
    half_us: FloatArray


def host_us(engine: Engine, batch: Size) -> Added:
    """(N1): the work of the host in a step of `batch` requests that hides behind nothing.

    Each request is sent one token or more in a step; what that takes (host_us_per_token) is added by
    `step/server.py`, where tokens are known.
    """
    requests = np.asarray(batch, dtype=np.float64)
    terms = (
        (engine.host_us_per_step, 1.0),
        (engine.host_us_per_request, requests),
        (engine.hidden_us_per_step, -1.0),
    )
    added = _sum(terms)
    return Added(np.maximum(added.time_us, 0.0), added.half_us)


def drafting_us(engine: Engine, drafter: str, passes: int, batch: Size) -> Added:
    """(N2): what drafting adds beside its kernels. passes: forward passes of the drafter, 0 for a look-up."""
    requests = np.asarray(batch, dtype=np.float64)
    if passes == 0 and drafter in LOOKUPS:
        return _sum(((engine.lookup_us_per_request, requests),))
    per_pass = engine.draft_us_per_eagle3_pass if drafter in EAGLE3 else engine.draft_us_per_pass
    return _sum(
        (
            (engine.draft_us_per_step, 1.0),
            (per_pass, float(passes)),
            (engine.draft_us_per_request, requests),
        )
    )


EAGLE3 = ("eagle3", "p-eagle")
"""Drafters of the method `eagle3` of engines."""
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
