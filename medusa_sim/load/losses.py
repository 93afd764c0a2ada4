"""Where drafts lose against plain decoding: from how many requests in flight, and in which spans of rates.

Drafts of a mixture may lose, win and lose again as the rate grows, since they activate experts that a full
step activates anyway.
"""

from __future__ import annotations

from itertools import pairwise, zip_longest

import numpy as np

from medusa_sim.load.load_test import LoadTest, PolicyServer
from medusa_sim.load.policies import Fixed, Policy
from medusa_sim.load.serving_loop import Advance
from medusa_sim.load.step_table import StepTable
from medusa_sim.load.trial import trial_metrics

Spans = tuple[tuple[float, float | None], ...]
"""(first, last) rates of spans that do not meet, rising; None: without an end."""

_COMPARED = tuple(np.geomspace(0.02, 1.0, 6).tolist())
"""Shares of saturation at which drafts are compared with plain decoding."""
_NEARLY_EVEN = 0.05
"""Share by which drafts win or lose at most where they may do the other between this rate and the next."""
_EDGE_PRECISION = 0.02
"""Of the rates between which drafts begin to lose, or to win."""
USUAL_PAIRS = 10
"""Runs against plain decoding that a policy usually takes, in the middle of many loads."""


def off_from(table: StepTable, policy: Policy, length: float, most: int) -> int | None:
    """Requests from which the policy's drafts emit fewer tokens a second than a plain step does.

    Of a policy that chooses its drafts: from which no number of them emits more. Plain steps are those of a
    server without a drafter. most: requests that there can be. None where drafting pays up to these.
    """
    if not table.drafts_max:
        return None
    j = int(np.argmin(np.abs(table.lengths - length)))
    rate = table.rate_per_s[:, 1 : most + 1, j]
    drafting = rate[policy.count] if isinstance(policy, Fixed) else rate[1:].max(axis=0)
    loses = drafting <= rate[0]
    if not loses[-1]:
        return None
    wins = np.flatnonzero(~loses)
    return 1 if wins.size == 0 else int(wins[-1]) + 2


def spans_lost(
    test: LoadTest, server: PolicyServer, plain: PolicyServer, top: float, advance: Advance | None
) -> Spans:
    """Spans of rates up to `top` in which the mean request takes longer than with `plain`.

    By pairs of the first seed's requests, at `_COMPARED` and between two of them where one is nearly even. A
    shorter span that begins and ends between two of these is not seen.
    """

    def slower(rate: float) -> float:
        """The mean request's time over that with `plain`, on the logarithm."""
        with_drafts, without = (trial_metrics(test, one, rate, advance) for one in (server, plain))
        return float(np.log(with_drafts["e2e_mean_s"] / without["e2e_mean_s"]))

    compared = {top * share: slower(top * share) for share in _COMPARED}
    for low, high in list(pairwise(compared)):
        ends = compared[low], compared[high]
        if min(map(abs, ends)) < _NEARLY_EVEN and (ends[0] > 0.0) == (ends[1] > 0.0):
            middle = float(np.sqrt(low * high))
            compared[middle] = slower(middle)

    def edge(low: float, high: float) -> float:
        """Where drafts begin to lose, or the last rate at which they do."""
        begins = compared[high] > 0.0
        while high > (1.0 + _EDGE_PRECISION) * low:
            middle = float(np.sqrt(low * high))
            low, high = (low, middle) if (slower(middle) > 0.0) == begins else (middle, high)
        return high if begins else low

    rates = sorted(compared)
    edges = [0.0] if compared[rates[0]] > 0.0 else []
    for low, high in pairwise(rates):
        if (compared[low] > 0.0) != (compared[high] > 0.0):
            edges.append(edge(low, high))
    return tuple(zip_longest(edges[::2], edges[1::2]))
