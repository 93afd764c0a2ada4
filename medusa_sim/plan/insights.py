"""What a sweep says: the best count per batch and length, the free budget, where it stops paying."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from medusa_sim.arrays import FloatArray, IntArray
from medusa_sim.plan.speedup import Steps, speedup, steps, tokens_per_s
from medusa_sim.plan.sweep import SweepSetting, SweepTable, sweep
from medusa_sim.step.grid import Grid
from medusa_sim.step.memory import step_memory_bytes, usable_memory_bytes
from medusa_sim.step.step import Setting, decode_step, drafting_steps, verification_step

FREE_WITHIN = 1.10
"""Overhead up to which candidates count as free."""
SEARCHED = 256
"""The free budget and the best of all counts are searched over every count from 1 to this."""
BATCHES_SEARCHED = 1024
"""The batch from which speculation no longer pays is searched from 1 to this."""
CLIFF = 0.05
"""Rise of the step between two neighbouring counts that is called a cliff."""
CHEAPER = 0.01
"""A larger count is called cheaper where its step is at least this share shorter."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Best:
    """The count with the largest speedup among those that fit in memory, one entry per (batch, seq_len).

    columns: the sweep's numbers in the row of that count (`candidates`, `speedup`, ...); bound: its
    `Bound` code. plain_tokens_per_s: throughput at one candidate of that batch and length.
    """

    columns: dict[str, npt.NDArray[np.generic]]
    bound: npt.NDArray[np.int8]
    plain_tokens_per_s: FloatArray


def best_counts(table: SweepTable, counts: int) -> Best:
    """Best row of each (batch, seq_len) of a table whose innermost axis has `counts` entries.

    Ties go to the smaller count. Where nothing fits in memory, all counts compete.
    """
    cases = {name: np.asarray(column).reshape(-1, counts) for name, column in table.numbers.items()}
    gain = cases["speedup"].astype(np.float64)
    if cases["fits_memory"].dtype == np.bool_:
        fits = cases["fits_memory"].astype(np.bool_)
        gain = np.where(fits | ~fits.any(axis=1, keepdims=True), gain, -np.inf)
    index = np.argmax(gain, axis=1)
    rows = np.arange(index.size)
    batch, decode_us = (cases[name][:, 0].astype(np.float64) for name in ("batch", "decode_step_us"))
    has_rate = ~np.isnan(cases["tokens_per_s"][:, 0].astype(np.float64))
    return Best(
        columns={name: values[rows, index] for name, values in cases.items()},
        bound=table.codes["bound"].reshape(-1, counts)[rows, index],
        plain_tokens_per_s=np.where(has_rate, tokens_per_s(batch, np.ones(()), decode_us), np.nan),
    )


def free_budget(overhead: FloatArray, within: float = FREE_WITHIN) -> IntArray:
    """Largest count such that every count up to it has overhead <= `within`.

    overhead: shape (..., counts) for counts 1, 2, 3, ... ; the result has shape (...).
    """
    beyond = overhead > within * (1.0 + 1e-12)
    first = np.argmax(beyond, axis=-1)
    budget: IntArray = np.where(beyond.any(axis=-1), first, overhead.shape[-1]).astype(np.int64)
    return budget


def every_count(setting: Setting, batch: IntArray, seq_len: IntArray, largest: int) -> Steps:
    """Steps for every count from 1 to `largest`: shape (batch, seq_len, largest)."""
    counts = np.arange(1, largest + 1)[None, None, :]
    return steps(setting, batch[:, None, None], seq_len[None, :, None], counts)


@dataclass(frozen=True, slots=True, kw_only=True)
class FineSearch:
    """What the grid may have stepped over, one entry per (batch, seq_len), length innermost.

    free: the free budget of the whole step; free_verification: the same without drafting. count,
    speedup: the best of every count that the acceptance profile covers, to SEARCHED, at the same batch
    and length; memory is left out.
    """

    free: IntArray
    free_verification: IntArray
    count: IntArray
    speedup: FloatArray


