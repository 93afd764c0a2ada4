"""What a recommendation is asked: batches, lengths, what counts, and what an answer must keep."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

import numpy as np

from medusa_sim.arrays import IntArray
from medusa_sim.errors import UsageError, unknown_name
from medusa_sim.plan.curve import FREE_WITHIN
from medusa_sim.plan.defaults import CANDIDATES_MAX, DEFAULT_BATCHES, DEFAULT_SEQ_LEN
from medusa_sim.plan.schedule import SWITCHING_GAIN
from medusa_sim.units import US_PER_MS

Objective = Literal["latency", "throughput"]
OBJECTIVES: tuple[Objective, ...] = get_args(Objective)

EVERY_BATCH_TO = 256
"""Every batch is searched to here, every 2 % beyond."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """What is asked.

    batch_min, batch_max: every batch between them is searched (beyond 256 every 2 %). seq_len: committed
    tokens. max_latency_ms: longest time per output token of one user. request: (prompt, output) tokens.
    """

    batch_min: int = DEFAULT_BATCHES[0]
    batch_max: int = DEFAULT_BATCHES[1]
    seq_len: tuple[int, ...] = (DEFAULT_SEQ_LEN,)
    objective: Objective = "latency"
    max_latency_ms: float | None = None
    candidates_max: int = CANDIDATES_MAX
    free_within: float = FREE_WITHIN
    switching_gain: float = SWITCHING_GAIN
    request: tuple[int, int] | None = None

    def __post_init__(self) -> None:
        if not 1 <= self.batch_min <= self.batch_max:
            raise UsageError(f"batch {self.batch_min}..{self.batch_max}: from 1, smallest first")
        if not self.seq_len or min(self.seq_len) < 1:
            raise UsageError(f"seq_len {self.seq_len}: at least one whole number from 1 is needed")
        if self.objective not in OBJECTIVES:
            raise UsageError(unknown_name("objective", self.objective, OBJECTIVES))
        if self.max_latency_ms is not None and not 0.0 < self.max_latency_ms < np.inf:
            raise UsageError(
                f"max latency {self.max_latency_ms} ms: a time above 0 per output token is needed"
            )
        if not 1.0 <= self.free_within < np.inf:
            raise UsageError(f"free within {self.free_within:g}: an overhead from 1 is needed (1.10 is 10 %)")

    @property
    def batches(self) -> IntArray:
        """Every batch searched."""
        every = np.arange(self.batch_min, min(self.batch_max, max(EVERY_BATCH_TO, self.batch_min)) + 1)
        if self.batch_max <= every[-1]:
            return every
        steps = 1 + int(np.ceil(np.log(self.batch_max / every[-1]) / np.log(1.02)))
        beyond = np.rint(np.geomspace(every[-1], self.batch_max, steps)).astype(np.int64)
        return np.unique(np.concatenate([every, beyond]))

    @property
    def max_latency_us(self) -> float | None:
        """The latency limit in microseconds."""
        return None if self.max_latency_ms is None else self.max_latency_ms * US_PER_MS
