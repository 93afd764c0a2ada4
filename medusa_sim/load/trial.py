"""Trials of a search over rates: the requests of each, and what a run of them gives.

All run the requests and seeds of the test, of long sources the first.
"""

from __future__ import annotations

from medusa_sim.load.load_test import LoadTest, PolicyServer
from medusa_sim.load.metrics import Metrics, metrics_of
from medusa_sim.load.requests import Requests
from medusa_sim.load.serving_loop import Advance

SEARCH_REQUESTS = 2000
"""Requests of each trial, over its seeds: the first of a trace."""
_LEAST_REQUESTS = 500
"""Of a seed: shorter runs end before their queues have grown."""


def trial_requests(test: LoadTest, requests: Requests) -> Requests:
    """The requests that a trial runs for each seed: the first of `requests`."""
    return requests.first(min(requests.count, max(SEARCH_REQUESTS // test.seeds, _LEAST_REQUESTS)))


def search_requests(test: LoadTest) -> int:
    """Requests that a trial runs for each seed."""
    return trial_requests(test, test.sample).count


def trial_metrics(
    test: LoadTest, server: PolicyServer, rate_per_s: float, advance: Advance | None, seed: int = 0
) -> Metrics:
    """Metrics of one trial at a rate."""
    requests = trial_requests(test, test.requests(rate_per_s, seed)[0])
    result = server.run(requests.at_rate(rate_per_s), seed, advance)
    return metrics_of(result, server.table, server.limits, test.slos)
