"""Waiting for a device, and its work as one CUDA graph."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from itertools import islice

import torch

_WARMUP = 3


def captured(work: Sequence[Callable[[], object]]) -> Callable[[], None]:
    """All calls as one CUDA graph, to be replayed."""
    stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]  # torch leaves it untyped
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for call in islice(work, _WARMUP):  # libraries set themselves up outside the capture
            call()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for call in work:
            call()
    return partial(_replay, graph, tuple(work))


def _replay(graph: torch.cuda.CUDAGraph, work: Sequence[object]) -> None:
    """`work` is held, since it owns the operands that the graph reads."""
    del work
    graph.replay()


def synchronise(device: torch.device) -> None:
    """Wait until a CUDA device has done what it was given."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
