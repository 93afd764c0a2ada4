"""Times a kernel on a device: warm-up, rotating operands, samples long enough for the clock."""

from __future__ import annotations

import contextlib
import ctypes
import itertools
import time
from collections import deque
from collections.abc import Callable
from typing import Protocol

import torch

from medusa_sim.measure.graphs import captured
from medusa_sim.measure.kernels import MOST_COPIES, Call, Pool, calls
from medusa_sim.measure.shapes import Case
from medusa_sim.measure.spread import Timing, timing_of
from medusa_sim.units import US_PER_MS, US_PER_S

_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3
"""Options of mallopt(3)."""
_KEPT_BYTES = 1 << 30
_WARMUP_ROUNDS = 2
_WARMUP_CALLS = 3
_WARMUP_ROTATIONS, _WARMUP_S = 6, 0.06
_SETTLING_ROTATIONS, _SETTLING_S = 24, 0.25
"""Of attention whose K and V can stay in the last-level cache: it keeps them only after some 15 rotations."""
_SAMPLE_US = 500.0
"""A sample lasts at least this long: many calls of a short kernel, so that the clock does not count."""
_MOST_CALLS = 256
_FEWEST_REPEATS, _MOST_REPEATS = 7, 50
_CASE_S = 0.15
"""Seconds of samples of one case, where its fewest repeats do not take longer."""


class Bench(Protocol):
    """Anything that can time a case: a device, or a fake one in tests."""

    def timing(self, case: Case) -> Timing:
        """Times of one launch of the case."""


class CpuBench:
    """Wall time on the CPU; a sample is a run of calls on rotating operands."""

    def __init__(self, pool: Pool, clock: Callable[[], float] = time.perf_counter) -> None:
        keep_memory()
        self.pool = pool
        self.clock = clock

    @torch.inference_mode()
    def timing(self, case: Case) -> Timing:
        """Times of one launch of the case."""
        operands = calls(case, self.pool)
        rotation = itertools.cycle(operands)
        results: deque[object] = deque(maxlen=results_kept(case, next(rotation)()))
        settles = case.operator.FAMILY == "attention" and case.between_bytes < self.pool.cache_bytes
        rotations, seconds = (_SETTLING_ROTATIONS, _SETTLING_S) if settles else (_WARMUP_ROTATIONS, _WARMUP_S)
        self._warm_up(rotation, results, rotations * len(operands), seconds)
        once_us = self._sample_us(rotation, 1, results)
        block = min(max(1, round(_SAMPLE_US / max(once_us, 0.1))), _MOST_CALLS)
        repeats = _repeats(once_us * block)
        return timing_of([self._sample_us(rotation, block, results) for _ in range(repeats)])

    def _warm_up(
        self, rotation: itertools.cycle[Call], results: deque[object], most: int, seconds: float
    ) -> None:
        """A few calls, and more where that is soon done: caches take rounds to hold what they will hold."""
        began = self.clock()
        most = max(most, _WARMUP_CALLS, results.maxlen or 0)
        for number, call in enumerate(itertools.islice(rotation, most), 1):
            results.append(call())
            if number >= _WARMUP_CALLS and self.clock() - began > seconds:
                return

    def _sample_us(self, rotation: itertools.cycle[Call], block: int, results: deque[object]) -> float:
        started = self.clock()
        for call in itertools.islice(rotation, block):
            results.append(call())
        return US_PER_S * (self.clock() - started) / block


def keep_memory() -> None:
    """Let glibc keep what is freed, as a decoder's process does after its first steps.

    Otherwise large results are mapped anew by every call, and their page faults are most of its time.
    """
    with contextlib.suppress(OSError, AttributeError):  # another C library
        libc = ctypes.CDLL("libc.so.6")
        for option in (_M_MMAP_THRESHOLD, _M_TRIM_THRESHOLD):
            libc.mallopt(option, _KEPT_BYTES)


def results_kept(case: Case, result: object) -> int:
    """How many results to hold back, so that a new one is written where a step would write it.

    An allocator hands out what was freed last: with none held, every result would land in the same lines
    of the nearest cache, while a layer writes other things between.
    """
    tensors = result if isinstance(result, tuple) else (result,)
    size = sum(each.nbytes for each in tensors if isinstance(each, torch.Tensor))
    return min(max(1, round(case.activation_bytes / max(size, 1))), MOST_COPIES)


class CudaBench:
    """Device time on CUDA: one captured graph that goes once or more through the rotating operands.

    Kernels follow each other as in a step that is replayed, so that a row holds no launch from the host.
    """

    def __init__(self, pool: Pool) -> None:
        self.pool = pool

    @torch.inference_mode()
    def timing(self, case: Case) -> Timing:
        """Times of one launch of the case."""
        rotation = calls(case, self.pool)
        replay = captured(rotation)
        once_us = _replay_us(replay)
        rounds = min(max(1, round(_SAMPLE_US / max(once_us, 0.1))), max(1, _MOST_CALLS // len(rotation)))
        if rounds > 1:
            replay = captured(rotation * rounds)
        for _ in range(_WARMUP_ROUNDS):
            replay()
        each = len(rotation) * rounds
        repeats = _repeats(once_us * rounds)
        return timing_of([_replay_us(replay) / each for _ in range(repeats)])


def _replay_us(replay: Callable[[], None]) -> float:
    started = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]  # torch leaves it untyped
    ended = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
    started.record()
    replay()
    ended.record()
    torch.cuda.synchronize()
    return US_PER_MS * float(started.elapsed_time(ended))


def _repeats(sample_us: float) -> int:
    """As many samples as fit `_CASE_S`, within limits."""
    return min(max(_FEWEST_REPEATS, int(US_PER_S * _CASE_S / max(sample_us, 1.0))), _MOST_REPEATS)


def bench_of(pool: Pool) -> Bench:
    """The bench of the pool's device."""
    return CudaBench(pool) if pool.device.type == "cuda" else CpuBench(pool)
