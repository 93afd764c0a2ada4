"""Limits that lengths and requests exceed: positions, acceptance, an engine's ranges and settings."""

from __future__ import annotations

from collections.abc import Iterator

from medusa_sim.doubts.doubts import beyond_known
from medusa_sim.doubts.one_model import told_by_another_model
from medusa_sim.doubts.terms import terms_out_of_range
from medusa_sim.scenario.scenario import Scenario
from medusa_sim.step.traffic import drafting_requests


def beyond_measured(scenario: Scenario, tokens: float, requests: tuple[int, int]) -> list[str]:
    """A sentence for everything known that an answer goes beyond.

    tokens: the longest length. requests: fewest and most in a step.
    """
    return [
        *beyond_known(scenario, tokens),
        *terms_out_of_range(scenario, requests, tokens),
        *told_by_another_model(scenario, requests, tokens),
        *beyond_drafting_limit(scenario, requests[1]),
    ]


def beyond_drafting_limit(scenario: Scenario, requests: int) -> Iterator[str]:
    """A sentence where an engine admits fewer requests because a drafter is loaded."""
    engine = scenario.runtime.engine
    if engine is None or not engine.drafting_requests:
        return
    most = drafting_requests(scenario.runtime, scenario.gpu, schedulers=scenario.parallel.schedulers)
    if requests > most and scenario.scope == "model":
        yield (
            f"{scenario.runtime.name} admits at most {most} requests with a drafter unless "
            f"--max-running-requests says more: rows beyond {most} are of a server that was started with it"
        )
