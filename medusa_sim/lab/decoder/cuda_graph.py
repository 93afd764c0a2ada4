"""Work captured as one CUDA graph, to be replayed without the host's launches."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import torch

Result = TypeVar("Result")
_WARM_UP = 3
"""Runs before the capture: libraries choose kernels and take memory in the first ones."""


def capture(
    work: Callable[[], Result],
    device: torch.device,
    *,
    warm_up: Callable[[], object] | None = None,
    pool: Any = None,
) -> tuple[torch.cuda.CUDAGraph, Result]:
    """A graph of `work` and what `work` returned, whose tensors every replay writes again.

    Streams, graphs and events belong to torch's current device, so that `device` is made current meanwhile
    and the capture gets a stream of its own (torch keeps one for all devices otherwise). warm_up: run before
    in place of `work`. pool: of `torch.cuda.graph_pool_handle()`, shared by graphs that never run at once and
    whose results nobody reads after another replay.
    """
    with torch.cuda.device(device):
        stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]  # torch leaves it untyped
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            for _ in range(_WARM_UP):
                (warm_up or work)()
        torch.cuda.current_stream().wait_stream(stream)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=pool, stream=stream):
            result = work()
    return graph, result
