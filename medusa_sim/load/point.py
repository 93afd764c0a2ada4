"""One policy at one rate: metrics of every seed, their means, intervals and what they say of the queue."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from medusa_sim.arrays import FloatArray
from medusa_sim.load.metrics import Metrics
from medusa_sim.load.run_result import RunResult


@dataclass(frozen=True, kw_only=True, eq=False)
class LoadPoint:
    """One policy at one rate (None: the source's own), over its seeds.

    values: every seed's metrics. first_result, dropped (requests that were too long): of the
    first seed.
    """

    policy: str
    rate_per_s: float | None
    offered_per_s: float
    values: tuple[Metrics, ...]
    first_result: RunResult
    dropped: int = 0

    @property
    def arrivals_per_s(self) -> float:
        """Requests a second that come: those asked for, else the source's own; nan where they have none."""
        return self.offered_per_s if self.rate_per_s is None else self.rate_per_s

    @cached_property
    def mean(self) -> Metrics:
        """Means over the seeds."""
        return {name: float(np.mean([metrics[name] for metrics in self.values])) for name in self.values[0]}

    def half_width(self, name: str, end: float = 0.975) -> float:
        """Half the confidence interval of the mean over the seeds (95 %); nan for one seed."""
        return half_width(np.asarray([metrics[name] for metrics in self.values]), end)

    def band(self, name: str) -> tuple[float, float]:
        """80 % interval of a mean latency: the step's band through the queue, the server's, the seeds'.

        name: tpot_mean_s, e2e_mean_s or ttft_mean_s. A queue that grows has no upper end.
        """
        mean = self.mean
        value, through = mean[name], 1.0 / (1.0 - mean["queue_share"])
        server = mean["server_share"] if name == "ttft_mean_s" else 0.0
        chance = self.half_width(name, 0.9) / value
        ends = []
        for half in (-mean["step_faster"], mean["step_slower"]):
            parts = (half * through * (1.0 - server), mean["server_band"] * server, np.nan_to_num(chance))
            ends.append(value * float(np.exp(np.copysign(np.sqrt(sum(part**2 for part in parts)), half))))
        return ends[0], ends[1] if self.is_steady else float("nan")

    @property
    def is_steady(self) -> bool:
        """Whether requests in the system rise no more over the run than chance lets them.

        Arrivals and departures of n requests differ by chance by sqrt(2 n), less where queues are short; a
        rise of twice that, pooled over the seeds, is a queue that grows. True where drift is
        expected, as in traces and ramps.
        """
        growth = self.mean["queue_growth_per_s"]
        if not np.isfinite(growth):
            return True
        count = self.mean["requests"]
        rise = growth * count / self.arrivals_per_s
        return bool(rise <= 2.0 * np.sqrt(2.0 * count / len(self.values)))

    def ratio_to(self, other: LoadPoint, name: str) -> tuple[float, float, float]:
        """(ratio, low, high) of a metric to another policy's, pairs with the same seed; 95 % interval."""
        pairs = zip(self.values, other.values, strict=True)
        logs = np.log([mine[name] / their[name] for mine, their in pairs])
        half = half_width(logs)
        middle = float(logs.mean())
        return float(np.exp(middle)), float(np.exp(middle - half)), float(np.exp(middle + half))


def half_width(values: FloatArray, end: float = 0.975) -> float:
    """Half the confidence interval of a mean of independent values (95 %); nan for one value."""
    if values.size < 2:
        return float("nan")
    from scipy.special import stdtrit

    spread = float(values.std(ddof=1)) / np.sqrt(values.size)
    return float(stdtrit(values.size - 1, end) * spread)
