"""Result of a run: times of every request, sums with a histogram of gaps, a timeline.

Metrics are measured in a window, in which the server is neither filling nor running empty.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from medusa_sim.arrays import FloatArray, IntArray
from medusa_sim.load.requests import Requests

_SHORTEST_GAP_S = 1e-7
_PER_DOUBLING = 512
"""Classes of the histogram of gaps: 0.14 % wide."""
GAP_CLASSES = 44 * _PER_DOUBLING


@dataclass(frozen=True, eq=False)
class Timeline:
    """Means over equal bins of time: arrays (bins,).

    requests: that decode; not_decoding: in the queue or reading their prompt; drafts: of a step.
    """

    time_s: FloatArray
    requests: FloatArray
    not_decoding: FloatArray
    kv_tokens: FloatArray
    drafts: FloatArray
    tokens_per_s: FloatArray
    prompt_tokens_per_s: FloatArray


@dataclass(frozen=True, kw_only=True, eq=False)
class Sums:
    """Sums over the spans of some time.

    span_s: the time, idle or not. served: requests, of which each counts by the share of its output that was
    emitted in it, so that equal ones, which finish in waves, are as many as their tokens. steps_s, prompts_s:
    (1 + drafts, 1 + requests) time of steps, without and of the prompts that they carried. emitted,
    prompt_tokens: totals; speculated: steps x requests that drafted, accepted: drafts accepted in them. gaps:
    (classes,) counts of times between two chunks of a request.
    """

    span_s: float
    served: float
    steps: int
    steps_s: FloatArray
    prompts_s: FloatArray
    emitted: int
    prompt_tokens: int
    speculated: int
    accepted: float
    gaps: FloatArray
    gap_sum_s: float

    @property
    def busy_s(self) -> float:
        """Time in which a step ran."""
        return float(self.steps_s.sum() + self.prompts_s.sum())

    def gap_quantile_s(self, share: float) -> float:
        """The gap between two chunks that this share of all gaps does not exceed; nan without any."""
        total = self.gaps.sum()
        if total == 0:
            return float("nan")
        place = int(np.searchsorted(np.cumsum(self.gaps), share * total))
        return float(_SHORTEST_GAP_S * 2.0 ** ((place + 0.5) / _PER_DOUBLING))

    @property
    def gap_mean_s(self) -> float:
        """Mean gap between two chunks of a request."""
        total = self.gaps.sum()
        return self.gap_sum_s / float(total) if total else float("nan")


@dataclass(frozen=True, kw_only=True, eq=False)
class RunResult:
    """One run of a scheduler.

    whole, inside: sums of all of the run, and of its window. first_token_s, finish_s: (requests,) moments.
    in_system_s: integral of the requests in the system.
    window_s: what metrics are measured in: from the arrival of the first request that is not warm-up to the
    last arrival, or all where nothing is; of a closed loop from when as many requests have finished as there
    are users, to when the last one begins.
    preemptions, kv_blocks_most (an upper bound of the blocks in use at any time): of all of the run.
    """

    requests: Requests
    arrival_s: FloatArray
    first_token_s: FloatArray
    finish_s: FloatArray
    whole: Sums
    inside: Sums
    preemptions: int
    in_system_s: float
    window_s: tuple[float, float]
    kv_blocks_most: int
    timeline: Timeline

    @property
    def end_s(self) -> float:
        """When the last request has finished."""
        return self.whole.span_s


def class_of_gap(gap_s: FloatArray) -> IntArray:
    """Classes of gaps in the histogram."""
    place = np.floor(np.log2(np.maximum(gap_s, _SHORTEST_GAP_S) / _SHORTEST_GAP_S) * _PER_DOUBLING)
    return np.asarray(np.minimum(place, GAP_CLASSES - 1), dtype=np.int64)
