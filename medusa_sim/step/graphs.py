"""Captured graphs of an engine: the sizes that a step is filled up to, and whether one holds it (N3)."""

from __future__ import annotations

import numpy as np

from medusa_sim.arrays import BoolArray, FloatArray
from medusa_sim.operators.operator import Size
from medusa_sim.specs.engine import Engine


def padded_tokens(engine: Engine, batch: Size, query_tokens: Size) -> FloatArray:
    """(N3): rows of the linear layers of a step; beyond the largest captured size the tokens themselves.

    A step of one token a request is that of a server without a drafter.
    """
    requests, width = np.asarray(batch, dtype=np.float64), np.asarray(query_tokens, dtype=np.float64)
    tokens = requests * width
    if not engine.graph_sizes:
        return tokens
    padded = _filled(engine, engine.graph_sizes, requests, width)
    if engine.plain_graph_sizes:
        padded = np.where(width == 1.0, _filled(engine, engine.plain_graph_sizes, requests, width), padded)
    return np.where(np.isfinite(padded), np.maximum(padded, tokens), tokens)


def _filled(engine: Engine, captured: tuple[int, ...], requests: FloatArray, width: FloatArray) -> FloatArray:
    """Tokens of the least captured size that holds a step; infinity where none does."""
    sizes, tokens = np.asarray(captured, dtype=np.float64), requests * width
    match engine.graph_unit:
        case "requests":
            padded = _next_size(sizes, requests) * width
        case "tokens":
            padded = _next_size(sizes, tokens)
        case "multiples":
            # the least size whose next multiple of the width holds the tokens
            padded = np.ceil(_next_size(sizes, tokens - width + 1.0) / width) * width
    return np.asarray(padded)


def _next_size(sizes: FloatArray, wanted: FloatArray) -> FloatArray:
    """The least size that holds what is wanted; infinity where none does."""
    return np.append(sizes, np.inf)[np.searchsorted(sizes, wanted - 1e-9)]


def is_captured(engine: Engine, batch: Size, query_tokens: Size) -> BoolArray:
    """Whether a graph of that size was captured."""
    if not engine.graph_sizes or engine.graph_holds_asked:
        return np.asarray(True)
    requests = np.asarray(batch, dtype=np.float64)
    size = requests if engine.graph_unit == "requests" else requests * np.asarray(query_tokens)
    return np.asarray(size <= engine.graph_sizes[-1])
