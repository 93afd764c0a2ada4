"""Doubts about how many drafts are accepted: whose rates these are, and how far they were measured."""

from __future__ import annotations

from collections.abc import Iterator

from medusa_sim.acceptance.adjustments import workload_ratio
from medusa_sim.scenario.acceptance import doubtful_shares, one_rate
from medusa_sim.scenario.defaults import TYPICAL, request_length
from medusa_sim.scenario.scenario import Scenario

_LONGER = 1.05
"""Contexts longer by this than an acceptance's are told: sources state lengths in round numbers."""


def whose_acceptance(scenario: Scenario) -> Iterator[str]:
    """The acceptance is an assumption, or another model's."""
    if scenario.profile.name.startswith(TYPICAL):
        yield (
            f"acceptance {scenario.profile.name} is an assumption ({scenario.profile.title}): nobody "
            f"measured {scenario.drafting.method} on {scenario.model.name}; give your own with --acceptance"
        )
    elif scenario.profile.borrowed:
        yield (
            f"acceptance {scenario.profile.name} was measured on another model than {scenario.model.name}; "
            "give your own with --acceptance"
        )


def typed_acceptance(scenario: Scenario) -> Iterator[str]:
    """The given numbers may be of another kind than they are read as."""
    given = scenario.arguments.acceptance
    if line := doubtful_shares(given):
        yield line
    if scenario.runtime.local and scenario.depth > 1 and (rate := one_rate(given)) is not None:
        yield (
            f"acceptance {rate:g} is the chance of each draft behind an accepted one; llama.cpp logs the "
            f"share of all drafts: give that with the drafts of a round, {100.0 * rate:g}%@3"
        )


def guessed_acceptance(scenario: Scenario) -> Iterator[str]:
    """The acceptance is a guess from some draft on."""
    first = scenario.guessed_from
    if first is not None:
        known = "1 draft" if first == 2 else f"{first - 1} drafts"
        was = "is assumed" if scenario.profile.name.startswith(TYPICAL) else "was measured"
        yield (
            f"acceptance {scenario.profile.name} {was} for {known}: from draft {first} on its rates are a "
            "guess, with bands that widen; measure longer drafts with medusa-sim acceptance from-engine"
        )


def acceptance_of_outputs(scenario: Scenario) -> Iterator[str]:
    """The acceptance was scaled to outputs of random prompts."""
    if scenario.profile.output_share != 1.0:
        yield (
            f"acceptance {scenario.profile.name}: rates are {scenario.profile.output_share:.2f} of the "
            f"published ones, as measured in outputs of {scenario.profile.output_tokens:g} tokens to random "
            "prompts; real prompts may do better: give your own with --acceptance"
        )


def workload_of_medusa(scenario: Scenario) -> Iterator[str]:
    """Says so where a workload's effect was measured with Medusa heads and another drafter runs."""
    category = scenario.profile.workload
    if category is not None and scenario.drafting.method != "medusa":
        yield (
            f"workload {category}: accepted drafts are {workload_ratio(category):.2f} times as many, as "
            f"measured with Medusa heads on Vicuna-7B, not with {scenario.drafting.method}; give your own "
            "with --acceptance"
        )


def lossless_as_given(scenario: Scenario) -> Iterator[str]:
    """Lossless output was asked for where it changes nothing."""
    if scenario.arguments.lossless and scenario.profile.heads is not None:
        yield (
            f"--lossless changes nothing: acceptance {scenario.profile.name} counts drafts that are exactly "
            "the model's own; curves of typical acceptance alone are lowered by it"
        )


def acceptance_of_shorter_requests(scenario: Scenario) -> Iterator[str]:
    """Requests grow longer than the contexts at which the acceptance was measured."""
    if scenario.traffic is not None:
        yield from acceptance_of_shorter_contexts(
            scenario, request_length(scenario.traffic.prompt_tokens, scenario.traffic.output_tokens)
        )


def acceptance_of_shorter_contexts(scenario: Scenario, tokens: float) -> Iterator[str]:
    """Contexts are longer than those at which the acceptance was measured."""
    longest = scenario.profile.longest_context
    if longest is not None and tokens > _LONGER * longest:
        yield (
            f"acceptance {scenario.profile.name} was measured to contexts of {longest} tokens, not "
            f"{tokens:.10g}: a drafter accepts less beyond what it was trained on (EAGLE-3 of Llama-3.1-8B: "
            "2.9 tokens a step at 0.8k, 1.1 at 7.4k, vllm #48894)"
        )
