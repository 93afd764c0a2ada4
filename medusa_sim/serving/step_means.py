"""Means and quantiles over the steps of a full server, of which some carry prompts.

The steps of a server differ in how many prompts begin on them: n = 0, 1, 2, ... is one case each, with its
probability (`begun_prompts`) and its time t, averaged over the lengths of the prompts
(`mixed_steps`). What a step takes on average depends on who counts it:

    the server, one that queues   every step once
    a request that decodes        by the requests that decode in the step, d
    one that is away              by those that are away on it
    a prompt                      by the prompts that begin on the step, n

A long prompt is read in chunks: `chunk_steps` steps that it fills, then the step with its last tokens. All of
them belong to the case n of that last step. The full ones take the place of steps without a prompt, which the
probabilities count already: of each the case has what it takes longer than t(0) (`_Cases.time_us`).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from medusa_sim.arrays import FloatArray, IntArray
from medusa_sim.serving.chance import quantile, sums_by_place
from medusa_sim.serving.mixed_steps import MixedStepLaw, MixedSteps

_CELLS_AT_ONCE = 1024
_LEAST_WEIGHT = 1e-300


class StepMeans(NamedTuple):
    """(cells,) mean times of steps of each cell, microseconds."""

    step_us: FloatArray
    """Of all."""
    decoding_us: FloatArray
    """Of those of a request that decodes."""
    absent_us: FloatArray
    """Of those of a request that is away: its prompt begins on none of them."""
    reading_us: FloatArray
    """Until a prompt is read: of all steps that it rides on together, or of its own passes."""
    launching_half_us: FloatArray
    """Half-width of step_us, of the host that launches prompts."""


def step_means(law: MixedStepLaw) -> StepMeans:
    """Means over the steps of each cell of a law."""
    means = (_means(_cases(law, block)) for block in blocks(law))
    return StepMeans(*map(np.concatenate, zip(*means, strict=True)))


def step_quantile_us(law: MixedStepLaw, share: float) -> FloatArray:
    """(cells,) least time below which this share of the steps of a request that decodes lies."""
    return np.concatenate([_quantile_us(_cases(law, block), share) for block in blocks(law)])


def carrying_share(law: MixedStepLaw) -> FloatArray:
    """(cells,) share of steps that carry tokens of prompts: where prompts begin or go on."""
    return np.concatenate([_carrying_share(_cases(law, block)) for block in blocks(law)])


def blocks(law: MixedStepLaw) -> Iterator[IntArray]:
    """Places of cells whose steps are priced at once."""
    cells = np.arange(law.cycle.running.size)
    return (cells[first : first + _CELLS_AT_ONCE] for first in range(0, cells.size, _CELLS_AT_ONCE))


class _Cases(NamedTuple):
    """(cases,) each number of prompts that begin on a step of a block of cells."""

    block: int
    """Cells of the block."""
    place: IntArray
    """Place of each case's cell in the block."""
    chance: FloatArray
    """Share of the cell's steps."""
    prompts: FloatArray
    """n."""
    decode_only_us: FloatArray
    """t(0) of the cell."""
    first_decoding: FloatArray
    """Requests that decode in what is left of the step after their own pass, for t(0): n e."""
    steps: MixedSteps
    """The step of each case, and those that chunks fill before it."""

    @property
    def time_us(self) -> FloatArray:
        """Of the step, and what those that chunks fill take longer than the steps whose place they take."""
        steps = self.steps
        all_us = (steps.time_us + steps.chunk_steps * steps.chunk_us).mean(axis=1)
        return np.asarray(all_us - steps.chunk_steps.mean(axis=1) * self.decode_only_us)

    def mean(self, time_us: FloatArray) -> FloatArray:
        """(cells,) mean over the steps of each cell."""
        return self.total(self.chance * time_us)

    def mean_by(self, counted: FloatArray, time_us: FloatArray) -> FloatArray:
        """(cells,) the same, each step counted so many times."""
        weights = self.chance * counted
        return self.total(weights * time_us) / np.maximum(self.total(weights), _LEAST_WEIGHT)

    def total(self, values: FloatArray) -> FloatArray:
        """(cells,) sums over the cases of each cell."""
        return sums_by_place(values, self.place, self.block)


def _cases(law: MixedStepLaw, block: IntArray) -> _Cases:
    """The cases of a block of cells."""
    begun = law.begun_prompts(block)
    cell = block[begun.place]
    return _Cases(
        block=block.size,
        place=begun.place,
        chance=begun.weight,
        prompts=begun.number,
        decode_only_us=law.decode_only_us[cell],
        first_decoding=begun.number * law.cycle.after_prefill_steps[cell],
        steps=law.steps(cell, begun.number, begun.passes),
    )


def _means(cases: _Cases) -> StepMeans:
    """Of the cells of a block."""
    time_us, steps = cases.time_us, cases.steps
    decoding = steps.decoding + cases.first_decoding
    first_us = steps.rest_us + cases.decode_only_us
    decoded_us = steps.decoding * time_us + cases.first_decoding * first_us
    return StepMeans(
        step_us=cases.mean(time_us),
        decoding_us=cases.mean_by(decoding, decoded_us / np.maximum(decoding, _LEAST_WEIGHT)),
        absent_us=cases.mean_by(steps.absent, time_us),
        reading_us=cases.mean_by(cases.prompts, steps.reading_us),
        launching_half_us=cases.mean(steps.launching_half_us),
    )


def _carrying_share(cases: _Cases) -> FloatArray:
    """(cells,) at most 1: chunks of prompts that meet share steps."""
    carrying = (cases.prompts > 0.0) + cases.steps.chunk_steps.mean(axis=1)
    return np.minimum(cases.mean(carrying), 1.0)


def _quantile_us(cases: _Cases, share: float) -> FloatArray:
    """(cells,) over the steps of each case and length, each counted by the requests that decode in it."""
    steps, shape = cases.steps, cases.steps.time_us.shape
    decoding = cases.chance * steps.decoding
    filled = decoding[:, None] * steps.chunk_steps / shape[1]
    # of the steps without a prompt those are left whose place no chunk takes
    taken = np.where(cases.prompts == 0.0, cases.total(filled.sum(axis=1))[cases.place], 0.0)
    own = np.maximum(decoding - taken, 0.0)
    first = cases.chance * cases.first_decoding
    counted = [(steps.time_us, own[:, None] / shape[1])]
    if first.any():
        counted.append(((steps.rest_us + cases.decode_only_us)[:, None], first[:, None] / shape[1]))
    if filled.any():
        counted.append((steps.chunk_us, filled))
    times_us, weights = (
        np.concatenate([np.broadcast_to(values, shape).ravel() for values in column])
        for column in zip(*counted, strict=True)
    )
    place = np.tile(np.repeat(cases.place, shape[1]), len(counted))
    return quantile(times_us, weights, place, share, cases.block)
