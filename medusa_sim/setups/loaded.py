"""The second level: chosen set-ups as fleets under load, with arrivals, queues and prompts between the steps.

A router sends each request to the copy with the least load, as if alike copies took turns: of Poisson
arrivals each of R copies sees every R-th, gaps of R exponential ones (a gamma of shape R). Its number of
requests then spreads as with a count of who is where, a variance of 1/R of that of lots. Copies are added
until the share of the requests that must keep the limits does.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import ceil
from typing import Any

from medusa_sim.load.question import load_test
from medusa_sim.load.simulate import LoadPoint
from medusa_sim.plan.defaults import LOAD_SHARE
from medusa_sim.plan.quantities import usd_per_million_tokens
from medusa_sim.setups.comparison import Comparison
from medusa_sim.setups.question import LOWER_IS_BETTER
from medusa_sim.setups.setup import PLAIN
from medusa_sim.units import US_PER_MS

REQUESTS = 500
"""Requests of a run of one copy."""
MOST_FLEETS = 6
"""Set-ups that are simulated at most."""
_TRIES = (1.0, 1.1, 1.25, 1.5, 2.0, 3.0)
"""Copies tried, over those of the steady server."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Loaded:
    """A set-up under load.

    share: of the requests that keep every limit. usd_per_million_tokens: of all copies.
    """

    row: Mapping[str, Any]
    replicas: int
    gpus: int
    share: float
    usd_per_million_tokens: float
    point: LoadPoint

    @property
    def keeps(self) -> bool:
        """Whether enough requests keep the limits."""
        return self.share >= LOAD_SHARE


def second_level(answer: Comparison) -> list[Mapping[str, Any]]:
    """Rows worth simulating: the chosen, the best without speculation, and the frontier within the limits.

    One row a set-up, the best first; at most MOST_FLEETS.
    """
    within = answer.frontier[answer.frontier.meets_limits]
    within = within.sort_values(answer.column, ascending=answer.measure in LOWER_IS_BETTER)
    rows: list[Any] = [answer.chosen, answer.chosen_plain, *within.to_dict("records")]
    found: dict[tuple[Any, ...], Mapping[str, Any]] = {}
    for row in rows:
        if row is not None:
            found.setdefault(answer.key(row), row)
    return list(found.values())[:MOST_FLEETS]


def under_load(
    answer: Comparison, row: Mapping[str, Any], *, requests: int = REQUESTS, seeds: int = 1
) -> Loaded:
    """A row of a comparison simulated: the fewest copies tried that keep the limits, else the most tried.

    Without a rate or a number of users one copy is held at the row's batch by a closed loop.
    """
    asked, scenario = answer.question, answer.scenario(row)
    drafts = PLAIN if row["drafter"] == PLAIN else str(row["drafts"])
    limit_us = asked.slowest_tpot_us
    found: Loaded | None = None
    for copies in dict.fromkeys(ceil(share * int(row["replicas"])) for share in _TRIES):
        users = None if asked.rate is not None else ceil((asked.users or int(row["batch"])) / copies)
        test = load_test(
            scenario.but(prompt_tokens=None, output_tokens=None, acceptance=scenario.profile),
            policies=[drafts],
            users=users,
            requests=requests,
            seeds=seeds,
            prompt_tokens=asked.prompt_tokens,
            output_tokens=asked.output_tokens,
            ttft_ms=asked.ttft_ms,
            tpot_ms=limit_us / US_PER_MS if limit_us < float("inf") else None,
            e2e_ms=asked.e2e_ms,
            max_num_seqs=int(row["batch"]),
            burstiness=float(copies),
        )
        point = test.points([None if asked.rate is None else asked.rate / copies])[0]
        gpus = copies * int(row["tp"])
        rate = copies * point.mean["tokens_per_s"]
        found = Loaded(
            row=row, replicas=copies, gpus=gpus, share=point.mean["goodput_share"], point=point,
            usd_per_million_tokens=float(usd_per_million_tokens(scenario.usd_per_gpu_hour, gpus, rate)),
        )  # fmt: skip
        if found.keeps or (asked.rate is None and asked.users is None):
            break
    assert found is not None  # noqa: S101  # there is always one number of copies to try
    return found
