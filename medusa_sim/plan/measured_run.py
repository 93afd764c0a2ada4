"""A run of a running engine as it was measured, and the scenario that can be asked about it."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

from medusa_sim.errors import CoverageError, UsageError
from medusa_sim.scenario.defaults import MAX_DRAFTS
from medusa_sim.scenario.draft_options import DraftOption
from medusa_sim.scenario.question import Measured
from medusa_sim.scenario.scenario import Scenario
from medusa_sim.units import US_PER_MS, US_PER_S

_ROUNDING = 1e-6
"""How far shares and tokens that were printed with few digits may exceed the possible."""

TimedBy = Literal["tpot", "rate", "gaps"]


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredRun:
    """Measurements of a running engine at a number of requests in flight.

    seq_len: mean committed tokens of a request. drafts: draft tokens a step, 0: no speculation. time_us: per
    token of a request; timed_by: the mean after the first token, the rate of all requests, or the
    median gap between chunks over the tokens of a step. accepted: share of the steps in which each draft was
    accepted, () where unknown. plain_us: per token without drafts, after the first. shorter_profile: the
    acceptance that describes fewer drafts, so that what was measured stands for it. caveat: a sentence
    on what its result leaves out.
    """

    batch: int
    seq_len: int
    drafts: int
    time_us: float
    tokens_per_step: float
    timed_by: TimedBy = "tpot"
    accepted: tuple[float, ...] = ()
    plain_us: float | None = None
    shorter_profile: str = ""
    caveat: str = ""

    @property
    def acceptance(self) -> str:
        """The measured acceptance, as an argument of a scenario."""
        shares = ",".join(f"{share:.6g}" for share in self.accepted)
        return shares or f"{self.tokens_per_step:.6g}@{self.drafts}"

    @classmethod
    def from_measured(cls, given: Measured, length: int, caveat: str = "") -> MeasuredRun:
        """The run that was measured, of requests of that length. Raises UsageError for what is missing."""
        batch, drafts, tpot_ms, itl_ms = given.batch, given.drafts, given.tpot_ms, given.itl_ms
        accepted = tuple(float(share) for share in given.accepted_by_position or ())
        _check_shares(accepted, drafts)
        drafts = drafts if drafts is not None else len(accepted) or None
        if batch is None or drafts is None:
            asked = {"--batch (requests in flight)": batch, "--drafts (0: none)": drafts}
            raise UsageError(f"give {' and '.join(name for name, value in asked.items() if value is None)}")
        tokens = given.tokens_per_step or _tokens(accepted, drafts, tpot_ms, itl_ms)
        if tokens > drafts + 1.0 + _ROUNDING:
            raise UsageError(
                f"{tokens:g} tokens a step with {drafts} drafts: at most {drafts + 1} are possible"
            )
        timed_by: TimedBy = "tpot"
        if tpot_ms is not None:
            time_us = tpot_ms * US_PER_MS
        elif given.tokens_per_s is not None:
            timed_by, time_us = "rate", batch / given.tokens_per_s * US_PER_S
        elif itl_ms is not None:
            timed_by, time_us = "gaps", itl_ms * US_PER_MS / tokens
        else:
            raise UsageError(
                "no speed was given: a benchmark file (--bench), --measured-tpot-ms, "
                "--measured-tokens-per-s or --measured-itl-ms is needed"
            )
        return cls(
            batch=int(batch),
            seq_len=length,
            drafts=int(drafts),
            time_us=float(time_us),
            tokens_per_step=float(tokens),
            timed_by=timed_by,
            accepted=accepted,
            caveat=caveat,
            plain_us=None if given.plain_tpot_ms is None else float(given.plain_tpot_ms * US_PER_MS),
        )


def _tokens(accepted: tuple[float, ...], drafts: int, tpot_ms: float | None, itl_ms: float | None) -> float:
    """Tokens of a step from what was accepted, else from the time of a step over that of a token."""
    if accepted or drafts == 0:
        return 1.0 + sum(accepted)
    if tpot_ms and itl_ms:
        return min(max(itl_ms / tpot_ms, 1.0), drafts + 1.0)
    raise UsageError(
        "how many tokens a step gave is missing: give --accepted-by-position, --tokens-per-step, --counters, "
        "or both --measured-itl-ms and --measured-tpot-ms"
    )


def _check_shares(accepted: tuple[float, ...], drafts: int | None) -> None:
    """Refuse shares that rise or are not one a draft. Raises UsageError."""
    if accepted and drafts is not None and len(accepted) != drafts:
        raise UsageError(f"{len(accepted)} accepted shares with {drafts} drafts: one share a draft is needed")
    for k, share in enumerate(accepted):
        before = accepted[k - 1] if k else 1.0
        if not 0.0 <= share <= before + _ROUNDING:
            raise UsageError(
                f"accepted {share:g} at position {k} after {before:g}: shares of the steps lie in 0..1 and "
                "never rise; multiply conditional rates"
            )


def with_known_acceptance(scenario: Scenario, run: MeasuredRun) -> tuple[Scenario, MeasuredRun]:
    """The scenario, with the measured acceptance where its own ends, or is a guess, before the last draft."""
    try:
        chain_of(scenario, run.drafts)
        is_measured = scenario.guessed_from is None or run.drafts < scenario.guessed_from
    except CoverageError:
        if scenario.drafting.drafter_class.looks_up or run.drafts > MAX_DRAFTS or run.tokens_per_step <= 1.0:
            raise
        is_measured = False
    if not is_measured and run.tokens_per_step > 1.0:
        longest = max(run.drafts, scenario.arguments.max_drafts)
        as_measured = scenario.but(acceptance=run.acceptance, max_drafts=longest)
        return as_measured, replace(run, shorter_profile=scenario.profile.name)
    return scenario, run


def chain_of(scenario: Scenario, drafts: int) -> DraftOption:
    """The way to make `drafts` drafts in a row; any for 0, where only the plain step counts.

    Raises CoverageError where the acceptance does not describe that many.
    """
    options = scenario.options(max(drafts + 1, 2))
    if drafts == 0:
        return options[0]
    option = next((option for option in options if option.chain and option.depth == drafts), None)
    if option is None:
        longest = max((option.depth for option in scenario.options() if option.chain), default=0)
        raise CoverageError(
            f"acceptance {scenario.profile.name} with drafter {scenario.drafting.method} describes no chain "
            f"of {drafts} drafts (at most {longest}); give --acceptance of so many, or a larger --max-drafts"
        )
    return option
