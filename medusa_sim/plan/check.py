"""A running engine beside its prediction: inside the band, or which part is off and by how much.

    t = P(round, tau)    time per token as it was measured (`step.server`)
    acceptance = P(predicted round, tau measured) - P(predicted round, tau predicted)
    plain      = the share of the rest that a plain step slower (or faster) than predicted explains
    round      = t - P(predicted round, tau measured) - plain

The three add up to what was measured less what was predicted. A plain step that is slower by a factor
(clocks, limits, other load) slows the round by that factor, at most by as much as the round is slower.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np

from medusa_sim.doubts.doubts import doubts
from medusa_sim.errors import CoverageError, UsageError
from medusa_sim.grid.cells import Cells, price
from medusa_sim.scenario.defaults import MAX_DRAFTS
from medusa_sim.scenario.draft_options import DraftOption
from medusa_sim.scenario.question import Measured
from medusa_sim.scenario.scenario import Scenario
from medusa_sim.units import US_PER_MS, US_PER_S

NOTICEABLE = 0.03
"""Of the time per token: what moves it by less is no fault, however narrow a band (rates without trials have
none); as the gain below which a schedule does not switch."""
_RISING = 1e-6


TimedBy = Literal["tpot", "rate", "gaps"]


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineRun:
    """What a running engine gave at a number of requests in flight.

    seq_len: mean committed tokens of a request. drafts: draft tokens a step, 0: no speculation. time_us: per
    token of a request; timed_by: the mean after the first token, the rate of all requests, or the
    median gap between chunks over the tokens of a step. accepted: share of the steps in which each draft was
    accepted, () where unknown. plain_us: per token without drafts, after the first. undescribed: the
    acceptance that describes fewer drafts, so that what was measured stands for it.
    """

    batch: int
    seq_len: int
    drafts: int
    time_us: float
    tokens_per_step: float
    timed_by: TimedBy = "tpot"
    accepted: tuple[float, ...] = ()
    plain_us: float | None = None
    undescribed: str = ""

    @property
    def acceptance(self) -> str:
        """What was measured, as an acceptance of a scenario."""
        shares = ",".join(f"{share:.6g}" for share in self.accepted)
        return shares or f"{self.tokens_per_step:.6g}@{self.drafts}"

    @classmethod
    def of(cls, given: Measured, length: int) -> EngineRun:
        """From what was measured; length: where that says none. Raises UsageError for what is missing."""
        batch, drafts, tpot_ms, itl_ms = given.batch, given.drafts, given.tpot_ms, given.itl_ms
        accepted = tuple(float(share) for share in given.accepted_by_position or ())
        _check_shares(accepted, drafts)
        drafts = drafts if drafts is not None else len(accepted) or None
        if batch is None or drafts is None:
            asked = {"--batch (requests in flight)": batch, "--drafts (0: none)": drafts}
            raise UsageError(f"give {' and '.join(name for name, of in asked.items() if of is None)}")
        tokens = given.tokens_per_step or _tokens(accepted, drafts, tpot_ms, itl_ms)
        if tokens > drafts + 1.0 + _RISING:
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
            seq_len=int(given.seq_len or length),
            drafts=int(drafts),
            time_us=float(time_us),
            tokens_per_step=float(tokens),
            timed_by=timed_by,
            accepted=accepted,
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
        if not 0.0 <= share <= before + _RISING:
            raise UsageError(
                f"accepted {share:g} at position {k} after {before:g}: shares of the steps lie in 0..1 and "
                "never rise; multiply conditional rates"
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckedPart:
    """One part, in microseconds per token: measured, predicted with its 80 % band, its share of the whole.

    costs_us: what it adds to the time per token beside the prediction; below 0 it is faster.
    """

    name: Literal["acceptance", "round", "plain"]
    measured_us: float
    predicted_us: float
    low_us: float
    high_us: float
    costs_us: float

    @property
    def is_slow(self) -> bool:
        """Whether it takes longer than predicted."""
        return self.measured_us > self.predicted_us

    @property
    def is_off(self) -> bool:
        """Outside the band, by what is worth a word."""
        room = NOTICEABLE * self.predicted_us
        return not (
            min(self.low_us, self.predicted_us - room)
            <= self.measured_us
            <= max(self.high_us, self.predicted_us + room)
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineCheck:
    """A run beside its prediction.

    predicted_us, low_us, high_us: per token, 80 %. parts: acceptance and round where drafts were run, plain
    where it was measured. tokens_per_step, few, many: predicted, 80 %. accepted: predicted shares by
    position. position: where acceptance parts most from the profile; None where positions are not known.
    """

    scenario: Scenario
    run: EngineRun
    predicted_us: float
    low_us: float
    high_us: float
    parts: tuple[CheckedPart, ...]
    tokens_per_step: float = 1.0
    few: float = 1.0
    many: float = 1.0
    accepted: tuple[float, ...] = ()
    position: int | None = None

    @property
    def off(self) -> tuple[CheckedPart, ...]:
        """Parts outside their bands: slow ones before fast ones, the one that costs most first."""
        outside = (part for part in self.parts if part.is_off)
        return tuple(sorted(outside, key=lambda part: (not part.is_slow, -abs(part.costs_us))))

    @property
    def warnings(self) -> tuple[str, ...]:
        """What must not be overlooked of the scenario: a plain run says nothing of acceptance."""
        lines = doubts(self.scenario)
        return (
            lines if self.run.drafts else tuple(each for each in lines if not each.startswith("acceptance "))
        )

    @property
    def is_inside(self) -> bool:
        """Whether every part that was measured is inside its band."""
        return not self.off


def check(scenario: Scenario, run: EngineRun) -> EngineCheck:
    """The run beside what the scenario predicts for it.

    Raises UsageError for a scope that is no engine, CoverageError for drafts that the acceptance does not
    describe.
    """
    if scenario.scope == "block":
        raise UsageError("scope block is no engine: check a scenario of scope model")
    option = option_of(scenario, run.drafts)
    cells = price(scenario, [run.batch], [run.seq_len], [option]).by_count
    if run.drafts == 0:
        alone = _plain(cells, run.time_us, run.timed_by)
        return EngineCheck(
            scenario=scenario, run=run, parts=(alone,),
            predicted_us=alone.predicted_us, low_us=alone.low_us, high_us=alone.high_us,
        )  # fmt: skip
    tokens = option.tokens(run.drafts + 1)
    few, many = (float(end[-1]) for end in option.band)
    steps = cells.in_flight
    step, low, high = (float(ends[0, 0, 1]) for ends in (steps.step_us, steps.low_us, steps.high_us))

    def per_token(step_us: float, tokens: float) -> float:
        return _per_token_us(cells, step_us, run.drafts + 1, tokens, run.timed_by)

    predicted, quick, late = (per_token(step, each) for each in (tokens, many, few))
    at_measured, fast, slow = (per_token(each, run.tokens_per_step) for each in (step, low, high))
    plain = None if run.plain_us is None else _plain(cells, run.plain_us)
    explained = 0.0
    if plain is not None:
        # what a plain step off by a factor adds to the round, of the rest at most
        same_us, rest_us = (
            at_measured * (plain.measured_us / plain.predicted_us - 1.0),
            run.time_us - at_measured,
        )
        if same_us * rest_us > 0.0:
            explained = math.copysign(min(abs(same_us), abs(rest_us)), rest_us)
        plain = replace(plain, costs_us=explained)
    parts = [
        CheckedPart(
            name="acceptance", measured_us=at_measured, predicted_us=predicted, low_us=quick, high_us=late,
            costs_us=at_measured - predicted,
        ),
        CheckedPart(
            name="round", measured_us=run.time_us - explained, predicted_us=at_measured, low_us=fast,
            high_us=slow, costs_us=run.time_us - explained - at_measured,
        ),
    ]  # fmt: skip
    shares: tuple[float, ...] = ()  # of the steps in which each draft is accepted, where the profile says
    if option.heads is not None:
        reached = np.cumprod(option.heads.conditional()[: option.depth, 0])
        shares = tuple(np.minimum(option.profile.ratio * reached, 1.0).tolist())
    return EngineCheck(
        scenario=scenario,
        run=run,
        predicted_us=predicted,
        low_us=predicted - math.hypot(predicted - quick, at_measured - fast),
        high_us=predicted + math.hypot(late - predicted, slow - at_measured),
        parts=tuple(parts if plain is None else [*parts, plain]),
        tokens_per_step=tokens,
        few=few,
        many=many,
        accepted=shares,
        position=_position(shares, run.accepted) if run.accepted else None,
    )


def described(scenario: Scenario, run: EngineRun) -> tuple[Scenario, EngineRun]:
    """The scenario, with the measured acceptance where its own ends, or is a guess, before the last draft."""
    try:
        option_of(scenario, run.drafts)
        is_measured = scenario.guessed_from is None or run.drafts < scenario.guessed_from
    except CoverageError:
        if scenario.drafting.kind.looks_up or run.drafts > MAX_DRAFTS or run.tokens_per_step <= 1.0:
            raise
        is_measured = False
    if not is_measured and run.tokens_per_step > 1.0:
        longest = max(run.drafts, scenario.arguments.max_drafts)
        own = scenario.but(acceptance=run.acceptance, max_drafts=longest)
        return own, replace(run, undescribed=scenario.profile.name)
    return scenario, run


def option_of(scenario: Scenario, drafts: int) -> DraftOption:
    """The chain of so many drafts; any for none, which prices the plain step alike.

    Raises CoverageError where the acceptance describes none of so many.
    """
    options = scenario.options(max(drafts + 1, 2))
    if drafts == 0:
        return options[0]
    option = next((each for each in options if each.chain and each.depth == drafts), None)
    if option is None:
        longest = max((each.depth for each in scenario.options() if each.chain), default=0)
        raise CoverageError(
            f"acceptance {scenario.profile.name} with drafter {scenario.drafting.method} describes no chain "
            f"of {drafts} drafts (at most {longest}); give --acceptance of so many, or a larger --max-drafts"
        )
    return option


def _per_token_us(cells: Cells, step_us: float, count: int, tokens: float, timed_by: TimedBy) -> float:
    """Time per token, as it was measured, with a step of `step_us` that emits so many tokens."""
    place = int(np.searchsorted(cells.configurations.counts, count))
    seen = cells.served_as(np.asarray(step_us), place, np.asarray(tokens))
    ways = {"tpot": seen.tpot_us, "rate": seen.token_us, "gaps": seen.itl_us / tokens}
    return float(ways[timed_by])


def _plain(cells: Cells, measured_us: float, timed_by: TimedBy = "tpot") -> CheckedPart:
    """Plain decoding, as if it alone was run."""
    steps = cells.in_flight
    low, predicted, high = (
        _per_token_us(cells, float(ends[0, 0, 0]), 1, 1.0, timed_by)
        for ends in (steps.low_us, steps.step_us, steps.high_us)
    )
    return CheckedPart(
        name="plain", measured_us=measured_us, predicted_us=predicted, low_us=low, high_us=high,
        costs_us=measured_us - predicted,
    )  # fmt: skip


def _position(predicted: Sequence[float], measured: Sequence[float]) -> int | None:
    """The position whose own rate, put into the profile, moves the tokens of a step most."""
    if len(predicted) != len(measured):
        return None
    # given that the draft before was accepted; 0 where none was
    expected, seen = (
        np.divide(shares, before, out=np.zeros(len(shares)), where=before > 0.0)
        for shares in (predicted, measured)
        for before in [np.concatenate([[1.0], shares[:-1]])]
    )

    def moved(k: int) -> float:
        rates = expected.copy()
        rates[k] = seen[k]
        return abs(float(np.cumprod(rates).sum() - np.cumprod(expected).sum()))

    return max(range(len(expected)), key=moved)
