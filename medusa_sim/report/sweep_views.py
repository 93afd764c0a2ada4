"""What the plots of a sweep show: one context length, every count from 1, each batch of the grid."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from medusa_sim.arrays import FloatArray, IntArray
from medusa_sim.plan.curve import cliffs
from medusa_sim.plan.scenario import Scenario
from medusa_sim.plan.surface import price
from medusa_sim.report.figures.style import BESIDE
from medusa_sim.step.grid import Grid

MOST_BATCHES = 64
_ROUNDING = 1e-9
"""Share of a step that is left by sums of its parts alone."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LengthView:
    """Steps and speedups at one length: arrays (batch, count) for every count described, from 1 up.

    best: index into `counts` of the count that is marked, per batch; marked: what that is. grid_counts: the
    counts that were asked for. parts_us: slices of the verification step; decode_parts_us: of the plain step.
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
    marked: str
    cliffs: tuple[IntArray, ...]


def length_view(
    scenario: Scenario, grid: Grid, seq_len: int, recommended: Mapping[int, int] | None = None
) -> LengthView:
    """The view of one length; of more than MOST_BATCHES batches an even choice is shown.

    recommended: counts of the grid by batch, marked instead of the best of the grid.
    """
    batch = evenly(grid.batch, MOST_BATCHES)
    largest = max(int(grid.candidates.max()), 2)
    found = price(scenario, batch, [seq_len], scenario.options(largest)).by_count
    shape = (batch.size, found.counts.size)
    gain = np.broadcast_to(found.speedup, found.fits.shape)[:, 0]
    low, high = (values[:, 0] for values in found.speedup_band(found.speedup))
    if recommended is None:
        best = np.argmax(np.where(np.isin(found.counts, grid.candidates), gain, -np.inf), axis=1)
    else:
        best = np.searchsorted(found.counts, [recommended[int(size)] for size in batch])
    step_us = found.step_us[:, 0]
    parts: dict[str, FloatArray] = {name: part[:, 0] for name, part in found.parts_us.items()}
    parts[BESIDE] = step_us - sum(parts.values(), start=np.zeros(()))
    drawn = {name: part for name, part in parts.items() if (part > _ROUNDING * step_us).any()}
    assert gain.shape == shape  # noqa: S101  # one length was priced
    return LengthView(
        seq_len=seq_len,
        batch=batch,
        counts=found.counts,
        grid_counts=found.counts[np.isin(found.counts, grid.candidates)],
        speedup=gain,
        speedup_low=low,
        speedup_high=high,
        verify_us=step_us,
        decode_us=found.decode_us[:, 0, 0],
        parts_us=drawn,
        decode_parts_us={name: part[:, 0] for name, part in drawn.items()},
        best=best,
        marked="the best count of the grid" if recommended is None else "what is recommended",
        cliffs=tuple(cliffs(row) for row in step_us),
    )


def evenly(values: IntArray, most: int) -> IntArray:
    """At most `most` of the values, the first and the last among them."""
    if values.size <= most:
        return values
    return values[np.unique(np.linspace(0, values.size - 1, most).round().astype(np.int64))]
