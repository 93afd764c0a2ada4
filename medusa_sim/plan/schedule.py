"""Batches -> few ranges that share one configuration, because engines pay for switching.

A range may hold a batch as long as one configuration gives it at least its own best speedup less
the tolerance, and as long as speculating pays at all of the range or at none of it: a range never
crosses break-even. Any part of such a range is one as well, so taking the longest range from the
smallest batch on gives the fewest ranges.

A row is a configuration for such a range, with all that is known about it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np

from medusa_sim.acceptance.tree import Path
from medusa_sim.arrays import BoolArray, FloatArray, IntArray
from medusa_sim.errors import UsageError
from medusa_sim.plan.break_even import (
    best_chain,
    best_speculative,
    is_chain,
    required_factor,
    same_option,
    scaled_speedup,
)
from medusa_sim.plan.curve import cheaper_pairs, cliffs, free_budget, near_best, tokens_per_s
from medusa_sim.plan.defaults import SWITCHING_GAIN
from medusa_sim.plan.quantities import joule_per_token, usd_per_million_tokens, watts_at
from medusa_sim.plan.question import Question
from medusa_sim.plan.surface import PLAIN, Surface
from medusa_sim.step.drafter.medusa import Medusa
from medusa_sim.step.memory import step_memory_bytes
from medusa_sim.step.server import served
from medusa_sim.units import US_PER_S

_NEIGHBOURS = 5
"""A cliff stands out from the counts around it; a few chain lengths have none."""
_TIE = 1e-12
"""Log speedups that differ by rounding alone are the same: a chain is the tree of its count at times."""
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


@dataclass(frozen=True, slots=True, kw_only=True)
class ScheduleRow:
    """A configuration for batches `batch_min..batch_max` at one length.

    Every figure is at `batch_max`, the row's fullest batch, unless it says otherwise. Where not every
    batch was searched, the sizes between two rows belong to the later one. candidates counts
    the root (1: do not speculate); speedup_lowest, speedup_highest: over the row's batches, the lowest at
    batch_lowest; drafts = draft length (Medusa: heads to run); width: children kept a level by drafters that
    run level by level (0: not limited). paths: None where the acceptance profile
    knows no shapes. speedup_low, speedup_high: lowest and highest end of the 80 % intervals over the row's
    batches. required_tokens_per_step: what the row's
    (for a plain row: the best) count must emit to break even; required_acceptance_factor: by how much all
    accuracies would have to change for that. speculative_*: the best configuration that does speculate.
    best_candidates, best_speedup: the row's own best of every count, which the row gives up where it shares
    one with other batches; near_best: smallest and largest count around it within 1 % of it. ends_profile:
    at some batch of the row the best count is the largest that the acceptance describes: more may pay.
    held_by: what keeps the row from more; None for a plain row.
    kernels_speedup: of the same configuration with kernels alone (for a plain row: of the best that does
    speculate); None where the runtime is no engine. itl_us, tpot_us: between two chunks of a request and per
    token, in a server whose steps carry no prompts. usd_per_million_tokens: None without a price.
    watts: of all GPUs together, None where their power is not known.
    chain_*: the best chain; None where shapes are unknown. speedup_heads_on_accepted_row: if the same
    Medusa heads ran after acceptance, on one row a sequence; None where they do so already.
    """

    batch_min: int
    batch_max: int
    seq_len: int
    candidates: int
    paths: tuple[Path, ...] | None
    tokens_per_step: float
    speedup: float
    speedup_lowest: float
    speedup_highest: float
    batch_lowest: int
    speedup_low: float
    speedup_high: float
    kernels_speedup: float | None
    itl_us: float
    tpot_us: float
    max_batch_without: int
    max_batch_with: int
    drafts: int
    width: int
    chain: bool
    speedup_at_batch_min: float
    overhead: float
    decode_step_us: float
    verify_step_us: float
    tokens_per_s: float
    plain_tokens_per_s: float
    tokens_per_s_per_user: float
    plain_tokens_per_s_per_user: float
    usd_per_million_tokens: float | None
    plain_usd_per_million_tokens: float | None
    watts: float | None
    plain_watts: float | None
    joule_per_token: float | None
    plain_joule_per_token: float | None
    best_candidates: int
    best_speedup: float
    near_best: tuple[int, int]
    ends_profile: bool
    speculative_candidates: int
    speculative_speedup: float
    required_tokens_per_step: float
    required_acceptance_factor: float | None
    speedup_acceptance_minus_10_percent: float
    speedup_acceptance_plus_10_percent: float
    chain_candidates: int | None
    chain_speedup: float | None
    speedup_heads_on_accepted_row: float | None
    free_candidates: int
    next_count: NextCount | None
    held_by: HeldBy | None
    cliff_after: int | None
    cheaper_larger: tuple[tuple[int, int], ...]
    memory_bytes: float
    fits_memory: bool
    meets_latency: bool | None


def schedule_row(surface: Surface, length: int, batches: BatchRange, question: Question) -> ScheduleRow:
    """The row of one range of batches at the `length`-th sequence length of a search."""
    s, j, at = length, batches.configuration, batches.last
    option = surface.option_of(j)
    batch, seq_len = int(surface.batch[at]), int(surface.seq_len[s])
    speedup = surface.speedup[at, s]
    best = best_speculative(surface, at, s, PLAIN)
    speculative = best_speculative(surface, at, s, j)
    family = same_option(surface, speculative)
    step_us, decode_us = surface.step_us[at, s], float(surface.decode_us[at, s])
    rate, plain_rate = (
        float(tokens_per_s(batch, surface.tokens_per_step[c], step_us[c])) for c in (j, PLAIN)
    )
    drawn, plain_drawn = (watts_at(surface, at, s, configuration) for configuration in (j, PLAIN))
    every = np.arange(batches.first, batches.last + 1)
    low, high = surface.bands_at(every, s, j)
    gains = surface.speedup[every, s, j]
    own = _own_best(surface, every, s)
    chain = best_chain(surface, speedup)
    counts = np.concatenate([[1], surface.candidates[family]])
    times = np.concatenate([[decode_us], step_us[family]])
    drafter = None if option is None else option.drafter
    limit_us = question.max_latency_us
    per_token_us = float(step_us[j] / surface.tokens_per_step[j])
    waits = served(
        surface.setting, step_us[j], batch, surface.candidates[j], surface.tokens_per_step[j], traffic=None
    )
    return ScheduleRow(
        batch_min=int(surface.batch[batches.first - 1]) + 1 if batches.first else int(surface.batch[0]),
        batch_max=batch,
        seq_len=seq_len,
        candidates=int(surface.candidates[j]),
        paths=() if option is None else option.paths(int(surface.candidates[j])),
        tokens_per_step=float(surface.tokens_per_step[j]),
        speedup=float(speedup[j]),
        speedup_lowest=float(gains.min()),
        speedup_highest=float(gains.max()),
        batch_lowest=int(surface.batch[every[np.argmin(gains)]]),
        speedup_low=float(low.min()),
        speedup_high=float(high.max()),
        kernels_speedup=_with_kernels_alone(surface, at, s, speculative),
        itl_us=float(waits.itl_us),
        tpot_us=float(waits.tpot_us),
        max_batch_without=int(surface.max_batch[s, PLAIN]),
        max_batch_with=int(surface.max_batch[s, j]),
        drafts=0 if option is None else option.drafts(int(surface.candidates[j])),
        width=0 if option is None else option.width,
        chain=option is not None and is_chain(option, int(surface.candidates[j])),
        speedup_at_batch_min=float(surface.speedup[batches.first, s, j]),
        overhead=float(step_us[j]) / decode_us,
        decode_step_us=decode_us,
        verify_step_us=float(step_us[j]),
        tokens_per_s=rate,
        plain_tokens_per_s=plain_rate,
        tokens_per_s_per_user=rate / batch,
        plain_tokens_per_s_per_user=US_PER_S / decode_us,
        usd_per_million_tokens=_usd(surface, rate),
        plain_usd_per_million_tokens=_usd(surface, plain_rate),
        watts=drawn,
        plain_watts=plain_drawn,
        joule_per_token=None if drawn is None else float(joule_per_token(drawn, rate)),
        plain_joule_per_token=None
        if plain_drawn is None
        else float(joule_per_token(plain_drawn, plain_rate)),
        best_candidates=own.candidates,
        best_speedup=own.speedup,
        near_best=own.near,
        ends_profile=own.ends_profile,
        speculative_candidates=int(surface.candidates[best]),
        speculative_speedup=float(speedup[best]),
        required_tokens_per_step=float(step_us[speculative]) / decode_us,
        required_acceptance_factor=required_factor(
            surface, speculative, float(step_us[speculative]) / decode_us
        ),
        speedup_acceptance_minus_10_percent=scaled_speedup(surface, j, float(speedup[j]), 1.0 - SENSITIVITY),
        speedup_acceptance_plus_10_percent=scaled_speedup(surface, j, float(speedup[j]), 1.0 + SENSITIVITY),
        chain_candidates=None if chain is None else int(surface.candidates[chain]),
        chain_speedup=None if chain is None else float(speedup[chain]),
        speedup_heads_on_accepted_row=_with_accepted_rows(surface, at, s, j),
        free_candidates=int(free_candidates(surface, question.free_within)[at, s]),
        next_count=None if j == PLAIN else _next(surface, family, j, step_us),
        held_by=None if j == PLAIN else _held_by(surface, at, s, j, family),
        cliff_after=_cliff(counts, times, int(surface.candidates[j])),
        cheaper_larger=tuple(cheaper_pairs(counts, times)),
        memory_bytes=float(
            step_memory_bytes(surface.setting.shard, drafter, batch, seq_len, int(surface.candidates[j]))
        ),
        fits_memory=bool(surface.fits[at, s, j]),
        meets_latency=None if limit_us is None else per_token_us <= limit_us,
    )


def _usd(surface: Surface, tokens_per_s: float) -> float | None:
    scenario = surface.scenario
    if scenario.price is None:
        return None
    return float(usd_per_million_tokens(scenario.usd_per_gpu_hour, scenario.gpus, tokens_per_s))


@dataclass(frozen=True, slots=True, kw_only=True)
class _OwnBest:
    candidates: int
    speedup: float
    near: tuple[int, int]
    ends_profile: bool


def _own_best(surface: Surface, at: IntArray, s: int) -> _OwnBest:
    """The best of every count that fits at the last of the batches `at`, and the counts that are as good."""
    found = surface.by_count
    gain, fits = found.speedup[at, s], found.fits[at, s]
    bests = np.where(fits.any(axis=1), np.argmax(np.where(fits, gain, -np.inf), axis=1), 0)
    best, last = int(bests[-1]), found.counts.size - 1
    return _OwnBest(
        candidates=int(found.counts[best]),
        speedup=float(gain[-1, best]),
        near=near_best(found.counts, gain[-1], fits[-1], best),
        ends_profile=last > 0 and bool((bests == last).any()) and surface.ends_profile,
    )


def _with_accepted_rows(surface: Surface, at: int, s: int, j: int) -> float | None:
    option, runtime = surface.option_of(j), surface.setting.runtime
    if option is None or not isinstance(option.drafter, Medusa) or runtime.head_rows == "accepted":
        return None
    step_us = surface.on_accepted_rows.cost_at(at, s, j).time_us
    return float(surface.tokens_per_step[j] * surface.decode_us[at, s] / step_us)


def _with_kernels_alone(surface: Surface, at: int, s: int, j: int) -> float | None:
    alone = surface.alone
    if alone is None:
        return None
    return float(surface.tokens_per_step[j] * alone.decode_us[at, s] / alone.cost_at(at, s, j).time_us)


def free_candidates(surface: Surface, within: float) -> IntArray:
    """(B, S) free budget with the drafting that is best for each count: 1 where nothing is free."""
    found = surface.by_count
    return np.asarray(found.counts[free_budget(found.step_us / found.decode_us, within) - 1])


def _next(surface: Surface, family: IntArray, j: int, step_us: FloatArray) -> NextCount | None:
    larger = family[surface.candidates[family] > surface.candidates[j]]
    if larger.size == 0:
        return None
    following = int(larger[0])
    return NextCount(
        candidates=int(surface.candidates[following]),
        tokens_gain=float(surface.tokens_per_step[following] / surface.tokens_per_step[j]) - 1.0,
        step_cost=float(step_us[following] / step_us[j]) - 1.0,
    )


def _held_by(surface: Surface, at: int, s: int, j: int, family: IntArray) -> HeldBy:
    """Why not more at one batch and length: what decided between configuration j and its larger siblings."""
    larger = family[surface.candidates[family] > surface.candidates[j]]
    if larger.size == 0:
        ends = _depth_ends(surface, j) or (
            surface.candidates[j] == surface.counts[-1] and surface.ends_profile
        )
        return "end of the acceptance" if ends else "end of the search"
    gain, fits = surface.speedup[at, s, larger], surface.fits[at, s, larger]
    better = gain > surface.speedup[at, s, j]
    if (better & fits).any():
        return "shared row"
    return "memory" if better.any() else "cost"


def _depth_ends(surface: Surface, j: int) -> bool:
    """Whether a chain is as long as its acceptance was measured."""
    option, heads = surface.option_of(j), surface.scenario.profile.heads
    return option is not None and option.chain and heads is not None and option.depth >= heads.heads


def _cliff(counts: IntArray, times: FloatArray, candidates: int) -> int | None:
    """The first count from `candidates` up behind which the step jumps; None without counts to compare."""
    if counts.size <= _NEIGHBOURS:
        return None
    places = cliffs(times) - 1
    behind = counts[places][counts[places] >= candidates]
    return int(behind[0]) if behind.size else None


@dataclass(frozen=True, slots=True)
class BatchRange:
    """Places `first` to `last` (inclusive) on the batch axis, all run with one configuration."""

    first: int
    last: int
    configuration: int


def merge_batches(
    speedup: FloatArray,
    allowed: BoolArray | None = None,
    gain: float = SWITCHING_GAIN,
    apart: IntArray | None = None,
) -> tuple[BatchRange, ...]:
    """The fewest ranges in which no batch loses `gain` or more against its own best configuration.

    speedup: (batches, configurations), column 0 plain decoding (1.0). allowed: the same shape, False where
    a configuration does not fit in memory; plain decoding is allowed where nothing else is. apart:
    (batches,) numbers of which a range has one only. A batch speculates where an allowed configuration gives
    it more than 1, and then with one that does: its verdict is the same in every range that it is asked in.
    Within a range the configuration with the largest mean log speedup is taken, ties to the first.
    Raises UsageError for a gain outside [0, 1).
    """
    if not 0.0 <= gain < 1.0:
        raise UsageError(f"switching gain {gain:g}: from 0 to below 1 is allowed (0.03 is 3 %)")
    log_speedup = np.log(speedup)
    if allowed is not None:
        usable = allowed.copy()
        usable[:, 0] |= ~usable.any(axis=1)
        log_speedup = np.where(usable, log_speedup, -np.inf)
    good = log_speedup > log_speedup.max(axis=1, keepdims=True) + np.log1p(-gain)
    good |= log_speedup == log_speedup.max(axis=1, keepdims=True)
    pays = np.asarray((log_speedup[:, 1:] > 0.0).any(axis=1))
    good[pays] &= log_speedup[pays] > 0.0
    good[~pays] = np.arange(speedup.shape[1]) == 0
    alike = pays[1:] == pays[:-1] if apart is None else (pays[1:] == pays[:-1]) & (apart[1:] == apart[:-1])
    ranges = []
    first = 0
    while first < good.shape[0]:
        common = good[first]
        last = first
        while last + 1 < good.shape[0] and alike[last] and (common & good[last + 1]).any():
            last += 1
            common = common & good[last]
        mean = np.where(common, _column_sums(log_speedup[first : last + 1], common), -np.inf)
        best = np.argmax(mean >= mean.max() - _TIE * (last + 1 - first))
        ranges.append(BatchRange(first, last, int(best)))
        first = last + 1
    return tuple(ranges)


def _column_sums(log_speedup: FloatArray, kept: BoolArray) -> FloatArray:
    """Sums over batches of the kept columns; the others may hold -inf and stay 0."""
    sums = np.zeros(kept.shape)
    sums[kept] = log_speedup[:, kept].sum(axis=0)
    return sums
