"""Means and quantiles over the steps of a full server, of which some carry prompts.

The steps of a server differ in how many prompts begin on them: n = 0, 1, 2, ... is one case each, with its
probability (`begun_prompts`) and its time t, averaged over the lengths of the prompts
(`mixed_steps`). What a step takes on average depends on who counts it:

    the server, one that queues   every step once
    a request that decodes        by the requests that decode in the step, d
    one that is away              by those that are away on it
    a prompt                      by the prompts that begin on the step, n

A long prompt is read in chunks: `full_steps` that it fills, then the step with its last tokens. All of them
belong to the case n of that last step. The full ones take the place of steps without a prompt, which the
probabilities count already: of each the case has what it takes longer than t(0) (`MixedSteps.mean_us`).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from medusa_sim.arrays import FloatArray, IntArray
from medusa_sim.serving.begun_prompts import Begun
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
    means = (cases.means for cases in _every_case(law))
    return StepMeans(*map(np.concatenate, zip(*means, strict=True)))


def step_quantile_us(law: MixedStepLaw, share: float) -> FloatArray:
    """(cells,) least time below which this share of the steps of a request that decodes lies."""
    return np.concatenate([cases.quantile_us(share) for cases in _every_case(law)])


def carrying_share(law: MixedStepLaw) -> FloatArray:
    """(cells,) share of steps that carry tokens of prompts: where prompts begin or go on."""
    return np.concatenate([cases.carrying_share for cases in _every_case(law)])


def blocks(law: MixedStepLaw) -> Iterator[IntArray]:
    """Places of cells whose steps are priced at once."""
    cells = np.arange(law.cycle.running.size)
    return (cells[first : first + _CELLS_AT_ONCE] for first in range(0, cells.size, _CELLS_AT_ONCE))


class _Cases(NamedTuple):
    """(cases,) each number of prompts that begin on a step of some cells, and what the step takes."""

    cells: int
    begun: Begun
    """n, its share of the steps of its cell, and the cell."""
    steps: MixedSteps

    @property
    def means(self) -> StepMeans:
        """(cells,) means over the steps of each."""
        steps, time_us = self.steps, self.steps.mean_us
        decoding = steps.decoding + steps.first_decoding
        decoded_us = steps.decoding * time_us + steps.first_decoding * steps.first_us
        return StepMeans(
            step_us=self._total(self.begun.weight * time_us),
            decoding_us=self._mean_by(decoding, decoded_us / np.maximum(decoding, _LEAST_WEIGHT)),
            absent_us=self._mean_by(steps.absent, time_us),
            reading_us=self._mean_by(self.begun.number, steps.reading_us),
            launching_half_us=self._total(self.begun.weight * steps.launching_half_us),
        )

    @property
    def carrying_share(self) -> FloatArray:
        """(cells,) at most 1: chunks of prompts that meet share steps."""
        carrying = (self.begun.number > 0.0) + self.steps.full_steps.mean(axis=1)
        return np.minimum(self._total(self.begun.weight * carrying), 1.0)

    def quantile_us(self, share: float) -> FloatArray:
        """(cells,) over the steps of each case and length, each counted by the requests that decode in it."""
        (number, weight, place, _), steps, shape = self.begun, self.steps, self.steps.time_us.shape
        decoding = weight * steps.decoding
        filled = decoding[:, None] * steps.full_steps / shape[1]
        # of the steps without a prompt those are left whose place no chunk takes
        taken = np.where(number == 0.0, self._total(filled.sum(axis=1))[place], 0.0)
        own, first = np.maximum(decoding - taken, 0.0), weight * steps.first_decoding
        counted = [(steps.time_us, own[:, None] / shape[1])]
        if first.any():
            counted.append((steps.first_us[:, None], first[:, None] / shape[1]))
        if filled.any():
            counted.append((steps.full_step_us, filled))
        times_us, weights = (
            np.concatenate([np.broadcast_to(values, shape).ravel() for values in column])
            for column in zip(*counted, strict=True)
        )
        place = np.tile(np.repeat(place, shape[1]), len(counted))
        return quantile(times_us, weights, place, share, self.cells)

    def _mean_by(self, counted: FloatArray, time_us: FloatArray) -> FloatArray:
        """(cells,) mean over the steps of each cell, each step counted so many times."""
        weights = self.begun.weight * counted
        return self._total(weights * time_us) / np.maximum(self._total(weights), _LEAST_WEIGHT)

    def _total(self, values: FloatArray) -> FloatArray:
        """(cells,) sums over the cases of each cell."""
        return sums_by_place(values, self.begun.place, self.cells)


def _every_case(law: MixedStepLaw) -> Iterator[_Cases]:
    """The cases of each block of cells."""
    for block in blocks(law):
        begun = law.begun_prompts(block)
        yield _Cases(block.size, begun, law.steps(block[begun.place], begun.number, begun.passes))