def fine_search(sweep_setting: SweepSetting, batch: IntArray, seq_len: IntArray) -> FineSearch:
    """Search every count from 1 to SEARCHED for each batch and length."""
    covered = min(SEARCHED, sweep_setting.acceptance.candidates_max)
    tokens = sweep_setting.acceptance.tokens_per_step(np.arange(1, covered + 1))
    setting = sweep_setting.setting
    counts = np.arange(1, SEARCHED + 1)[None, :]
    free, free_verification, count, gain = [], [], [], []
    for one in batch:
        computed = every_count(setting, one[None], seq_len, SEARCHED)
        overhead = (computed.verify_us / computed.decode.time_us)[0]
        verification = verification_step(setting, one, seq_len[:, None], counts).time_us
        decode_us = computed.decode.time_us[0]
        speedups = speedup(tokens, overhead[:, :covered])
        best = np.argmax(speedups, axis=-1)
        free.append(free_budget(overhead))
        free_verification.append(free_budget(np.where(counts == 1, 1.0, verification / decode_us)))
        count.append(best + 1)
        gain.append(speedups[np.arange(best.size), best])
    return FineSearch(
        free=np.concatenate(free),
        free_verification=np.concatenate(free_verification),
        count=np.concatenate(count),
        speedup=np.concatenate(gain),
    )


def cliffs(verify_us: FloatArray, rise: float = CLIFF) -> IntArray:
    """Counts n (from 1) after which the next one costs at least `rise` more, out of line with its neighbours.

    verify_us by count from 1. A steady climb, where every token costs as much, has no cliffs.
    """
    growth = verify_us[1:] / verify_us[:-1] - 1.0
    window = np.ones(5)
    near = np.convolve(np.abs(growth), window, mode="same") - np.abs(growth)
    neighbours = np.convolve(np.ones_like(growth), window, mode="same") - 1.0
    return np.flatnonzero((growth >= rise) & (growth * neighbours > 2.0 * near)) + 1


def cheaper_pairs(candidates: IntArray, verify_us: FloatArray) -> list[tuple[int, int]]:
    """(count, larger count that costs at least 1 % less), for counts in ascending order."""
    pairs = []
    for i in range(candidates.size - 1):
        later = np.flatnonzero(verify_us[i + 1 :] < verify_us[i] * (1.0 - CHEAPER))
        if later.size:
            pairs.append((int(candidates[i]), int(candidates[i + 1 + later[-1]])))
    return pairs


@dataclass(frozen=True, slots=True, kw_only=True)
class Paying:
    """Up to which batch speculation pays, one entry per length.

    searched: the largest batch looked at, which is the largest that fits in memory or BATCHES_SEARCHED; 0
    where batch 1 does not fit. spans: every range of those batches where some count of more than one token
    has a speedup above 1 at the same batch and length.
    """

    searched: IntArray
    spans: tuple[tuple[tuple[int, int], ...], ...]

    @property
    def last(self) -> IntArray:
        """The largest batch up to which it pays from batch 1 on; 0 where it does not at batch 1."""
        return np.asarray([spans[0][1] if spans and spans[0][0] == 1 else 0 for spans in self.spans])


def paying_batches(sweep_setting: SweepSetting, seq_len: IntArray) -> Paying:
    """Search batches and counts for where speculation stops paying."""
    covered = sweep_setting.acceptance.candidates_max
    counts = np.concatenate([np.arange(2, 17), np.arange(24, SEARCHED + 1, 8)])
    counts = counts[counts <= covered]
    batches = np.unique(np.concatenate([np.arange(1, 129), np.arange(128, BATCHES_SEARCHED + 1, 8)]))
    fits = _fits(sweep_setting, batches[:, None], seq_len[None, :])
    searched = np.where(fits, batches[:, None], 0).max(axis=0)
    if counts.size == 0:
        return Paying(searched=searched, spans=((),) * seq_len.size)
    setting = sweep_setting.setting
    grid = steps(setting, batches[:, None, None], seq_len[None, :, None], counts[None, None, :])
    tokens = sweep_setting.acceptance.tokens_per_step(counts)
    pays = (speedup(tokens, grid.verify_us / grid.decode.time_us) > 1.0).any(axis=-1)
    within = pays & (batches[:, None] <= searched)
    spans = tuple(_spans(batches, within[:, i]) for i in range(seq_len.size))
    return Paying(searched=searched, spans=spans)


