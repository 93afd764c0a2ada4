"""Is a policy's table right? How far its costs lie from those of its steps, and what right ones give."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from medusa_sim.load.policies import BySize, Costs, Policy
from medusa_sim.load.policy_names import righted
from medusa_sim.load.simulate import LoadPoint, LoadTest, Served


@dataclass(frozen=True, kw_only=True)
class TableCheck:
    """Of one policy at the last rate.

    context: committed tokens at which its table was measured, cost_error: the mean of table over step less 1,
    by the time that the steps took; both None for a schedule that was given. length: committed tokens of its
    requests in the mean. e2e_ratio: time of a request with the right table over that with its own, pairs of
    the same requests, with a 95 % interval (nan for one seed).
    """

    policy: str
    context: float | None
    cost_error: float | None
    length: float
    e2e_ratio: float
    e2e_ratio_low: float
    e2e_ratio_high: float


def table_check(test: LoadTest, served: Served, point: LoadPoint) -> TableCheck | None:
    """Serve the requests of a point once more, with a right table; None where the policy has none to mend."""
    policy = served.policy()
    if (right := righted(policy, test.table, test.mean_length)) is None:
        return None

    def again() -> Policy:
        return righted(served.policy(), served.table, test.mean_length) or policy

    # a schedule that is computed may draft more than the one that was given
    other = test.served_by(right) if isinstance(policy, BySize) else replace(served, policy=again)
    beside = test.point(other, point.rate_per_s)
    ratio, low, high = beside.ratio_to(point, "e2e_mean_s")
    costs: Costs | None = getattr(policy, "costs", None)
    error = None
    if costs is not None:
        steps_s = point.first.steps_s[1:, 1:]
        drafts, requests = (steps_s > 0.0).nonzero()
        own_s = served.table.at(test.mean_length)[1:, 1:]
        own = costs.measured[1:, 1:]
        off = own[drafts, requests] / own_s[drafts, requests] - 1.0
        error = float(np.average(off, weights=steps_s[drafts, requests])) if drafts.size else 0.0
    return TableCheck(
        policy=served.name,
        context=None if costs is None else costs.context,
        cost_error=error,
        length=test.mean_length,
        e2e_ratio=ratio,
        e2e_ratio_low=low,
        e2e_ratio_high=high,
    )
