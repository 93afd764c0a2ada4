"""A scenario on a grid: every way of drafting x every candidate count x every batch and length, at once.

This is the only thing that prices a grid. Verification is priced once on the (batch, length, candidates)
grid, the drafting of each option on the small axes that it depends on; both are then joined, either as one
axis of configurations (`Surface.step_us`, for schedules) or with the best drafting of each count
(`Surface.by_count`, for sweeps and curves). Configuration 0 is plain decoding, so that choosing not to
speculate is a choice like any other.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np

from medusa_sim.arrays import BoolArray, FloatArray, IntArray, among, distinct, in_quadrature
from medusa_sim.errors import MedusaSimError, UsageError
from medusa_sim.plan.best_by_count import ByCount, band, opened, tokens_per_s
from medusa_sim.plan.draft_options import DraftOption
from medusa_sim.plan.drafted import Room
from medusa_sim.plan.priced_steps import PLAIN, PricedSteps, cell, entry
from medusa_sim.plan.scenario import Scenario
from medusa_sim.step.compose import overhead_halves
from medusa_sim.step.drafter.base import Drafter
from medusa_sim.step.memory import drafter_bytes, memory_parts
from medusa_sim.step.server import Served, served
from medusa_sim.step.step import StepTime, decode_step
from medusa_sim.step.workload import Grid
from medusa_sim.units import US_PER_S

LARGEST_SEARCH = 60_000_000
"""Cells (batch x length x configurations) searched at most: about 2 GB of arrays."""
_TOGETHER = 4
SLOWER = 0.03
"""Of the throughput of plain decoding: what a request more may take away before an answer names it."""
NO_LIMIT = 1 << 40
"""Largest batch of scope `block`, which is no model and keeps nothing in memory."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Surface(PricedSteps):
    """Every configuration at every batch and length: B batches, S lengths, C counts, J configurations.

    Steps of requests in flight around each length are priced beside, unless these are.
    """

    @cached_property
    def alone(self) -> Surface | None:
        """The same with the engine's kernels alone; None where the runtime is no engine."""
        runtime = self.setting.runtime
        if runtime.engine is None:
            return None
        return replace(self, setting=replace(self.setting, runtime=runtime.kernels_alone))

    @cached_property
    def on_accepted_rows(self) -> Surface:
        """The same with Medusa heads on accepted rows alone; its target passes are these."""
        runtime = replace(self.setting.runtime, head_rows="accepted")
        surface = replace(self, setting=replace(self.setting, runtime=runtime))
        vars(surface).update(decode=self.decode, verify=self.verify)
        return surface

    @cached_property
    def step_us(self) -> FloatArray:
        """(B, S, J) the whole step of every configuration."""
        step = np.empty((self.batch.size, self.seq_len.size, self.candidates.size))
        step[..., :1] = self.decode.time_us
        for index, place in enumerate(self.configurations):
            step[..., place] = self.time_of(index)
        return step

    @cached_property
    def speedup(self) -> FloatArray:
        """(B, S, J) over plain decoding at the batch and length: the step's, with traffic the server's."""
        if self.scenario.traffic is None:
            return self.step_speedup
        return np.asarray(self.token_us[..., :1] / self.token_us)

    @cached_property
    def step_speedup(self) -> FloatArray:
        """(B, S, J) tokens per step over overhead."""
        gain: FloatArray = self.tokens_per_step * self.decode_us[..., None] / self.step_us
        return gain

    @cached_property
    def own_us(self) -> FloatArray:
        """(B, S, J) the step's part of `token_us`: of the requests in flight, with traffic."""
        return np.asarray((self._flight or self).step_us / self.tokens_per_step)

    @property
    def tpot_us(self) -> FloatArray:
        """(B, S, J) time per token of a request from its first on: of steps, with traffic a server's."""
        return self._waits.tpot_us

    @property
    def token_us(self) -> FloatArray:
        """(B, S, J) the same with its own prompt: what the rate of all requests tells."""
        return self._waits.token_us

    @cached_property
    def _waits(self) -> Served:
        traffic, tokens, batch = self.scenario.traffic, self.tokens_per_step, self.batch[:, None, None]
        own = self.own_us
        return served(
            self.setting,
            own * tokens,
            batch,
            self.candidates,
            tokens,
            traffic,
            attention_us=self._attention_us(1 + np.searchsorted(self.counts, self.candidates[1:])),
            drafter=self.loaded_drafter,
        )

    def _attention_us(self, columns: IntArray) -> FloatArray:
        """(B, S, 1 + columns) attention in the plain step and in verification of some counts."""
        steps = self._flight or self

        def attention(step: StepTime, width: int) -> FloatArray:
            shape = self.batch.size, self.seq_len.size, width
            return np.broadcast_to(step.parts_us.get("attention", np.zeros(())), shape)

        plain = attention(steps.decode, 1)
        if not columns.size:
            return plain
        return np.concatenate([plain, attention(steps.verify, 1 + self.counts.size)[..., columns]], axis=-1)

    def served_at(self, at: int, s: int, configuration: int) -> Served:
        """One configuration at one batch and length."""
        tokens = self.tokens_per_step[configuration]
        step_us = self.own_us[at, s, configuration] * tokens
        return self.served_step(step_us, at, s, int(self.candidates[configuration]), tokens)

    def served_step(
        self, step_us: FloatArray, at: int, s: int, count: int, tokens_per_step: FloatArray
    ) -> Served:
        """A step of `step_us` at one batch and length, that verifies a count and emits so many tokens."""
        columns = 1 + np.searchsorted(self.counts, [count] if count > 1 else [])
        return served(
            self.setting,
            step_us,
            int(self.batch[at]),
            count,
            tokens_per_step,
            self.scenario.traffic,
            attention_us=self._attention_us(columns)[at, s, -1],
            drafter=self.loaded_drafter,
        )

    @property
    def loaded_drafter(self) -> Drafter | None:
        """What reads prompts beside the model, whatever counts are asked about: with all its heads."""
        return self.scenario.drafting.drafter(self.scenario.depth) if self.options else None

    @cached_property
    def max_batch(self) -> IntArray:
        """(S, J) largest batch whose weights, drafter, KV cache and activations fit; 0 where none does."""
        lengths, shard = self.seq_len[:, None], self.setting.shard
        if self.setting.scope == "block":
            return np.full((lengths.size, self.candidates.size), NO_LIMIT)
        added = np.asarray([(0.0,) * 3, *(drafter_bytes(shard, option.drafter) for option in self.options)])
        weights, kv, slots = added[self.option + 1].T
        # each sequence adds the same bytes
        none, one = (
            memory_parts(shard, weights, kv, slots, batch, lengths, self.candidates).total for batch in (0, 1)
        )
        room = self.scenario.usable_memory_bytes - none
        return np.maximum(np.floor(room / (one - none)), 0.0).astype(np.int64)

    @cached_property
    def max_batch_by_count(self) -> IntArray:
        """(S, 1 + C) the same with any option, plain decoding first."""
        largest = np.zeros((self.seq_len.size, 1 + self.counts.size), dtype=np.int64)
        largest[:, 0] = self.max_batch[:, PLAIN]
        for index, place in enumerate(self.configurations):
            of_count = largest[:, self.places(index)]
            np.maximum(of_count, self.max_batch[:, place], out=of_count)
        return largest

    @cached_property
    def room(self) -> Room:
        """Where memory decides between options."""
        each = np.full((len(self.options), *self.max_batch_by_count.shape), NO_LIMIT)
        for index, place in enumerate(self.configurations):
            each[index][:, self.places(index)] = self.max_batch[:, place]
        return Room(
            each,
            each.min(axis=(0, 2), initial=NO_LIMIT),
            self.max_batch_by_count[:, 1:].max(axis=1, initial=0),
        )

    @cached_property
    def fits(self) -> BoolArray:
        """(B, S, J) whether the batch fits in memory."""
        return np.asarray(self.batch[:, None, None] <= self.max_batch)

    @cached_property
    def slower_with_more(self) -> tuple[tuple[int, float], ...]:
        """(batch, change) from which the next searched one gives over SLOWER less plain throughput.

        Over all lengths, the largest first: a row of tiles begins there, or a graph of another size.
        """
        rate = self.tokens_per_s[..., 0] if self.scenario.scope == "model" else np.ones((1, 1))
        change: FloatArray = np.min(np.diff(rate, axis=0) / rate[:-1], axis=1)
        if not change.size:
            return ()
        named = (change < -SLOWER) & np.all(self.by_count.fits[1:, :, 0], axis=1)
        return tuple((int(self.batch[i]), float(change[i])) for i in np.argsort(change) if named[i])

    @cached_property
    def slower_format_us(self) -> tuple[float, float] | None:
        """The plain step at the first batch and length, and that of the model as published, if it is quicker.

        Narrow weights lose where a GPU's share of a layer is small: each kernel's start then counts more.
        """
        scenario = self.scenario
        asked = scenario.arguments
        if scenario.scope == "block" or scenario.runtime.local or not (asked.dtype or asked.weight_dtype):
            return None
        try:
            published = scenario.but(dtype=None, weight_dtype=None, kernels=None)
            plain = decode_step(published.setting, self.batch[0], self.seq_len[0])
        except MedusaSimError:  # the GPU has no kernels for it
            return None
        own_us, published_us = float(self.decode_us[0, 0]), float(plain.time_us)
        return (own_us, published_us) if own_us > published_us else None

    @cached_property
    def by_count(self) -> ByCount:
        """The best drafting of each count at each batch and length."""
        return ByCount(
            counts=np.concatenate([[1], self.counts]).astype(np.int64),
            options=self.options,
            chosen=self.drafted.best(self.verify.cost, self.batch, self.room),
            batch=self.batch,
            max_batch=self.max_batch_by_count,
            decode=self.decode,
            verify=self.verify,
            drafted=self.drafted,
            edge_batches=self._edges,
            edges=None if self._at_edges is None else self._at_edges.by_count,
        )

    @cached_property
    def _edges(self) -> IntArray | None:
        """The most requests that the engine was measured with, and its doublings, below the largest batch."""
        engine = self.setting.runtime.engine
        known = 0 if engine is None else engine.measured_requests
        if not known or self.is_in_flight or not self.batch.size:
            return None
        batches = [known]
        while batches[-1] < self.batch.max():
            batches.append(2 * batches[-1])
        return np.asarray(batches[:-1], dtype=np.int64) if batches[:-1] else None

    @cached_property
    def _at_edges(self) -> Surface | None:
        """The same at these batches, where they are not among its own."""
        if self._edges is None or among(self._edges, self.batch).all():
            return None
        return price(self.scenario, self._edges, self.seq_len, self.options)

    @cached_property
    def served(self) -> Served:
        """Inter-token latency and time per token by count, (B, S, 1 + C), for the scenario's traffic."""
        steps = self.in_flight
        batch = self.batch[:, None, None]
        traffic = self.scenario.traffic
        return served(
            self.setting,
            steps.step_us,
            batch,
            steps.counts,
            steps.tokens_per_step,
            traffic,
            attention_us=self._attention_us(np.arange(1, 1 + self.counts.size)),
            drafter=self.loaded_drafter,
        )

    @cached_property
    def server_speedup(self) -> FloatArray:
        """(B, S, 1 + C) time per token of plain decoding over that of each count, as a server gives them.

        Beside the step both hold what the server does for every token alike (choosing it, the prompts that
        ride along), so that it is nearer to 1 than the step's speedup.
        """
        if self._is_step_alone:
            return self.in_flight.speedup
        time_us = self.served.token_us
        return np.asarray(time_us[..., :1] / time_us)

    @property
    def _is_step_alone(self) -> bool:
        """Whether a server adds nothing to a step."""
        return type(self.served) is Served

    @property
    def gain_by_count(self) -> FloatArray:
        """(B, S, 1 + C) that of `speedup` by count."""
        return self.by_count.speedup if self.scenario.traffic is None else self.server_speedup

    @property
    def band_by_count(self) -> tuple[FloatArray, FloatArray]:
        """(low, high) 80 % of `gain_by_count`."""
        return self.by_count.band if self.scenario.traffic is None else self.server_speedup_band

    @cached_property
    def server_speedup_band(self) -> tuple[FloatArray, FloatArray]:
        """(low, high) 80 % of `server_speedup`: the step's band on the step's part of the time per token."""
        steps = self.in_flight
        if self._is_step_alone:
            return steps.band
        others, gain = _others(self.served, np.s_[...]), self.server_speedup
        low, high = _server_band(gain, self.served.step_share, steps.speedup, steps.band, others)
        if self._edges is None:
            return low, high
        at_low = at_high = None
        if (beyond := self._at_edges) is not None:
            at_low, at_high = (
                np.abs(np.log(end / beyond.server_speedup)) for end in beyond.server_speedup_band
            )
        fewer = opened(np.log(gain / low), self.batch, self._edges, at_low)
        return gain * np.exp(-fewer), gain * np.exp(
            opened(np.log(high / gain), self.batch, self._edges, at_high)
        )

    @cached_property
    def token_band(self) -> tuple[FloatArray, FloatArray]:
        """(low, high) 80 % of the time per token, over it: of step, tokens, sampling and prompts."""
        steps, seen = self.in_flight, self.served
        fewer, more = steps.token_halves
        beside = sum((half**2 for half in seen.halves), np.zeros(()))
        faster = seen.step_share * in_quadrature(np.log(steps.step_us / steps.low_us), more)
        slower = seen.step_share * in_quadrature(np.log(steps.high_us / steps.step_us), fewer)
        faster, slower = np.sqrt(faster**2 + beside), np.sqrt(slower**2 + beside)
        if self._edges is not None:
            at_fast = at_slow = None
            if self._at_edges is not None:
                at_fast, at_slow = (np.abs(np.log(end)) for end in self._at_edges.token_band)
            faster = opened(faster, self.batch, self._edges, at_fast)
            slower = opened(slower, self.batch, self._edges, at_slow)
        return np.exp(-faster), np.exp(slower)

    @cached_property
    def tokens_per_s(self) -> FloatArray:
        """(B, S, 1 + C) tokens per second of the whole batch: of decode steps, with traffic of the server."""
        batch, by_count = self.batch[:, None, None], self.by_count
        if self.scenario.traffic is None:
            return tokens_per_s(batch, by_count.tokens_per_step, by_count.step_us)
        return tokens_per_s(batch, np.ones(()), self.served.token_us)

    @property
    def tokens_per_s_per_user(self) -> FloatArray:
        """(B, S, 1 + C) tokens a second of one request, with traffic from its first token on."""
        if self.scenario.traffic is None:
            return np.asarray(self.tokens_per_s / self.batch[:, None, None])
        return np.asarray(US_PER_S / self.served.tpot_us)

    @cached_property
    def in_flight(self) -> ByCount:
        """`by_count` with the steps of the requests in flight around each length (length bias)."""
        other = self._flight
        return (
            self.by_count
            if other is None
            else replace(
                self.by_count,
                decode=other.decode,
                verify=other.verify,
                drafted=other.drafted,
                edges=None if self._at_edges is None else self._at_edges.in_flight,
            )
        )

    @cached_property
    def _flight(self) -> Surface | None:
        """Priced at the lengths of the requests in flight around each length, where these are others."""
        lengths = self._met
        if self.is_in_flight or np.array_equal(lengths, self.seq_len):
            return None
        return price(self.scenario, self.batch, lengths, self.options)

    @property
    def joules(self) -> FloatArray:
        """(B, S, 1 + C) joules above idle of one GPU in a step of those in flight."""
        steps = self._flight or self
        return self.in_flight.whole(steps.plain_joules, steps.verify_joules, "joules", steps.step_joules)

    def batches(self, rows: slice) -> Surface:
        """Some of the batches: a table is computed block by block, each small enough for a core's cache."""
        part, other = self.of_batches(rows), self._flight
        vars(part)["_flight"] = None if other is None else other.of_batches(rows)
        for name in ("max_batch", "max_batch_by_count", "room"):
            vars(part)[name] = getattr(self, name)
        return part

    def joules_at(self, at: int, s: int, configuration: int) -> float:
        """Of `joules` in one configuration; nan where the GPU's power is not known."""
        steps, index, column = (
            self._flight or self,
            int(self.option[configuration]),
            self.column(configuration),
        )
        if index < 0:
            return float(entry(steps.plain_joules, at, s, 0))
        verified = entry(steps.verify_joules, at, s, steps.places(index).start + column)
        return float(verified + entry(steps.drafting_joules(index), at, s, column))

    def bands_at(self, at: IntArray, s: int, configuration: int) -> tuple[FloatArray, FloatArray]:
        """(low, high) of the 80 % interval of the speedup of one configuration at several batches."""
        low, high = self._bands_at(at, s, configuration)
        edges, batch = self._edges, self.batch[at]
        if edges is None or batch.max() <= edges[0]:
            return low, high
        other = self._at_edges or self
        rows = np.asarray([int(np.flatnonzero(other.batch == edge)[0]) for edge in edges])
        gain, at_gain = self.speedup[at, s, configuration], other.speedup[rows, s, configuration]
        fewer, more = (np.abs(np.log(end / at_gain)) for end in other._bands_at(rows, s, configuration))
        low = gain * np.exp(-opened(np.log(gain / low), batch, edges, fewer))
        return low, gain * np.exp(opened(np.log(high / gain), batch, edges, more))

    def _bands_at(self, at: IntArray, s: int, configuration: int) -> tuple[FloatArray, FloatArray]:
        option, gain = self.option_of(configuration), self.speedup[at, s, configuration]
        tokens = self.tokens_per_step[configuration]
        if option is None or tokens == 1.0:  # exact, as plain decoding is
            return gain, gain
        steps = self._flight or self
        cost, plain = steps.cost_at(at, s, configuration), cell(steps.decode.cost, at, s, 0)
        fewer, more = (half[self.column(configuration)] for half in option.halves)
        value = tokens * plain.time_us / cost.time_us
        ends = band(value, (fewer, more), overhead_halves(cost, plain))
        if self.scenario.traffic is None:
            return ends
        share = np.broadcast_to(self._waits.step_share, self.token_us.shape)[at, s, configuration]
        return _server_band(gain, share, value, ends, _others(self._waits, np.s_[at, s, configuration]))


