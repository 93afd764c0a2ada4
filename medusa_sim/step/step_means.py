"""Means and quantiles over the steps of a full server, of which some carry prompts (`step.mixed_steps`).

Each step counts by how probable it is; what a request that decodes sees also by the requests that decode in
it, and what a prompt sees by the prompts that begin on it. Steps that chunks of a long prompt fill stand in
place of steps that would carry nothing: they change a step's time and not the number of steps.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from medusa_sim.arrays import FloatArray, IntArray
from medusa_sim.step.chance import quantile, sums_by_place
from medusa_sim.step.mixed_steps import MixedStepLaw

_CELLS_AT_ONCE = 1024
_LEAST_WEIGHT = 1e-300


class StepMeans(NamedTuple):
    """(cells,) mean times of steps of each cell, microseconds."""

    step_us: FloatArray
    """Of all."""
    decoding_us: FloatArray
    """Of those of a request that decodes."""
    waiting_us: FloatArray
    """Of those of a request that is away or queues: none of them is the one on which it begins."""
    reading_us: FloatArray
    """Of those that a prompt rides on, all of them; of its own passes where it has these."""
    launching_half_us: FloatArray
    """Half-width of step_us, of the host that launches prompts."""


def step_means(law: MixedStepLaw) -> StepMeans:
    """Means over the steps of each cell of a law."""
    blocks = [_means_of(law, cells) for cells in blocks_of_cells(law)]
    return StepMeans(*map(np.concatenate, zip(*blocks, strict=True)))


def step_quantile_us(law: MixedStepLaw, share: float) -> FloatArray:
    """(cells,) least time below which this share of the steps of a request that decodes lies."""
    return np.concatenate([_quantile_of(law, cells, share) for cells in blocks_of_cells(law)])


def carrying_share(law: MixedStepLaw) -> FloatArray:
    """(cells,) share of steps that carry tokens of prompts: where prompts begin or go on."""
    return np.concatenate([_carrying_share_of(law, cells) for cells in blocks_of_cells(law)])


def blocks_of_cells(law: MixedStepLaw) -> Iterator[IntArray]:
    """Cells whose steps are priced at once."""
    cells = np.arange(law.cycle.requests.size)
    return (cells[first : first + _CELLS_AT_ONCE] for first in range(0, cells.size, _CELLS_AT_ONCE))


def _means_of(law: MixedStepLaw, cells: IntArray) -> StepMeans:
    arrived = law.begun_prompts(cells)
    cell = cells[arrived.place]
    steps = law.steps(cell, arrived.number)
    whole_us = (steps.time_us + steps.chunk_steps * steps.chunk_us).mean(axis=1)
    in_place_us = whole_us - steps.chunk_steps.mean(axis=1) * law.decode_only_us[cell]

    def summed(values: FloatArray) -> FloatArray:
        return sums_by_place(values, arrived.place, cells.size)

    def mean(weights: FloatArray, time_us: FloatArray) -> FloatArray:
        return summed(weights * time_us) / np.maximum(summed(weights), _LEAST_WEIGHT)

    # behind their own passes requests decode for what is left of the step
    behind = arrived.number * law.cycle.after_prefill_steps[cell]
    decoding = steps.decoding + behind
    seen_us = steps.decoding * in_place_us + behind * law.decode_only_us[cell]
    return StepMeans(
        step_us=summed(arrived.weight * in_place_us),
        decoding_us=mean(arrived.weight * decoding, seen_us / np.maximum(decoding, _LEAST_WEIGHT)),
        waiting_us=mean(
            arrived.weight * np.maximum(law.cycle.requests[cell] - arrived.number, 0.0), in_place_us
        ),
        reading_us=mean(arrived.weight * arrived.number, steps.reading_us),
        launching_half_us=summed(arrived.weight * steps.launching_half_us),
    )


def _carrying_share_of(law: MixedStepLaw, cells: IntArray) -> FloatArray:
    arrived = law.begun_prompts(cells)
    chunk_steps = law.steps(cells[arrived.place], arrived.number).chunk_steps.mean(axis=1)
    carrying = arrived.weight * ((arrived.number > 0.0) + chunk_steps)
    return np.minimum(sums_by_place(carrying, arrived.place, cells.size), 1.0)


def _quantile_of(law: MixedStepLaw, cells: IntArray, share: float) -> FloatArray:
    arrived = law.begun_prompts(cells)
    cell = cells[arrived.place]
    steps = law.steps(cell, arrived.number)
    shape = steps.time_us.shape

    def each(values: FloatArray | IntArray) -> npt.NDArray[Any]:
        """(steps,) -> (steps, lengths) of their prompts."""
        return np.broadcast_to(values[:, None], shape)

    place, seen = each(arrived.place), each(arrived.weight * steps.decoding / shape[1])
    times_us, weights = [steps.time_us], [seen]
    behind = arrived.weight * arrived.number * law.cycle.after_prefill_steps[cell]
    if behind.any():
        times_us.append(each(law.decode_only_us[cell]))
        weights.append(each(behind / shape[1]))
    if steps.chunk_steps.any():
        chunks_seen = seen * steps.chunk_steps
        replaced = sums_by_place(chunks_seen.sum(axis=1), arrived.place, cells.size)[arrived.place]
        is_decode_only = (arrived.number == 0.0)[:, None]
        weights[0] = np.where(is_decode_only, np.maximum(seen - replaced[:, None] / shape[1], 0.0), seen)
        times_us.append(np.broadcast_to(steps.chunk_us, shape))
        weights.append(chunks_seen)
    return quantile(
        np.concatenate(times_us).ravel(),
        np.concatenate(weights).ravel(),
        np.concatenate([place] * len(times_us)).ravel(),
        share,
        cells.size,
    )
