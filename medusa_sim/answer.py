"""What a sweep says: the best count per batch and length, the free budget, where it stops paying."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from medusa_sim.operators import FloatArray
from medusa_sim.speedup import Steps, speedup, steps, tokens_per_s
from medusa_sim.step import Setting
from medusa_sim.sweep import SweepSetting, SweepTable

IntArray = npt.NDArray[np.int64]

FREE_WITHIN = 1.10
"""Overhead up to which candidates count as free."""
FREE_SEARCHED = 256
"""The free budget is searched over every count from 1 to this."""
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


def cliffs(verify_us: FloatArray, rise: float = CLIFF) -> IntArray:
    """Counts n (from 1) after which the next count costs at least `rise` more; verify_us by count from 1."""
    return np.flatnonzero(verify_us[1:] > verify_us[:-1] * (1.0 + rise)) + 1


def cheaper_pairs(candidates: IntArray, verify_us: FloatArray) -> list[tuple[int, int]]:
    """(count, larger count that costs at least 1 % less), for counts in ascending order."""
    pairs = []
    for i in range(candidates.size - 1):
        later = np.flatnonzero(verify_us[i + 1 :] < verify_us[i] * (1.0 - CHEAPER))
        if later.size:
            pairs.append((int(candidates[i]), int(candidates[i + 1 + later[-1]])))
    return pairs


def last_paying_batch(sweep_setting: SweepSetting, seq_len: IntArray, candidates: IntArray) -> IntArray:
    """Largest batch (to BATCHES_SEARCHED) up to which some count of more than one token pays, per length.

    Pays: speedup above 1 at the same batch and length. 0 where it does not pay at batch 1. Memory is
    left out.
    """
    counts = candidates[candidates > 1]
    if counts.size == 0:
        return np.zeros(seq_len.shape, dtype=np.int64)
    batches = np.unique(np.concatenate([np.arange(1, 129), np.arange(128, BATCHES_SEARCHED + 1, 8)]))
    setting = sweep_setting.setting
    grid = steps(setting, batches[:, None, None], seq_len[None, :, None], counts[None, None, :])
    tokens = sweep_setting.acceptance.tokens_per_step(counts)
    pays = (speedup(tokens, grid.verify_us / grid.decode.time_us) > 1.0).any(axis=-1)
    stops = np.where((~pays).any(axis=0), np.argmax(~pays, axis=0), batches.size)
    return np.where(stops > 0, batches[np.maximum(stops, 1) - 1], 0)