def _others(seen: Served, place: Any) -> FloatArray:
    """Squared half-widths of the logarithm of a server's speedup from what stands beside its steps.

    An error of what both servers pay moves their ratio by the difference of the two shares alone.
    """
    square = np.zeros(())
    for half in seen.halves:
        each = np.broadcast_to(half, seen.token_us.shape)
        beside = np.broadcast_to(each[..., :1], each.shape)
        square = square + (each[place] - beside[place]) ** 2
    return square


def _server_band(
    gain: FloatArray,
    share: FloatArray,
    value: FloatArray,
    ends: tuple[FloatArray, FloatArray],
    others: FloatArray,
) -> tuple[FloatArray, FloatArray]:
    """Interval of a server's speedup.

    That of the step's, `value`, on its share of the time per token, and in quadrature `others`.
    """
    low, high = (np.log1p(share * (value / end - 1.0)) for end in ends)
    return gain * np.exp(-np.sqrt(low**2 + others)), gain * np.exp(np.sqrt(high**2 + others))


def price(
    scenario: Scenario,
    batch: Sequence[int] | IntArray,
    seq_len: Sequence[int] | IntArray,
    options: Sequence[DraftOption] | None = None,
) -> Surface:
    """Price a scenario at every batch and length with these ways of drafting (None: all of them).

    Raises SpecError or CoverageError from the latency model, UsageError where the profile cannot describe the
    drafter.
    """
    return all_priced(unpriced(scenario, batch, seq_len, options))