def _spans(batches: IntArray, chosen: npt.NDArray[np.bool_]) -> tuple[tuple[int, int], ...]:
    """(first, last) of each run of chosen batches."""
    edges = np.flatnonzero(np.diff(np.concatenate([[False], chosen, [False]]).astype(np.int8)))
    return tuple(
        (int(batches[first]), int(batches[end - 1]))
        for first, end in zip(edges[::2], edges[1::2], strict=True)
    )


def _fits(sweep_setting: SweepSetting, batch: IntArray, seq_len: IntArray) -> npt.NDArray[np.bool_]:
    """Whether two candidates fit in memory; always for a single block, which is no model."""
    setting = sweep_setting.setting
    if setting.scope == "block":
        return np.ones(np.broadcast_shapes(batch.shape, seq_len.shape), dtype=np.bool_)
    needed = step_memory_bytes(setting.model, setting.drafter, batch, seq_len, 2)
    return np.asarray(needed <= usable_memory_bytes(sweep_setting.gpu))


@dataclass(frozen=True, slots=True, kw_only=True)
class Cheaper:
    """At this batch and length `more` candidates cost less than `less` of them."""

    batch: int
    seq_len: int
    less: int
    more: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """What one GPU and model give over a grid; arrays have one entry per (batch, seq_len).

    drafting_share: what drafting for two candidates
    adds to a plain step at the first batch and length (0 where the scope has no drafter).
    """

    grid: Grid
    best: Best
    fine: FineSearch
    paying: Paying
    drafting_share: float
    cheaper: tuple[Cheaper, ...]


def answer(sweep_setting: SweepSetting, grid: Grid) -> Answer:
    """Everything that a reader of the sweep wants to know first."""
    tables = list(sweep([sweep_setting], grid))
    parts = [best_counts(table, grid.candidates.size) for table in tables]
    setting, batch, seq_len = sweep_setting.setting, int(grid.batch[0]), int(grid.seq_len[0])
    drafting_us = sum(float(step.time_us) for step in drafting_steps(setting, batch, seq_len, 2))
    return Answer(
        grid=grid,
        best=Best(
            columns={
                name: np.concatenate([part.columns[name] for part in parts]) for name in parts[0].columns
            },
            bound=np.concatenate([part.bound for part in parts]),
            plain_tokens_per_s=np.concatenate([part.plain_tokens_per_s for part in parts]),
        ),
        fine=fine_search(sweep_setting, grid.batch, grid.seq_len),
        paying=paying_batches(sweep_setting, grid.seq_len),
        drafting_share=drafting_us / float(decode_step(setting, batch, seq_len).time_us),
        cheaper=tuple(pair for table in tables for pair in _cheaper(table, grid)),
    )


def _cheaper(table: SweepTable, grid: Grid) -> Iterator[Cheaper]:
    counts = grid.candidates.size
    cases = {name: np.asarray(table.numbers[name]).reshape(-1, counts) for name in ("batch", "seq_len")}
    verify_us = np.asarray(table.numbers["verify_step_us"], dtype=np.float64).reshape(-1, counts)
    for case, times_us in enumerate(verify_us):
        for less, more in cheaper_pairs(grid.candidates, times_us):
            batch, seq_len = int(cases["batch"][case, 0]), int(cases["seq_len"][case, 0])
            yield Cheaper(batch=batch, seq_len=seq_len, less=less, more=more)
