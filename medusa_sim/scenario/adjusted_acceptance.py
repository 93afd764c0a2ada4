"""Acceptance as a scenario drafts with it: what was measured, changed by what is asked."""

from __future__ import annotations

from dataclasses import dataclass

from medusa_sim.acceptance.p_min import ending_unsure
from medusa_sim.acceptance.profile import AcceptanceProfile
from medusa_sim.errors import UsageError
from medusa_sim.scenario.acceptance import acceptance_of, matched
from medusa_sim.scenario.arguments import Arguments
from medusa_sim.specs.runtime import Runtime
from medusa_sim.step.drafter.base import Drafter


@dataclass(frozen=True, kw_only=True)
class AdjustedAcceptance:
    """The acceptance that is in force.

    profile: over all steps. match_rate: share of the steps that verify drafts. sure_shares: shares of drafts
    that are run, given those before, where a drafter ends them early; empty where it runs all.
    """

    profile: AcceptanceProfile
    match_rate: float
    sure_shares: tuple[float, ...]


def adjusted_acceptance(
    measured: AcceptanceProfile,
    asked: Arguments,
    drafter: type[Drafter],
    *,
    model_name: str,
    runtime: Runtime,
) -> AdjustedAcceptance:
    """A measured acceptance with what is asked, in this order: rates of further drafts, the workload, the
    acceptance scheme, lengths of outputs, heads, the match rate, p-min.

    Raises UsageError where the drafter, the runtime or the acceptance does not take one of them.
    """
    profile = acceptance_of(
        measured, drafter, model_name=model_name, workload=asked.workload, lossless=asked.lossless
    )
    if asked.output_tokens is not None:
        profile = profile.of_outputs(asked.output_tokens)
    if drafter.unit == "head" and asked.heads is not None:
        profile = profile.of_heads(asked.heads)
    match_rate, profile = matched(asked.match_rate, drafter, profile)
    sure_shares: tuple[float, ...] = ()
    if asked.p_min:
        _check_p_min(drafter, runtime)
        sure_shares, profile = ending_unsure(profile, asked.p_min)
    return AdjustedAcceptance(profile=profile, match_rate=match_rate, sure_shares=sure_shares)


def _check_p_min(drafter: type[Drafter], runtime: Runtime) -> None:
    if drafter.looks_up or drafter.unit != "draft":
        raise UsageError(
            f"drafter {drafter.name} takes no --p-min: it gives its drafts no probability; choose "
            "draft-model, mtp, eagle3 or dflash"
        )
    if runtime.library != "llama.cpp":
        raise UsageError(
            f"--p-min ends drafts of llama.cpp, not of {runtime.name}; choose --runtime "
            "llama.cpp-cuda or another of its backends"
        )
