"""Times a kernel on a device: warm-up, rotating operands, samples long enough for the clock.

On a GPU: its work as one CUDA graph, and device time between two events.
"""

from __future__ import annotations

import contextlib
import ctypes
import itertools
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import islice
from typing import Protocol

import torch

from medusa_sim.lab.decoder.cuda_graph import capture
from medusa_sim.lab.measure.kernels import MOST_COPIES, Call, Pool, calls
from medusa_sim.lab.measure.shapes import TimedShape
from medusa_sim.lab.measure.spread import Timing, timing_of
from medusa_sim.units import US_PER_MS, US_PER_S

_WARM_UP_CALLS = 3
"""Before a capture, and on a CPU at the fewest."""
_SPIN_CYCLES, _SPIN_CYCLES_A_CALL = 400_000, 4_000
"""Cycles of a kernel that only waits, some 200 us and 2 us more for every captured call (a few kernels): the
host queues events and graph after it meanwhile, so that no launch lies between the events."""


def capture_calls(
    work: Sequence[Callable[[], object]], device: torch.device, *, results: int = 0
) -> Callable[[], None]:
    """All calls as one CUDA graph, to be replayed.

    results: so many are held while the next calls run, so that each is written where a step would write it
    and not over the one before.
    """
    held: deque[object] = deque(maxlen=results)

    def once() -> None:
        for call in work:
            held.append(call())

    def few() -> None:
        for call in islice(work, _WARM_UP_CALLS):
            call()

    graph, _ = capture(once, device, warm_up=few)
    return partial(_replay, graph, tuple(work))


def _replay(graph: torch.cuda.CUDAGraph, work: Sequence[object]) -> None:
    """`work` is held, since it owns the operands that the graph reads."""
    del work
    graph.replay()


def device_us(work: Callable[[], object], device: torch.device, launched_calls: int = 1) -> float:
    """Microseconds of a CUDA device between two events around the work; launched_calls: captured in it."""
    with torch.cuda.device(device):
        started = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]  # torch leaves it untyped
        ended = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
        torch.cuda._sleep(_SPIN_CYCLES + launched_calls * _SPIN_CYCLES_A_CALL)  # type: ignore[no-untyped-call]
        started.record()
        work()
        ended.record()
        ended.synchronize()
    return US_PER_MS * float(started.elapsed_time(ended))


