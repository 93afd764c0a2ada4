"""A row of a schedule: a configuration for a range of batches, with all that is known about it.

Each field says how it is read where it is declared; JSON, frames and tables are choices of their names.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, fields
from typing import Any, Literal

import numpy as np

from medusa_sim.acceptance.tree import Path
from medusa_sim.arrays import FloatArray, IntArray
from medusa_sim.plan.break_even import (
    best_chain,
    best_speculative,
    is_chain,
    required_factor,
    same_option,
)
from medusa_sim.plan.insights import cheaper_pairs, cliffs, free_budget, near_best
from medusa_sim.plan.priced_steps import PLAIN
from medusa_sim.plan.quantities import joule_per_token, usd_per_million_tokens, watts_at
from medusa_sim.plan.question import Question
from medusa_sim.plan.schedule import BatchRange
from medusa_sim.plan.surface import Surface
from medusa_sim.plan.verdict import Kind
from medusa_sim.step.drafter.base import Medusa
from medusa_sim.step.memory import step_memory_bytes
from medusa_sim.units import US_PER_S

_NEIGHBOURS = 5
"""A cliff stands out from the counts around it; a few chain lengths have none."""
SENSITIVITY = 0.10
"""Acceptance is moved by this share up and down."""


HeldBy = Literal["cost", "shared row", "memory", "end of the acceptance", "end of the search"]
"""What keeps a row from a larger count: it costs more than it gives, it would pay more at the fullest batch
but the row is shared, it does not fit, nobody knows its acceptance, or it was not searched."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NextCount:
    """The next larger count of the same kind and what it would change: shares of tokens and of step time."""

    candidates: int
    tokens_gain: float
    step_cost: float


