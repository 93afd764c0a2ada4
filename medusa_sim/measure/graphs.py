"""Waiting for a GPU, its work as one CUDA graph, and device time between two events."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from itertools import islice
from typing import Any

import torch

from medusa_sim.decoder.capture import capture
from medusa_sim.units import US_PER_MS

_WARM_UP_CALLS = 3
_SPIN_CYCLES = 400_000
"""Some 200 us of a kernel that only waits: the host queues events and graph behind it meanwhile, so that no
launch lies between the events."""


def capture_calls(
    work: Sequence[Callable[[], object]], device: torch.device, *, results: int = 0, pool: Any = None
) -> Callable[[], None]:
    """All calls as one CUDA graph, to be replayed.

    results: so many are held while the next calls run, so that each is written where a step would write it
    and not over the one before. pool: as `capture` takes it.
    """
    held: deque[object] = deque(maxlen=results)

    def once() -> None:
        for call in work:
            held.append(call())

    def few() -> None:
        for call in islice(work, _WARM_UP_CALLS):
            call()

    graph, _ = capture(once, device, warm_up=few, pool=pool)
    return partial(_replay, graph, tuple(work))


def _replay(graph: torch.cuda.CUDAGraph, work: Sequence[object]) -> None:
    """`work` is held, since it owns the operands that the graph reads."""
    del work
    graph.replay()


def device_us(work: Callable[[], object], device: torch.device) -> float:
    """Microseconds of a CUDA device between two events around the work."""
    with torch.cuda.device(device):
        started = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]  # torch leaves it untyped
        ended = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
        torch.cuda._sleep(_SPIN_CYCLES)  # type: ignore[no-untyped-call]
        started.record()
        work()
        ended.record()
        ended.synchronize()
    return US_PER_MS * float(started.elapsed_time(ended))


def synchronise(device: torch.device) -> None:
    """Wait until a CUDA device has done what it was given."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
