"""What the plots of a sweep show: one context length, every count from 1, each batch of the grid."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from medusa_sim.arrays import FloatArray, IntArray
from medusa_sim.plan.insights import cliffs, every_count
from medusa_sim.plan.speedup import speedup, speedup_band
from medusa_sim.plan.sweep import SweepSetting
from medusa_sim.step.grid import Grid
from medusa_sim.step.step import StepTime
from medusa_sim.step.workload import PARTS

MOST_BATCHES = 64
LAUNCH_PART = "launch gaps"


@dataclass(frozen=True, slots=True, kw_only=True)
class LengthView:
    """Steps and speedups at one length: arrays (batch, count) for counts 1, 2, ..., n.

    best: index into `counts` of the best count of the grid, per batch. grid_counts: the counts that
    were asked for. parts_us: slices of the verification step; decode_parts_us: of the plain step.
    cliffs: per batch, counts after which the next one costs clearly more.
    """

    seq_len: int
    batch: IntArray
    counts: IntArray
    grid_counts: IntArray
    speedup: FloatArray
    speedup_low: FloatArray
    speedup_high: FloatArray
    verify_us: FloatArray
    decode_us: FloatArray
    parts_us: dict[str, FloatArray]
    decode_parts_us: dict[str, FloatArray]
    best: IntArray
    cliffs: tuple[IntArray, ...]


def length_view(sweep_setting: SweepSetting, grid: Grid, seq_len: int) -> LengthView:
    """The view of one length; of more than MOST_BATCHES batches an even choice is shown."""
    batch = evenly(grid.batch, MOST_BATCHES)
    largest = int(grid.candidates.max())
    computed = every_count(sweep_setting.setting, batch, np.asarray([seq_len]), largest)
    counts = np.arange(1, largest + 1)
    tokens = sweep_setting.acceptance.tokens_per_step(counts)[None, None, :]
    band = sweep_setting.acceptance.band(counts)
    low, high = speedup_band(computed, tokens, (band[0][None, None, :], band[1][None, None, :]))
    gain = speedup(tokens, computed.overhead)[:, 0]
    at_grid = np.where(np.isin(counts, grid.candidates), gain, -np.inf)
    verify_us = computed.verify_us[:, 0]
    shape = verify_us.shape
    return LengthView(
        seq_len=seq_len,
        batch=batch,
        counts=counts,
        grid_counts=grid.candidates,
        speedup=gain,
        speedup_low=low[:, 0],
        speedup_high=high[:, 0],
        verify_us=verify_us,
        decode_us=computed.decode.time_us[:, 0, 0],
        parts_us=_parts(computed.verify, shape),
        decode_parts_us={name: part[:, 0] for name, part in _parts(computed.decode, (shape[0], 1)).items()},
        best=np.argmax(at_grid, axis=1),
        cliffs=tuple(cliffs(row) for row in verify_us),
    )


def _parts(step: StepTime, shape: tuple[int, int]) -> dict[str, FloatArray]:
    """Slices that take time, in the order in which they stack, as (batch, count)."""
    whole = (shape[0], 1, shape[1])
    found: dict[str, FloatArray] = {
        part: np.broadcast_to(step.parts_us[part], whole)[:, 0] for part in PARTS if part in step.parts_us
    }
    if step.launch_us > 0.0:
        found[LAUNCH_PART] = np.full(shape, step.launch_us)
    return found


def evenly(values: IntArray, most: int) -> IntArray:
    """At most `most` of the values, the first and the last among them."""
    if values.size <= most:
        return values
    return values[np.unique(np.linspace(0, values.size - 1, most).round().astype(np.int64))]
