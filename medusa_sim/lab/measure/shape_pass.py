"""One pass over shapes within a budget of seconds: noisy ones once more, every row kept."""

from __future__ import annotations

import math
import statistics
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from medusa_sim.lab.measure.bench import Bench
from medusa_sim.lab.measure.record import Recorder
from medusa_sim.lab.measure.shapes import TimedShape
from medusa_sim.lab.measure.spread import SPREAD_LIMIT, Timing
from medusa_sim.latency.measurement import Rates
from medusa_sim.units import US_PER_S

_MEMORY_SHARE = 0.5
"""Operands of one shape may take this share of the memory; the model of another process takes the rest."""
_SETUP_S = 0.05
_LAUNCHES = 20
"""Launches that even a slow shape takes: warm-up and the fewest repeats."""
_RECENT = 50


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a pass did.

    kept: shapes that a run before had measured; too_large: shapes that do not fit memory; left: shapes that
    the budget left out (the least informative ones). best_flops_per_s, best_bytes_per_s: the
    fastest linear layer of each dtype in flops and in bytes.
    """

    measured: int
    kept: int
    too_large: int
    left: int
    elapsed_s: float
    best_flops_per_s: dict[str, float]
    best_bytes_per_s: float


class FastestLayers:
    """The highest rates among linear layers.

    Weights of a model that fits the last-level cache are read from there in every step: that rate counts too.
    """

    def __init__(self) -> None:
        self.flops_per_s: dict[str, float] = {}
        self.bytes_per_s = 0.0

    def see(self, shape: TimedShape, time_us: float) -> None:
        """Count a row."""
        if shape.operator.kind == "gemm":
            flops_per_s, dtype = shape.flops / time_us * US_PER_S, shape.operator.dtype
            self.flops_per_s[dtype] = max(flops_per_s, self.flops_per_s.get(dtype, 0.0))
            self.bytes_per_s = max(self.bytes_per_s, shape.bytes / time_us * US_PER_S)


def measure_shapes(
    shapes: Sequence[TimedShape],
    bench: Bench,
    record: Recorder,
    rates: Rates,
    *,
    memory_bytes: float,
    budget_s: float | None = None,
    clock: Callable[[], float] = time.monotonic,
    advance: Callable[[int, int, float], None] = lambda *_: None,
) -> Outcome:
    """Measure what the record does not hold yet, in the given order, then its noisy rows again.

    It ends when the budget is used. A shape whose expected time does not fit what is left of it is
    passed over, so that shorter ones still find room. Rows are saved whatever ends it (Ctrl-C
    included, which goes on to the caller).

    advance: told (shapes done, shapes in all, seconds left: of the shapes, or of a budget if less).
    """
    started = clock()
    fitting = [shape for shape in shapes if shape.bytes <= _MEMORY_SHARE * memory_bytes]
    waiting = [shape for shape in fitting if not record.has(shape)]
    waiting += [shape for shape in fitting if record.has(shape) and not record.has_steady(shape)]
    measured = left = 0
    best = FastestLayers()
    pace: deque[float] = deque(maxlen=_RECENT)
    every_s = [expected_s(shape, rates) for shape in waiting]
    rests_s = np.cumsum([0.0, *every_s[:0:-1]])[::-1].tolist()
    try:
        for place, (shape, expected, rest_s) in enumerate(zip(waiting, every_s, rests_s, strict=True)):
            began = clock()
            used = began - started
            if budget_s is not None and used + expected * _slowness(pace) > budget_s:
                left += 1
                continue
            timing = _timed(shape, bench, record)
            best.see(shape, timing.time_us)
            measured += 1
            pace.append((clock() - began) / expected)
            left_s = max(0.0, (math.inf if budget_s is None else budget_s) - (clock() - started))
            advance(place + 1, len(waiting), min(_slowness(pace) * rest_s, left_s))
    finally:
        record.save()
    return Outcome(
        measured=measured,
        kept=len(fitting) - len(waiting),
        too_large=len(shapes) - len(fitting),
        left=left,
        elapsed_s=clock() - started,
        best_flops_per_s=best.flops_per_s,
        best_bytes_per_s=best.bytes_per_s,
    )


def expected_s(shape: TimedShape, rates: Rates) -> float:
    """Seconds that a shape may take: launches at the device's rates, and building its operands."""
    flops_per_s = rates.flops_per_s.get(shape.operator.dtype) or max(rates.flops_per_s.values())
    launch_s = (
        shape.bytes / rates.read_bytes_per_s + shape.flops / flops_per_s + rates.launch_eager_us / US_PER_S
    )
    return _SETUP_S + _LAUNCHES * launch_s


def _timed(shape: TimedShape, bench: Bench, record: Recorder) -> Timing:
    """Time a shape, and once more where the spread is large; the steadier timing is kept and returned."""
    timing = bench.timing(shape)
    if timing.spread > SPREAD_LIMIT:
        timing = min(timing, bench.timing(shape), key=lambda each: each.spread)
    record.add(shape, timing)
    return timing


def _slowness(pace: Sequence[float]) -> float:
    """Median of taken / expected seconds of the last shapes; 1 before there are any."""
    return statistics.median(pace) if pace else 1.0
