"""Seconds inside the engine's environment: its clock, a reference piece of work beside every measurement."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable

import torch


def clock() -> float:
    """Seconds that steps and operators are timed by.

    With one thread the engine never waits, so that this process's own CPU time is the time of a step, and
    what other processes take of the core does not count; with more threads it is the wall clock.
    """
    return time.process_time() if torch.get_num_threads() == 1 else time.perf_counter()


class Reference:
    """A fixed piece of work beside every measurement: how fast the core runs at the moment.

    A virtual machine's core slows by half for minutes when its neighbours work. Sixteen bf16 layers that
    together read 32 MiB, more than its share of a cache, at eight rows: a step in small. The
    record divides it out.
    """

    LAYERS, WIDTH, ROWS = 16, 1024, 8

    def __init__(self) -> None:
        draw = torch.Generator().manual_seed(0)
        shape = (self.WIDTH, self.WIDTH)
        self.weights = [
            torch.randn(shape, generator=draw).to(torch.bfloat16) / 32 for _ in range(self.LAYERS)
        ]
        self.rows = torch.randn(self.ROWS, self.WIDTH, generator=draw).to(torch.bfloat16)
        for _ in range(3):
            self.seconds()

    @torch.inference_mode()
    def seconds(self) -> float:
        """One run of it, by `clock`."""
        started = clock()
        x = self.rows
        for weight in self.weights:
            x = torch.nn.functional.linear(x, weight)
        return clock() - started


def timed(call: Callable[[], object]) -> float:
    """Seconds of a call by `clock`."""
    started = clock()
    call()
    return clock() - started


def quantiles_us(samples_s: list[float]) -> dict[str, float]:
    """Median, mean, 10th and 90th percentile and the least, in microseconds."""
    deciles = (
        statistics.quantiles(samples_s, n=10, method="inclusive") if len(samples_s) > 1 else samples_s * 9
    )
    return {
        "time_us": 1e6 * statistics.median(samples_s),
        "mean_us": 1e6 * statistics.fmean(samples_s),
        "p10_us": 1e6 * deciles[0],
        "p90_us": 1e6 * deciles[-1],
        "least_us": 1e6 * min(samples_s),
        "steps": len(samples_s),
    }