def synchronise(device: torch.device) -> None:
    """Wait until a CUDA device has done what it was given."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3
"""Options of mallopt(3)."""
_KEPT_BYTES = 1 << 30
_WARM_UP_ROUNDS = 2
_USUAL_ROTATIONS, _USUAL_S = 6, 0.06
_SETTLING_ROTATIONS, _SETTLING_S = 24, 0.25
"""Warm-up of attention whose K and V fit the last-level cache, which keeps them after some 15 rotations."""
_SAMPLE_US = 500.0
"""A sample lasts at least this long: many calls of a short kernel, so that the clock does not count."""
_MOST_CALLS = 256
_FEWEST_REPEATS, _MOST_REPEATS = 7, 50
_CASE_S = 0.15
"""Seconds of samples of one shape, where its fewest repeats do not take longer."""


class Bench(Protocol):
    """Anything that can time a shape: a device, or a fake one in tests."""

    def timing(self, shape: TimedShape) -> Timing:
        """Times of one launch of the shape."""


@dataclass(frozen=True, slots=True)
class Sample:
    """A run of so many calls on rotating operands."""

    rotation: itertools.cycle[Call]
    results: deque[object]
    calls: int
    clock: Callable[[], float]

    @torch.inference_mode()
    def __call__(self) -> float:
        """Microseconds of one launch."""
        started = self.clock()
        for call in itertools.islice(self.rotation, self.calls):
            self.results.append(call())
        return US_PER_S * (self.clock() - started) / self.calls


class CpuBench:
    """Time on the CPU; a sample is a run of calls on rotating operands.

    patience: share of the usual warm-up that a shape gets.
    """

    def __init__(
        self, pool: Pool, clock: Callable[[], float] = time.perf_counter, *, patience: float = 1.0
    ) -> None:
        keep_memory()
        self.pool = pool
        self.clock = clock
        self.patience = patience

    def timing(self, shape: TimedShape) -> Timing:
        """Times of one launch of the shape."""
        sample = self.ready(shape)
        first_us = sample()
        return timing_of([sample() for _ in range(_repeats(first_us * sample.calls))])

    @torch.inference_mode()
    def ready(self, shape: TimedShape) -> Sample:
        """Warms the shape up; what it returns times one launch, in us, each time it is called."""
        operands = calls(shape, self.pool)
        rotation = itertools.cycle(operands)
        results: deque[object] = deque(maxlen=results_kept(shape, next(rotation)()))
        settles = shape.operator.FAMILY == "attention" and shape.between_bytes < self.pool.cache_bytes
        rotations, seconds = (_SETTLING_ROTATIONS, _SETTLING_S) if settles else (_USUAL_ROTATIONS, _USUAL_S)
        self._warm_up(rotation, results, rotations * len(operands), self.patience * seconds)
        once_us = Sample(rotation, results, 1, self.clock)()
        block = min(max(1, round(_SAMPLE_US / max(once_us, 0.1))), _MOST_CALLS)
        return Sample(rotation, results, block, self.clock)

    def _warm_up(
        self, rotation: itertools.cycle[Call], results: deque[object], most: int, seconds: float
    ) -> None:
        """A few calls, and more where that is soon done: caches take rounds to hold what they will hold."""
        began = self.clock()
        most = max(most, _WARM_UP_CALLS, results.maxlen or 0)
        for number, call in enumerate(itertools.islice(rotation, most), 1):
            results.append(call())
            if number >= _WARM_UP_CALLS and self.clock() - began > seconds:
                return


def keep_memory() -> None:
    """Let glibc keep what is freed, as a decoder's process does after its first steps.

    Otherwise large results are mapped again by every call, and their page faults are most of its time.
    """
    with contextlib.suppress(OSError, AttributeError):  # another C library
        libc = ctypes.CDLL("libc.so.6")
        for option in (_M_MMAP_THRESHOLD, _M_TRIM_THRESHOLD):
            libc.mallopt(option, _KEPT_BYTES)


def results_kept(shape: TimedShape, result: object) -> int:
    """How many results to hold back, so that a new one is written where a step would write it.

    An allocator hands out what was freed last: with none held, every result would land in the same lines
    of the nearest cache, while a layer writes other things between.
    """
    tensors = result if isinstance(result, tuple) else (result,)
    size = sum(each.nbytes for each in tensors if isinstance(each, torch.Tensor))
    return min(max(1, round(shape.activation_bytes / max(size, 1))), MOST_COPIES)


class CudaBench:
    """Device time on CUDA: one captured graph that goes once or more through the rotating operands.

    Kernels follow each other as in a step that is replayed, so that a row holds no launch from the host.
    """

    def __init__(self, pool: Pool) -> None:
        self.pool = pool

    @torch.inference_mode()
    def timing(self, shape: TimedShape) -> Timing:
        """Times of one launch of the shape."""
        device, rotation = self.pool.device, calls(shape, self.pool)
        with torch.cuda.device(device):
            torch.cuda.empty_cache()  # what the last shape's graphs held, which no capture could take
            results = results_kept(shape, rotation[0]())
        replay = capture_calls(rotation, device, results=results)
        replay()  # the first one uploads the graph
        once_us = device_us(replay, device, len(rotation))
        rounds = min(max(1, round(_SAMPLE_US / max(once_us, 0.1))), max(1, _MOST_CALLS // len(rotation)))
        if rounds > 1:
            replay = capture_calls(rotation * rounds, device, results=results)
        for _ in range(_WARM_UP_ROUNDS):
            replay()
        each = len(rotation) * rounds
        repeats = _repeats(once_us * rounds)
        return timing_of([device_us(replay, device, each) / each for _ in range(repeats)])


def _repeats(sample_us: float) -> int:
    """As many samples as fit `_CASE_S`, within limits."""
    return min(max(_FEWEST_REPEATS, int(US_PER_S * _CASE_S / max(sample_us, 1.0))), _MOST_REPEATS)


def bench_of(pool: Pool) -> Bench:
    """The bench of the pool's device."""
    return CudaBench(pool) if pool.device.type == "cuda" else CpuBench(pool)