class _Place:
    """A range of batches with one configuration at one length, and what several fields of its row read."""

    def __init__(self, surface: Surface, s: int, batches: BatchRange, question: Question) -> None:
        self.surface, self.s, self.question = surface, s, question
        first, i, j = batches.first, batches.last, batches.configuration
        self.i, self.j = i, j
        self.batch_min = int(surface.batch[first - 1]) + 1 if first else int(surface.batch[0])
        self.batch, self.candidates = int(surface.batch[i]), int(surface.candidates[j])
        self.option = surface.option_of(j)
        self.every: IntArray = np.arange(first, i + 1)
        self.speedup, self.gains = surface.speedup[i, s], surface.speedup[self.every, s, j]
        self.bands = surface.bands_at(self.every, s, j)
        self.by_count = surface.by_count
        self.own_gains = surface.gain_by_count[self.every, s]
        self.own_fits = self.by_count.fits[self.every, s]
        # place of the best of every count that fits, at each of the row's batches
        best = np.argmax(np.where(self.own_fits, self.own_gains, -np.inf), axis=1)
        self.own_bests = np.where(self.own_fits.any(axis=1), best, 0)
        self.own_best = int(self.own_bests[-1])
        self.best = best_speculative(surface, i, s, PLAIN)
        self.speculative = self.best if j == PLAIN else j
        known = self.bands if j != PLAIN else surface.bands_at(self.every, s, self.best)
        self.known = [np.broadcast_to(end, self.every.shape) for end in known]
        self.family = same_option(surface, self.speculative)
        self.chain = best_chain(surface, self.speedup)
        self.step_us, self.decode_us = surface.step_us[i, s], float(surface.decode_us[i, s])
        self.counts: IntArray = np.concatenate([[1], surface.candidates[self.family]])
        self.times: FloatArray = np.concatenate([[self.decode_us], self.step_us[self.family]])
        self.tpot_us, self.token_us = surface.tpot_us[i, s], surface.token_us[i, s]
        self.waits = surface.served_at(i, s, j)
        self.watts = {each: watts_at(surface, i, s, each) for each in {PLAIN, j}}
        # configurations like this one with more candidates
        self.larger: IntArray = self.family[surface.candidates[self.family] > surface.candidates[j]]

    @property
    def verdict(self) -> Kind:
        """Of the row's configuration, of a plain row of the best that speculates at its fullest batch."""
        low, high = self.known
        if bool((low > 1.0).all()):
            return "pays"
        return "loses" if bool((high <= 1.0).all()) else "uncertain"

    @property
    def uncertain(self) -> tuple[int, int] | None:
        low, high = self.known
        batches = self.surface.batch[self.every[(low <= 1.0) & (high > 1.0)]]
        return (int(batches[0]), int(batches[-1])) if batches.size else None

    @property
    def ends_profile(self) -> bool:
        last = self.by_count.counts.size - 1
        return last > 0 and bool((self.own_bests == last).any()) and self.surface.ends_profile

    @property
    def required(self) -> float | None:
        surface, j = self.surface, self.speculative
        own_us = float(surface.own_us[self.i, self.s, j])
        left_us = float(self.token_us[PLAIN] - self.token_us[j]) + own_us  # of a plain token, for the step
        return float(surface.tokens_per_step[j]) * own_us / left_us if left_us > 0.0 else None

    def rate(self, configuration: int) -> float:
        return float(self.batch / self.token_us[configuration] * US_PER_S)

    def gain_if(self, times_as_long: float) -> float:
        """The speedup if the row's step took so many times as long for each of its tokens."""
        own_us = float(self.surface.own_us[self.i, self.s, self.j])
        return float(self.token_us[PLAIN] / (self.token_us[self.j] + own_us * (times_as_long - 1.0)))

    def joule(self, configuration: int) -> float | None:
        watts = self.watts[configuration]
        return None if watts is None else float(joule_per_token(watts, self.rate(configuration)))

    def if_accepted(self, factor: float) -> float:
        tokens = float(self.surface.tokens_per_step[self.j])
        option = self.option
        return self.gain_if(
            tokens / (1.0 if option is None else option.scaled_tokens(self.candidates, factor))
        )

    @property
    def memory_bytes(self) -> float:
        surface, drafter = self.surface, None if self.option is None else self.option.drafter
        seq_len = int(surface.seq_len[self.s])
        return float(step_memory_bytes(surface.setting.shard, drafter, self.batch, seq_len, self.candidates))

    @property
    def meets_latency(self) -> bool | None:
        limit_us = self.question.max_latency_us
        return None if limit_us is None else bool(self.tpot_us[self.j] <= limit_us)

    def usd(self, configuration: int) -> float | None:
        scenario, rate = self.surface.scenario, self.rate(configuration)
        if scenario.price is None:
            return None
        return float(usd_per_million_tokens(scenario.usd_per_gpu_hour, scenario.gpus, rate))

    @property
    def heads_on_accepted_row(self) -> float | None:
        surface, option = self.surface, self.option
        on_accepted = surface.setting.runtime.head_rows == "accepted"
        if option is None or not isinstance(option.drafter, Medusa) or on_accepted:
            return None
        step_us = surface.on_accepted_rows.cost_at(self.i, self.s, self.j).time_us
        return self.gain_if(float(step_us / self.step_us[self.j]))

    @property
    def kernels_speedup(self) -> float | None:
        alone, j = self.surface.alone, self.speculative
        if alone is None:
            return None
        step_us = alone.cost_at(self.i, self.s, j).time_us
        return float(self.surface.tokens_per_step[j] * alone.decode_us[self.i, self.s] / step_us)

    @property
    def next_count(self) -> NextCount | None:
        if self.j == PLAIN or self.larger.size == 0:
            return None
        following, tokens = int(self.larger[0]), self.surface.tokens_per_step
        return NextCount(
            candidates=int(self.surface.candidates[following]),
            tokens_gain=float(tokens[following] / tokens[self.j]) - 1.0,
            step_cost=float(self.step_us[following] / self.step_us[self.j]) - 1.0,
        )

    @property
    def held_by(self) -> HeldBy | None:
        """What decided between the configuration and its larger siblings."""
        surface = self.surface
        if self.j == PLAIN:
            return None
        if self.larger.size == 0:
            ends = self.candidates == surface.counts[-1] and surface.ends_profile
            option, heads = self.option, surface.scenario.profile.heads
            # a chain as long as its acceptance was measured
            ends |= option is not None and option.chain and heads is not None and option.depth >= heads.heads
            return "end of the acceptance" if ends else "end of the search"
        better = self.speedup[self.larger] > self.speedup[self.j]
        if (better & surface.fits[self.i, self.s, self.larger]).any():
            return "shared row"
        return "memory" if better.any() else "cost"

    @property
    def cliff(self) -> int | None:
        """The first count from the row's up behind which the step jumps; None without counts to compare."""
        if self.counts.size <= _NEIGHBOURS:
            return None
        places = self.counts[cliffs(self.times) - 1]
        behind = places[places >= self.candidates]
        return int(behind[0]) if behind.size else None


