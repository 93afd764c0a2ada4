"""SLOs: the limits on latency that requests must keep, and how many of them must."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from medusa_sim.arrays import BoolArray, FloatArray
from medusa_sim.scenario.defaults import LOAD_SHARE


@dataclass(frozen=True, slots=True, kw_only=True)
class Slos:
    """Limits on latency that a request must keep to count as goodput.

    ttft_s: longest time to its first token; tpot_s: longest mean time per token after it; e2e_s: longest
    time in all; None: no limit. share: of the requests that must keep them for a rate to be carried.
    """

    ttft_s: float | None = None
    tpot_s: float | None = None
    e2e_s: float | None = None
    share: float = LOAD_SHARE

    @property
    def given(self) -> bool:
        """Whether any limit is set."""
        return any(limit is not None for limit in (self.ttft_s, self.tpot_s, self.e2e_s))

    def are_met(self, ttft_s: FloatArray, tpot_s: FloatArray, e2e_s: FloatArray) -> BoolArray:
        """Whether each request keeps every limit; one without a second token has no time per token."""
        are_met = np.ones(ttft_s.shape, dtype=np.bool_)
        for limit, values in ((self.ttft_s, ttft_s), (self.tpot_s, tpot_s), (self.e2e_s, e2e_s)):
            if limit is not None:
                are_met &= ~(values > limit)
        return are_met
