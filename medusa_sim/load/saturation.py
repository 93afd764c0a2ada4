"""Saturation: what a server emits that is always full, and how many requests that is."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from medusa_sim.load.load_test import LoadTest, PolicyServer
from medusa_sim.load.metrics import metrics_of
from medusa_sim.load.requests import Requests
from medusa_sim.load.serving_loop import Advance
from medusa_sim.load.trial import trial_requests


class Saturation(NamedTuple):
    """Output of a server that is always full."""

    requests_per_s: float
    tokens_per_s: float
    slower: float
    """Half-width of the 80 % interval of its steps on the logarithm, towards fewer requests."""
    faster: float
    """The half-width towards more requests."""

    @property
    def low_per_s(self) -> float:
        """Lower end of the interval of its requests."""
        return float(self.requests_per_s * np.exp(-self.slower))

    @property
    def high_per_s(self) -> float:
        """Upper end of the interval of its requests."""
        return float(self.requests_per_s * np.exp(self.faster))


def saturation(test: LoadTest, server: PolicyServer, advance: Advance | None = None) -> Saturation:
    """Output of a server with `max_num_seqs` requests always in flight, of the lengths of the source."""
    result = server.run(filling_requests(test, server), 0, advance)
    metrics = metrics_of(result, server.table, server.limits, test.slos)
    names = ("requests_per_s", "tokens_per_s", "step_slower", "step_faster")
    return Saturation(*(metrics[name] for name in names))


def filling_requests(test: LoadTest, server: PolicyServer) -> Requests:
    """Requests that keep a server full: each slot is taken four times at least."""
    pool, users = trial_requests(test, test.sample), server.limits.max_requests
    return pool.repeated(max(4 * users, pool.count), users)


def requests_held(test: LoadTest, server: PolicyServer) -> int:
    """Requests of the mean length that the KV cache of a server holds at once, at most those of a step."""
    limits = server.limits
    prompt = round(test.sample.prompt_tokens.mean())
    blocks = limits.blocks_of(max(round(test.mean_length), 1)) - limits.shared_blocks(prompt)
    held = limits.schedulers * (limits.kv_blocks_for(1, prompt) // max(blocks, 1))
    return min(limits.max_requests, max(held, 1))
