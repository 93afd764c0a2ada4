"""How many prompts begin on a step of a full server, with the probability of each number.

`request_cycle` says what each letter is. Prompts begin

    n ~ Bin(running, 1 - (1 - h)^m)   of m cohorts (`returning`), each request by itself
    n ~ gpus Bin(running / gpus, ..)  on GPUs whose mixed steps wait for each other: one on each
    n = 1 + J, J ~ Bin(running - 1, 1 - (1 - pi)^hold), on running pi / (1 + mean J) of the steps, none on
                                      others: where an engine holds the first prompt for others

running pi of them on average, in each case. Of several passes in a row each has some, by itself.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from medusa_sim.arrays import FloatArray, IntArray
from medusa_sim.serving.chance import binomial
from medusa_sim.serving.request_cycle import RequestCycle


class Begun(NamedTuple):
    """(cases,) numbers of prompts that begin on a step, or on the passes between two of them."""

    number: FloatArray
    weight: FloatArray
    """Probability."""
    place: IntArray
    """Place of its cell in the block that was asked about."""
    passes: FloatArray
    """In which they are read one after the other; 1 where they ride."""


def begun_prompts(cycle: RequestCycle, block: IntArray, gpus: int = 1) -> Begun:
    """n: prompts that begin on a step of a block of cells, given by their places.

    gpus: whose mixed steps wait for each other.
    """
    if cycle.most_held_steps.any():
        return _held_prompts(cycle, block)
    place, cohorts = np.nonzero(cycle.cohort_chances[block])
    place, cohorts = place[cohorts > 0], cohorts[cohorts > 0]
    cell = block[place]
    running, passes = cycle.running[cell], cycle.returning.passes[cell, cohorts]
    begin, together = cycle.begin_chances[cell, cohorts] / passes, np.minimum(float(gpus), running)
    hits = binomial(running / together, begin)
    some = hits.number > 0.0
    cohort = hits.place[some]
    # each of several passes has some, by itself
    mean = passes * running * begin / (1.0 - (1.0 - begin) ** running)
    number = (passes * together)[cohort] * hits.number[some]
    number = np.minimum(mean[cohort] + (number - mean[cohort]) / np.sqrt(passes[cohort]), running[cohort])
    weight = hits.weight[some] * cycle.cohort_chances[cell, cohorts][cohort]
    begun = np.bincount(place[cohort], weight * number, block.size)
    weight *= ((cycle.running * cycle.begin_chance)[block] / begun)[place[cohort]]
    return _with_none(Begun(number, weight, place[cohort], passes[cohort]), block.size)


def _held_prompts(cycle: RequestCycle, block: IntArray) -> Begun:
    """The first, held for others, and J that join it.

    Where there is nobody to wait for, none joins: the one request begins with pi.
    """
    begins = np.minimum(cycle.running * cycle.begin_chance / (1.0 + cycle.joining), 1.0)[block]
    joined = binomial(np.maximum(cycle.running[block] - 1.0, 0.0), cycle.joining_chance[block])
    weight = begins[joined.place] * joined.weight
    return _with_none(Begun(1.0 + joined.number, weight, joined.place, np.ones(weight.size)), block.size)


def _with_none(some: Begun, cells: int) -> Begun:
    """With the steps of so many cells on which none begin."""
    none = np.maximum(1.0 - np.bincount(some.place, some.weight, cells), 0.0)
    return Begun(
        *map(
            np.concatenate, zip((np.zeros(cells), none, np.arange(cells), np.ones(cells)), some, strict=True)
        )
    )