def all_priced(surface: Surface) -> Surface:
    """The surface with all its steps priced. Raises SpecError or CoverageError from the latency model."""
    _ = surface.decode, surface.verify, surface.drafting  # what cannot be priced is refused here
    return surface


def unpriced(
    scenario: Scenario,
    batch: Sequence[int] | IntArray,
    seq_len: Sequence[int] | IntArray,
    options: Sequence[DraftOption] | None = None,
    *,
    in_flight: bool = False,
) -> Surface:
    """`price` of which each step is priced when it is asked for. Raises UsageError.

    in_flight: the steps that the scenario's traffic meets around each length, and those alone.
    """
    chosen = tuple(scenario.options() if options is None else options)
    batches, lengths = np.asarray(batch, dtype=np.int64), np.asarray(seq_len, dtype=np.int64)
    configurations = 1 + sum(option.candidates.size for option in chosen)
    if batches.size * lengths.size * configurations > LARGEST_SEARCH:
        raise UsageError(
            f"{batches.size} batches x {lengths.size} lengths x {configurations} configurations are too "
            "many; search fewer lengths, a smaller range of batches or fewer candidates"
        )
    counts = distinct(np.empty(0, np.int64), *(option.candidates for option in chosen))
    return Surface(
        scenario=scenario,
        setting=scenario.setting,
        batch=batches,
        seq_len=lengths,
        counts=counts,
        options=chosen,
        option=np.concatenate([[-1], *(np.full(o.candidates.size, i) for i, o in enumerate(chosen))]),
        candidates=np.concatenate([[1], *(option.candidates for option in chosen)]).astype(np.int64),
        tokens_per_step=np.concatenate([[1.0], *(option.tokens_per_step for option in chosen)]),
        is_in_flight=in_flight,
    )


def grid_surface(scenario: Scenario, grid: Grid) -> Surface:
    """The surface of a grid with its own counts alone, not priced yet."""
    largest = int(max(grid.candidates.max(), 2))
    options = at_counts(scenario.options(largest), grid.candidates)
    return unpriced(scenario, grid.batch, grid.seq_len, options)


def in_groups(lengths: int) -> list[slice]:
    """Places of the lengths that a search prices at once, each at the batches of all."""
    return [slice(first, min(first + _TOGETHER, lengths)) for first in range(0, lengths, _TOGETHER)]


def at_counts(options: Sequence[DraftOption], candidates: IntArray) -> tuple[DraftOption, ...]:
    """The options with those of their counts that are listed; options without any are left out."""
    kept = (option.only(candidates) for option in options)
    return tuple(option for option in kept if option is not None)