def read(of: Callable[[_Place], Any]) -> Any:
    """A field of a row, and how it is read from the row's place in a search."""
    return field(metadata={"of": of})


@dataclass(frozen=True, slots=True, kw_only=True)
class ScheduleRow:
    """A configuration for batches `batch_min..batch_max` at one length.

    Every figure is at `batch_max`, the row's fullest batch, unless it says otherwise. Where not every
    batch was searched, the sizes between two rows belong to the later one. A `plain_` figure is without
    speculation, a `speculative_` one of the best configuration that does speculate. Speedups, rates and
    times per token are the step's, and with the scenario's traffic those of its server.
    """

    batch_min: int = read(lambda at: at.batch_min)
    batch_max: int = read(lambda at: at.batch)
    seq_len: int = read(lambda at: at.surface.seq_len[at.s])
    candidates: int = read(lambda at: at.candidates)
    """The root counts: 1 does not speculate."""
    paths: tuple[Path, ...] | None = read(
        lambda at: () if at.option is None else at.option.paths(at.candidates)
    )
    """None where the acceptance profile knows no shapes."""
    tokens_per_step: float = read(lambda at: at.surface.tokens_per_step[at.j])
    speedup: float = read(lambda at: at.speedup[at.j])
    speedup_lowest: float = read(lambda at: at.gains.min())
    """Over the row's batches, at batch_lowest."""
    speedup_highest: float = read(lambda at: at.gains.max())
    batch_lowest: int = read(lambda at: at.surface.batch[at.every[np.argmin(at.gains)]])
    speedup_low: float = read(lambda at: at.bands[0].min())
    """The lowest end of the 80 % intervals over the row's batches."""
    speedup_high: float = read(lambda at: at.bands[1].max())
    step_speedup: float = read(lambda at: at.surface.step_speedup[at.i, at.s, at.speculative])
    """Of the step (of a plain row: of the best that speculates), beside which a server reads prompts."""
    kernels_speedup: float | None = read(lambda at: at.kernels_speedup)
    """Of the same configuration (of a plain row: of the best that speculates) with kernels alone; None where
    the runtime is no engine."""
    itl_us: float = read(lambda at: float(at.waits.itl_us))
    """Between two chunks of a request, in a server whose steps carry the prompts of its traffic."""
    tpot_us: float = read(lambda at: float(at.tpot_us[at.j]))
    """Per token, likewise."""
    max_batch_without: int = read(lambda at: at.surface.max_batch[at.s, PLAIN])
    max_batch_with: int = read(lambda at: at.surface.max_batch[at.s, at.j])
    drafts: int = read(lambda at: 0 if at.option is None else at.option.drafts(at.candidates))
    """Draft length (Medusa: heads to run)."""
    width: int = read(lambda at: 0 if at.option is None else at.option.width)
    """Children kept a level by drafters that run level by level (0: not limited)."""
    chain: bool = read(lambda at: at.option is not None and is_chain(at.option, at.candidates))
    speedup_at_batch_min: float = read(lambda at: at.gains[0])
    overhead: float = read(lambda at: at.step_us[at.j] / at.decode_us)
    decode_step_us: float = read(lambda at: at.decode_us)
    verify_step_us: float = read(lambda at: at.step_us[at.j])
    tokens_per_s: float = read(lambda at: at.rate(at.j))
    plain_tokens_per_s: float = read(lambda at: at.rate(PLAIN))
    tokens_per_s_per_user: float = read(lambda at: US_PER_S / at.tpot_us.item(at.j))
    plain_tokens_per_s_per_user: float = read(lambda at: US_PER_S / at.tpot_us.item(PLAIN))
    usd_per_million_tokens: float | None = read(lambda at: at.usd(at.j))
    """None without a price."""
    plain_usd_per_million_tokens: float | None = read(lambda at: at.usd(PLAIN))
    watts: float | None = read(lambda at: at.watts[at.j])
    """Of all GPUs together; None where their power is not known."""
    plain_watts: float | None = read(lambda at: at.watts[PLAIN])
    joule_per_token: float | None = read(lambda at: at.joule(at.j))
    plain_joule_per_token: float | None = read(lambda at: at.joule(PLAIN))
    best_candidates: int = read(lambda at: at.by_count.counts[at.own_best])
    """The row's own best of every count, which it gives up where it shares a row with other batches."""
    best_speedup: float = read(lambda at: at.own_gains[-1, at.own_best])
    near_best: tuple[int, int] = read(
        lambda at: near_best(at.by_count.counts, at.own_gains[-1], at.own_fits[-1], at.own_best)
    )
    """Smallest and largest count around best_candidates within 1 % of it."""
    ends_profile: bool = read(lambda at: at.ends_profile)
    """At some batch of the row the best count is the largest that the acceptance describes: more may pay."""
    speculative_candidates: int = read(lambda at: at.surface.candidates[at.best])
    speculative_speedup: float = read(lambda at: at.speedup[at.best])
    speculative_speedup_low: float = read(lambda at: at.known[0][-1])
    """Of what is drafted, else of the best that could be, as `speculative_speedup_high`: 80 %."""
    speculative_speedup_high: float = read(lambda at: at.known[1][-1])
    verdict: Kind = read(lambda at: at.verdict)
    """Whether the 80 % interval lies above 1 at all its batches, at or below 1 at all, or neither."""
    uncertain: tuple[int, int] | None = read(lambda at: at.uncertain)
    """The first and the last of its batches at which the interval holds both; None where none does."""
    required_tokens_per_step: float | None = read(lambda at: at.required)
    """What the row's count (of a plain row: the best) must emit to break even; None where nothing does."""
    required_acceptance_factor: float | None = read(
        lambda at: None if at.required is None else required_factor(at.surface, at.speculative, at.required)
    )
    """By how much all accuracies would have to change for that."""
    speedup_acceptance_minus_10_percent: float = read(lambda at: at.if_accepted(1.0 - SENSITIVITY))
    speedup_acceptance_plus_10_percent: float = read(lambda at: at.if_accepted(1.0 + SENSITIVITY))
    chain_candidates: int | None = read(
        lambda at: None if at.chain is None else at.surface.candidates[at.chain]
    )
    """Of the best chain; None where shapes are unknown."""
    chain_speedup: float | None = read(lambda at: None if at.chain is None else at.speedup[at.chain])
    speedup_heads_on_accepted_row: float | None = read(lambda at: at.heads_on_accepted_row)
    """If the same Medusa heads ran after acceptance, on one row a sequence; None where they do so already."""
    free_candidates: int = read(lambda at: free_candidates(at.surface, at.question.free_within, at.i, at.s))
    next_count: NextCount | None = read(lambda at: at.next_count)
    held_by: HeldBy | None = read(lambda at: at.held_by)
    """What keeps the row from more; None for a plain row."""
    cliff_after: int | None = read(lambda at: at.cliff)
    cheaper_larger: tuple[tuple[int, int], ...] = read(lambda at: tuple(cheaper_pairs(at.counts, at.times)))
    memory_bytes: float = read(lambda at: at.memory_bytes)
    fits_memory: bool = read(lambda at: at.surface.fits[at.i, at.s, at.j])
    meets_latency: bool | None = read(lambda at: at.meets_latency)
    """None without a limit."""


def schedule_row(surface: Surface, length: int, batches: BatchRange, question: Question) -> ScheduleRow:
    """The row of one range of batches at the `length`-th sequence length of a search."""
    at = _Place(surface, length, batches, question)
    values = {each.name: each.metadata["of"](at) for each in fields(ScheduleRow)}
    plain = (np.generic, np.ndarray)
    return ScheduleRow(
        **{name: value.item() if isinstance(value, plain) else value for name, value in values.items()}
    )


def free_candidates(surface: Surface, within: float, *at: int) -> IntArray:
    """(B, S) free budget with the drafting that is best for each count: 1 where nothing is free.

    at: of one batch and length alone.
    """
    by_count = surface.by_count
    return np.asarray(by_count.counts[free_budget(by_count.overhead[at], within) - 1])
