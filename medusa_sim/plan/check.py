"""A running engine compared with its prediction: inside the band, or which part is off and by how much.

    t = P(round, tau)    time per token as it was measured (`serving.server`)
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
from typing import Literal, NamedTuple

import numpy as np

from medusa_sim.arrays import conditional
from medusa_sim.doubts.of_scenario import scenario_doubts
from medusa_sim.errors import UsageError
from medusa_sim.grid.cells import Cells, price
from medusa_sim.plan.measured_run import MeasuredRun, TimedBy, chain_of
from medusa_sim.scenario.draft_options import DraftOption
from medusa_sim.scenario.scenario import Scenario
from medusa_sim.serving.request_steps import chances_of_mean

NOTICEABLE = 0.03
"""Of the time per token: what moves it by less is no fault, however narrow a band (rates without trials have
none); as the gain below which a schedule does not switch."""


PartName = Literal["acceptance", "round", "plain"]


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckedPart:
    """One part, in microseconds per token: measured, predicted with its 80 % band, its share of the whole.

    costs_us: what it adds to the predicted time per token; below 0 it is faster.
    """

    name: PartName
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
        """Whether it lies outside the band by enough to mention."""
        tolerance_us = NOTICEABLE * self.predicted_us
        return not (
            min(self.low_us, self.predicted_us - tolerance_us)
            <= self.measured_us
            <= max(self.high_us, self.predicted_us + tolerance_us)
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineCheck:
    """A run compared with its prediction.

    predicted_us, low_us, high_us: per token, 80 %. parts: acceptance and round where drafts were run, plain
    where it was measured. tokens_per_step, tokens_low, tokens_high: predicted, 80 %. accepted: predicted
    shares by position. position: where acceptance parts most from the profile; None where positions are not
    known.
    """

    scenario: Scenario
    run: MeasuredRun
    predicted_us: float
    low_us: float
    high_us: float
    parts: tuple[CheckedPart, ...]
    tokens_per_step: float = 1.0
    tokens_low: float = 1.0
    tokens_high: float = 1.0
    accepted: tuple[float, ...] = ()
    position: int | None = None

    @property
    def off(self) -> tuple[CheckedPart, ...]:
        """Parts outside their bands: slow ones before fast ones, the one that costs most first."""
        outside = (part for part in self.parts if part.is_off)
        return tuple(sorted(outside, key=lambda part: (not part.is_slow, -abs(part.costs_us))))

    @property
    def warnings(self) -> tuple[str, ...]:
        """Doubts about the run and the scenario; none about drafts that it did not make."""
        caveat = (self.run.caveat,) if self.run.caveat else ()
        return caveat + scenario_doubts(self.scenario, self.run.drafts + 1)

    @property
    def is_inside(self) -> bool:
        """Whether every part that was measured is inside its band."""
        return not self.off


class _Band(NamedTuple):
    """A predicted time per token between the ends of its 80 % interval."""

    low_us: float
    predicted_us: float
    high_us: float

    def compared(self, name: PartName, measured_us: float) -> CheckedPart:
        """The part of this prediction, which costs all that it differs by."""
        return CheckedPart(
            name=name, measured_us=measured_us, predicted_us=self.predicted_us, low_us=self.low_us,
            high_us=self.high_us, costs_us=measured_us - self.predicted_us,
        )  # fmt: skip


def check(scenario: Scenario, run: MeasuredRun) -> EngineCheck:
    """The run compared with what the scenario predicts for it.

    Raises UsageError for a scope that is no engine, CoverageError for drafts that the acceptance does not
    describe.
    """
    if scenario.scope == "block":
        raise UsageError("scope block is no engine: check a scenario of scope model")
    traffic = scenario.traffic
    if traffic is not None and traffic.output_tokens <= 1.0 and run.timed_by != "rate":
        raise UsageError("outputs of 1 token have no time between tokens: nothing to check")
    chain = chain_of(scenario, run.drafts)
    cells = price(scenario, [run.batch], [run.seq_len], [chain]).by_count
    if run.drafts:
        return _check_drafting(scenario, run, chain, cells)
    plain = _plain(cells, run.timed_by)
    return EngineCheck(
        scenario=scenario, run=run, parts=(plain.compared("plain", run.time_us),),
        predicted_us=plain.predicted_us, low_us=plain.low_us, high_us=plain.high_us,
    )  # fmt: skip


def _check_drafting(scenario: Scenario, run: MeasuredRun, chain: DraftOption, cells: Cells) -> EngineCheck:
    """A run with drafts. cells: the plain step and the one of the chain."""
    tokens, (tokens_low, tokens_high) = (
        chain.tokens(run.drafts + 1),
        (float(end[-1]) for end in chain.token_band),
    )
    low_us, step_us, high_us = _step_us(cells, 1)

    def per_token(step_us: float, tokens: float) -> float:
        return _per_token_us(cells, 1, step_us, tokens, run.timed_by)

    by_tokens = _Band(*(per_token(step_us, emitted) for emitted in (tokens_high, tokens, tokens_low)))
    by_step = _Band(*(per_token(us, run.tokens_per_step) for us in (low_us, step_us, high_us)))
    explained_us = 0.0
    plain_parts: tuple[CheckedPart, ...] = ()
    if run.plain_us is not None:
        plain = _plain(cells).compared("plain", run.plain_us)
        explained_us = _explained_us(plain, by_step.predicted_us, run.time_us - by_step.predicted_us)
        plain_parts = (replace(plain, costs_us=explained_us),)
    predicted_us, shares = by_tokens.predicted_us, _accepted_shares(chain)
    below_us = math.hypot(predicted_us - by_tokens.low_us, by_step.predicted_us - by_step.low_us)
    above_us = math.hypot(by_tokens.high_us - predicted_us, by_step.high_us - by_step.predicted_us)
    return EngineCheck(
        scenario=scenario,
        run=run,
        predicted_us=predicted_us,
        low_us=max(predicted_us - below_us, 0.0),
        high_us=predicted_us + above_us,
        parts=(
            by_tokens.compared("acceptance", by_step.predicted_us),
            by_step.compared("round", run.time_us - explained_us),
            *plain_parts,
        ),
        tokens_per_step=tokens,
        tokens_low=tokens_low,
        tokens_high=tokens_high,
        accepted=shares,
        position=_position(shares, run.accepted) if run.accepted else None,
    )


def _accepted_shares(chain: DraftOption) -> tuple[float, ...]:
    """Share of the steps in which each draft is accepted; empty where the profile does not know."""
    if chain.heads is None:
        return ()
    reached = np.cumprod(chain.heads.conditional()[: chain.depth, 0])
    return tuple(np.minimum(chain.profile.ratio * reached, 1.0).tolist())


def _explained_us(plain: CheckedPart, round_us: float, rest_us: float) -> float:
    """Time by which a round is longer if it errs by the plain step's factor, at most its own error."""
    same_us = round_us * (plain.measured_us / plain.predicted_us - 1.0)
    return math.copysign(min(abs(same_us), abs(rest_us)), rest_us) if same_us * rest_us > 0.0 else 0.0


