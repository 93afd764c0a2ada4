"""Captured graphs of an engine: the sizes that a step is filled up to, and whether one holds it (N3)."""

from __future__ import annotations

import numpy as np

from medusa_sim.arrays import BoolArray, FloatArray
from medusa_sim.engines.engine import Engine
from medusa_sim.engines.runtime import Runtime
from medusa_sim.operators.operator import Size


def step_rows(runtime: Runtime, requests: Size, tokens: Size, graph_tokens: Size) -> FloatArray:
    """Rows of the linear layers of a step of so many requests, as an engine pads them: whole numbers (N3).

    tokens: verified of each, on average. graph_tokens: of each that graphs are captured for.
    """
    rows = _floats(requests) * _floats(tokens)
    if runtime.engine is not None:
        rows = padded_tokens(runtime.engine, requests, tokens, graph_tokens)
    return np.maximum(np.rint(rows), 1.0)


def padded_tokens(
    engine: Engine, batch: Size, query_tokens: Size, graph_tokens: Size | None = None
) -> FloatArray:
    """(N3): rows of the linear layers of a step; the tokens themselves where no graph holds them.

    graph_tokens: of each request that graphs are captured for, where some requests have fewer; None: all have
    query_tokens. One is that of a server without a drafter.
    """
    filled = _filled_tokens(engine, batch, query_tokens, graph_tokens)
    tokens = _floats(batch) * _floats(query_tokens)
    return np.where(np.isfinite(filled), np.maximum(filled, tokens), tokens)


def is_captured(
    engine: Engine, batch: Size, query_tokens: Size, graph_tokens: Size | None = None
) -> BoolArray:
    """Whether a graph holds a step: where it is filled up to a captured size.

    Always for an engine whose graphs are not listed, or that captures the batch that it is set up for.
    """
    if not engine.graph_sizes or engine.graph_holds_asked:
        return np.asarray(True)
    return np.isfinite(_filled_tokens(engine, batch, query_tokens, graph_tokens))


def most_captured_tokens(engine: Engine, query_tokens: float) -> float:
    """Tokens of the largest graph for requests of so many each; infinite where none is listed."""
    if not engine.graph_sizes:
        return np.inf
    sizes = np.asarray(engine.plain_graph_sizes + engine.graph_sizes, dtype=np.float64)
    requests = sizes if engine.graph_unit == "requests" else sizes / query_tokens
    filled = _filled_tokens(engine, requests, query_tokens)
    return float(filled[np.isfinite(filled)].max(initial=0.0))


def _filled_tokens(
    engine: Engine, batch: Size, query_tokens: Size, graph_tokens: Size | None = None
) -> FloatArray:
    """Tokens of the least graph that holds a step, by the list that applies; infinite where none does."""
    requests, per_request = _floats(batch), _floats(query_tokens)
    width = per_request if graph_tokens is None else _floats(graph_tokens)
    filled = _filled_to(engine, engine.graph_sizes, requests, per_request, width)
    if not engine.plain_graph_sizes:
        return filled
    return np.where(
        width == 1.0, _filled_to(engine, engine.plain_graph_sizes, requests, per_request, width), filled
    )


def _filled_to(
    engine: Engine,
    captured: tuple[int, ...],
    requests: FloatArray,
    per_request: FloatArray,
    width: FloatArray,
) -> FloatArray:
    """Tokens of the least of these sizes that holds a step; infinite where none does.

    per_request: tokens of one, on average; width: of one that drafts. Sizes of 496 and 512 tokens in
    `multiples` of 3 are one of 498: 513 is more than the largest, so that vLLM leaves it out. A step of 166
    requests is in a graph, one of 167 is not. vLLM rounds its list once, by the most drafts of a request: a
    step in which only some find drafts is filled up to one of the same sizes.
    """
    sizes, tokens = np.asarray(captured, dtype=np.float64), requests * per_request
    match engine.graph_unit:
        case "requests":
            return _next_size(sizes, requests) * per_request
        case "tokens":
            return _next_size(sizes, tokens)
        case "multiples":
            # the least size whose next multiple of the width holds the tokens
            least = (np.ceil(tokens / width - 1e-9) - 1.0) * width + 1.0
            filled = np.ceil(_next_size(sizes, least) / width) * width
            return np.where(filled > sizes.max(initial=0.0), np.inf, filled)


def _next_size(sizes: FloatArray, wanted: FloatArray) -> FloatArray:
    """The least size that holds what is wanted; infinity where none does."""
    return np.append(sizes, np.inf)[np.searchsorted(sizes, wanted - 1e-9)]


def _floats(sizes: Size) -> FloatArray:
    return np.asarray(sizes, dtype=np.float64)
