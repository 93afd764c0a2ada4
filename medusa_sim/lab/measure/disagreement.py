"""How far passes over a grid of steps disagree: what a repetition would differ by."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np

from medusa_sim.lab.measure.cells import StepRow
from medusa_sim.lab.measure.spread import lower_quartile


def halves_differ(passes: Sequence[float], estimate: Callable[[Sequence[float]], float]) -> float:
    """How far an estimate from every second pass lies from one of the others, as a fraction of their mean.

    What a repetition of half the length would differ by; NaN for one pass, which tells nothing.
    """
    if len(passes) == 1:
        return math.nan
    first, second = estimate(passes[::2]), estimate(passes[1::2])
    return 2.0 * abs(first - second) / (first + second)


def gains_differ(plain_us: Sequence[float], step_us: Sequence[float]) -> float:
    """How far halves of the passes disagree about the ratio of two steps, which have a time a pass each."""

    def gain(chosen: Sequence[float]) -> float:
        plain, step = (lower_quartile([times[int(i)] for i in chosen]) for times in (plain_us, step_us))
        return plain / step

    return halves_differ(range(len(step_us)), gain)


def speedups_differ(rows: Sequence[StepRow]) -> float:
    """How far the passes of one model disagree, on average over the speedups of its trees."""
    passes: dict[tuple[int, int, int], list[float]] = {}
    for row in rows:
        passes.setdefault((row.batch, row.seq_len, row.candidates), []).append(row.time_us)
    trees = {key: times for key, times in passes.items() if key[2] > 1}
    return float(np.mean([gains_differ(passes[(*key[:2], 1)], times) for key, times in trees.items()]))