def _per_token_us(cells: Cells, k: int, step_us: float, tokens: float, timed_by: TimedBy) -> float:
    """Time per token, as it was measured, if the step of the k-th cell takes `step_us` and emits `tokens`."""
    shape = cells.configurations.emission_chances[cells.configuration_at(0, 0, k)]
    seen = cells.server_steps.server_if(0, 0, k, step_us, chances_of_mean(np.asarray(tokens), shape))
    ways = {"tpot": seen.tpot_us, "rate": seen.token_us, "gaps": seen.itl_us / tokens}
    return float(ways[timed_by])


def _plain(cells: Cells, timed_by: TimedBy = "tpot") -> _Band:
    """Plain decoding, as if nothing else had been run."""
    return _Band(*(_per_token_us(cells, 0, step_us, 1.0, timed_by) for step_us in _step_us(cells, 0)))


def _step_us(cells: Cells, k: int) -> tuple[float, float, float]:
    """A step of requests in flight at the first batch and length, between the ends of its band."""
    bands = cells.bands.in_flight
    low_us, high_us = (float(end[0, 0, k]) for end in bands.step_us)
    return low_us, float(bands.steps.time_us[0, 0, k]), high_us


def _position(predicted: Sequence[float], measured: Sequence[float]) -> int | None:
    """The position whose own rate, put into the profile, moves the tokens of a step most."""
    if len(predicted) != len(measured):
        return None
    expected, seen = conditional(np.asarray(predicted)), conditional(np.asarray(measured))

    def moved(k: int) -> float:
        rates = expected.copy()
        rates[k] = seen[k]
        return abs(float(np.cumprod(rates).sum() - np.cumprod(expected).sum()))

    return max(range(len(expected)), key=moved)
