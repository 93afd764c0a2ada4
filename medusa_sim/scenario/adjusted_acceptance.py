"""Acceptance as a scenario drafts with it: what was measured, changed by what is asked."""

from __future__ import annotations

from dataclasses import dataclass

from medusa_sim.acceptance.adjustments import GREEDY_RATIO
from medusa_sim.acceptance.deeper import FALLS
from medusa_sim.acceptance.p_min import ending_unsure
from medusa_sim.acceptance.profile import AcceptanceProfile
from medusa_sim.engines.runtime import Runtime
from medusa_sim.errors import UsageError
from medusa_sim.scenario.arguments import Arguments
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


def adjust(
    measured: AcceptanceProfile, asked: Arguments, drafter: type[Drafter], runtime: Runtime
) -> AdjustedAcceptance:
    """A measured acceptance with what is asked, in this order: rates of further drafts, the workload, the
    acceptance scheme, lengths of outputs, heads, the match rate, p-min.

    The workload is an MT-bench category (Figure 3b of the Medusa paper). Lossless: greedy acceptance instead
    of typical acceptance (Figure 5), for curves, which were measured with it; accuracies and rates say how
    often a guess is exactly right as they are.
    Raises UsageError where the drafter, the runtime or the acceptance does not take one of them.
    """
    profile = with_further_drafts(measured, drafter)
    if asked.workload is not None:
        profile = profile.of_workload(asked.workload)
    if asked.lossless and profile.heads is None:
        profile = profile.with_ratio(GREEDY_RATIO)
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


def with_further_drafts(profile: AcceptanceProfile, drafter: type[Drafter]) -> AcceptanceProfile:
    """With rates of further drafts, as those of such drafters fall (T9)."""
    return profile.carried_on(FALLS[drafter.falls_as]) if drafter.falls_as else profile


def matched(
    given: float | None, drafter: type[Drafter], profile: AcceptanceProfile
) -> tuple[float, AcceptanceProfile]:
    """Share of the steps that verify drafts, and the acceptance over all steps.

    All steps do, but for a drafter that looks drafts up in the text. There the profile says its own share
    (`match_rate_or_guess`); with another one as many more or fewer drafts are accepted, since what a match is
    worth stays. Raises UsageError for a rate outside (0, 1] or below the first acceptance, or of a drafter
    that takes none.
    """
    if not drafter.looks_up:
        if given is not None:
            raise UsageError(f"drafter {drafter.name} takes no --match-rate: it drafts in every step")
        return 1.0, profile
    if given is None:
        return profile.match_rate_or_guess, profile
    if not 0.0 < given <= 1.0:
        raise UsageError(f"match rate {given:g}: above 0 and at most 1 is allowed")
    if given < profile.first_accepted:
        least = profile.first_accepted
        raise UsageError(
            f"match rate {given:g}: acceptance {profile.name} accepts a first draft in {least:g} of the "
            f"steps, so drafts are found in as many; give {least:g} to 1, or the acceptance of that text"
        )
    if not profile.match_rate_or_guess:
        raise UsageError(
            f"match rate {given:g}: acceptance {profile.name} accepts nothing, so that no match "
            "is worth a token; give another acceptance"
        )
    return given, profile.with_ratio(given / profile.match_rate_or_guess)


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
