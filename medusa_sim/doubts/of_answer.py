"""Doubts about one answer: limits that its lengths and requests exceed."""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache

from medusa_sim.doubts.acceptance import acceptance_of_shorter_contexts, acceptance_of_shorter_requests
from medusa_sim.doubts.of_scenario import requests_too_long
from medusa_sim.doubts.one_model import told_by_another_model
from medusa_sim.doubts.terms import terms_out_of_range
from medusa_sim.scenario.scenario import Scenario
from medusa_sim.serving.traffic import drafting_requests


@lru_cache(maxsize=16)
def answer_doubts(scenario: Scenario, tokens: float, requests: tuple[int, int]) -> tuple[str, ...]:
    """A sentence for every limit that an answer goes beyond: of model, acceptance, engine and its settings.

    tokens: the longest length. requests: fewest and most in a step. Found once: a page, its table and its
    JSON ask again.
    """
    return (
        *length_doubts(scenario, tokens),
        *terms_out_of_range(scenario, requests, tokens),
        *told_by_another_model(scenario, requests, tokens),
        *limit_with_a_drafter(scenario, requests[1]),
    )


def length_doubts(scenario: Scenario, tokens: float) -> list[str]:
    """Contexts longer than the model's positions, or than those at which its acceptance was measured.

    Those of its requests are among the scenario's doubts already; a cached prefix may be longer.
    """
    told = any(acceptance_of_shorter_requests(scenario))
    lines = [] if told else list(acceptance_of_shorter_contexts(scenario, tokens))
    if tokens > scenario.model.max_seq_len and not any(requests_too_long(scenario)):
        lines.append(
            f"length {tokens:.10g} is beyond the {scenario.model.max_seq_len} positions of "
            f"{scenario.model.name}"
        )
    return lines


def limit_with_a_drafter(scenario: Scenario, requests: int) -> Iterator[str]:
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
