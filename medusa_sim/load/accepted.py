"""How many drafts a server's requests accept: by position, and how often there are any."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from medusa_sim.arrays import FloatArray


@dataclass(frozen=True, eq=False)
class Accepted:
    """Drafts accepted of the steps of one server, over all requests.

    rates: (drafts,) probability that at least that many are accepted. match_rate: share of the steps in which
    any are found. match_runs: such steps follow each other this many times as long as independent ones would.
    """

    rates: FloatArray
    match_rate: float = 1.0
    match_runs: float = 1.0

    @cached_property
    def tokens_per_step(self) -> FloatArray:
        """(1 + drafts,) mean tokens that a step emits for each request."""
        return np.concatenate([[1.0], 1.0 + np.cumsum(self.rates)])

    def up_to(self, drafts: int) -> Accepted:
        """The same of at most so many drafts."""
        return replace(self, rates=self.rates[:drafts])
