"""Requests that end together come back together: the cohorts of how many steps begin on one step.

Requests that end on one step are a cohort: their clients' next ones are in the queue a way later, all at
once. A step that carries prompts may last longer than the way and one that does not less, so that cohorts of
several steps meet and other steps get none. Letters are those of `step.request_cycle`:

    m      cohorts that came in while the step or pass before the last `ahead` ones ran
    some   = 1 - (1 - begins)^m             chance that a step carries prompts of m cohorts
    n      ~ Bin(running, m pi)             begins: that any other request is of a cohort
    I      steps from the end of a cohort to the one on which it begins, on average

What comes in follows from how long the last steps took. So they are a Markov chain whose states say which of
the last four carried prompts; those before are as these are on average. It starts on an idle server, as every
run does: where two rhythms are stable (a step and a pass in turn, or several steps and then the passes of all
their cohorts) that of the start goes on. The way is spread by 5 %, so that a whole number of steps is no
edge. In numbers: of plain steps of 7.5 ms, others of 15 and a way of 8.6 ms, every second one carries prompts
of two cohorts.

>>> steps = returning(
...     way_us=np.array([8600.0]), ahead=np.array([1]), alone_us=np.array([7500.0]),
...     carrying_us=np.array([15000.0]), begins=np.array([0.92]), apart=False)
>>> steps.chances.round(2)[0, :4].tolist()
[0.47, 0.06, 0.47, 0.0]
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from medusa_sim.arrays import FloatArray, IntArray

_MOST = 8
"""Cohorts that begin on one step, or on passes in a row; more count as so many."""
_COHORTS = np.arange(_MOST + 1)
_KNOWN = 4
"""Steps of which a state knows whether they carried prompts."""
_STATES = np.arange(1 << _KNOWN)
_CARRIED = (_STATES[:, None] >> np.arange(_KNOWN)) & 1
"""(states, known) whether the last step did, the one before it, and so on."""
_PLAIN = (_STATES << 1) & (_STATES.size - 1)
"""(states,) the next one if the next step carries none; one more if it does."""
_WAY_SPREAD = 0.05
"""Of one way to the client and back: it is this much longer or shorter at most."""
_MOST_STEPS = 24
"""That a way takes: shorter ones are taken to last as long as so many."""
_DOUBLINGS = 10
"""Of the steps from the start that states are averaged over."""
_FEW = 1e-3
"""Chance of so many cohorts that is left out."""
_RARE = 1e-9


class Returning(NamedTuple):
    """(cells,) and (cells, cohorts) of steps, with the passes of prompts before each where they have such."""

    away_steps: FloatArray
    """(cells,) I; passes do not count."""
    away_on_plain: FloatArray
    """(cells,) how many are away on a step without prompts, beside the mean over all steps."""
    chances: FloatArray
    """(cells, cohorts) that none, one, two, ... begin on a step."""
    passes: FloatArray
    """(cells, cohorts) in which these are read, one after the other; 1 where they ride."""


def returning(
    *,
    way_us: FloatArray,
    ahead: FloatArray,
    alone_us: FloatArray,
    carrying_us: FloatArray,
    begins: FloatArray,
    apart: bool,
) -> Returning:
    """All (cells,). ahead: 0 or 1; alone_us, carrying_us: of a step without prompts, and of one with some,
    or of a pass that reads them (apart).
    """
    size, alone_us = way_us.size, np.maximum(alone_us, way_us / _MOST_STEPS)
    steps = Returning(
        ahead + np.ceil(way_us / alone_us),
        np.ones(size),
        np.tile(1.0 * (_COHORTS == 1), (size, 1)),
        np.ones((size, _MOST + 1)),
    )
    is_longer = (1.0 + _WAY_SPREAD) * way_us > alone_us
    cells = np.flatnonzero((begins > 0.0) & (way_us > 0.0) & (apart | is_longer))
    if cells.size:
        some = (column[cells] for column in (way_us, alone_us, carrying_us, begins))
        meeting = _meeting(*some, ahead=np.rint(ahead[cells]).astype(np.int64), apart=apart)
        for values, found in zip(steps, meeting, strict=True):
            values[cells] = found
    return steps


def _meeting(
    way_us: FloatArray,
    alone_us: FloatArray,
    carrying_us: FloatArray,
    begins: FloatArray,
    *,
    ahead: IntArray,
    apart: bool,
) -> Returning:
    """Where cohorts may meet."""
    none = (1.0 - begins)[:, None] ** _COHORTS
    coming, away = _on_the_way(way_us, alone_us, carrying_us, ahead, apart=apart)
    chances = _how_many(coming)
    carries = 1.0 - (chances * none[:, None]).sum(axis=-1)  # (cells, states)
    states = _from_the_start(carries)
    begun = (states * (chances @ _COHORTS)).sum(axis=1)
    plain, carrying = states * (1.0 - carries), states * carries
    away_plain, away_carrying = ((kind * away).sum(axis=1) / begun for kind in (plain, carrying))
    if apart:
        away_steps = away_plain
        # a step without prompts follows another step
        on_plain, on_any = plain * (1 - _CARRIED[:, 0]), plain
        read, passes = _in_a_row(states, chances * (1.0 - none[:, None]), carries)
        # of passes that all have prompts: how many there were if some might have none
        read /= np.maximum(1.0 - (1.0 - begins)[:, None] ** (_COHORTS / passes), _RARE)
    else:
        away_steps, on_plain, on_any = away_plain + away_carrying, plain, states
        read, passes = (states[..., None] * chances).sum(axis=1), np.ones(none.shape)
    read[read < _FEW] = 0.0
    read /= (read @ _COHORTS)[:, None]  # as many begin as end
    read[:, 0] = 1.0 - read[:, 1:].sum(axis=1)
    mean_away, mean_plain = (
        (steps * away).sum(axis=1) / np.maximum(steps.sum(axis=1), _RARE) for steps in (on_any, on_plain)
    )
    return Returning(away_steps, mean_plain / np.maximum(mean_away, _RARE), read, passes)


def _on_the_way(
    way_us: FloatArray,
    alone_us: FloatArray,
    carrying_us: FloatArray,
    ahead: IntArray,
    *,
    apart: bool,
) -> tuple[FloatArray, FloatArray]:
    """(cells, states, steps) chance that the cohort of each step so far back begins now; of how many not yet.

    Passes of prompts (apart) end no cohort.
    """
    known_us = np.where(_CARRIED, carrying_us[:, None, None], alone_us[:, None, None])
    further = int(np.ceil(((1.0 + _WAY_SPREAD) * way_us / known_us.min(axis=(1, 2))).max()))
    step_us = _with_those_before(known_us, further)
    ended_us = step_us.cumsum(axis=-1) - step_us
    cohorts = _with_those_before(np.broadcast_to(1.0 - apart * _CARRIED, known_us.shape), further)

    def has_come(steps: IntArray) -> FloatArray:
        """Of each, until the end of the step so far back."""
        ways = (ended_us - ended_us[np.arange(ahead.size), :, steps][..., None]) / way_us[:, None, None]
        return np.clip((ways - 1.0 + _WAY_SPREAD) / (2.0 * _WAY_SPREAD), 0.0, 1.0)

    come = has_come(ahead)
    return cohorts * (come - has_come(ahead + 1)), (cohorts * (1.0 - come)).sum(axis=-1)


def _with_those_before(known: FloatArray, further: int) -> FloatArray:
    """(cells, states, steps) those that a state knows, and further ones, all as they are on average."""
    before = known.mean(axis=-1, keepdims=True)
    return np.concatenate([known, np.broadcast_to(before, (*before.shape[:-1], further))], axis=-1)


def _how_many(coming: FloatArray) -> FloatArray:
    """(cells, states, cohorts) chances of how many come, each by itself."""
    chances = np.zeros((*coming.shape[:-1], _MOST + 1))
    chances[..., 0] = 1.0
    for place in np.flatnonzero(coming.any(axis=(0, 1))):
        moved = coming[..., place, None] * chances
        chances -= moved
        chances[..., 1:] += moved[..., :-1]
        chances[..., -1] += moved[..., -1]
    return chances


def _from_the_start(carries: FloatArray) -> FloatArray:
    """(cells, states) shares of the steps from the start on, before which none carried prompts."""
    chain = np.zeros((*carries.shape, _STATES.size))
    chain[:, _STATES, _PLAIN], chain[:, _STATES, _PLAIN + 1] = 1.0 - carries, carries
    shares = np.zeros((len(carries), 1, _STATES.size))
    shares[..., 0] = 1.0
    for _ in range(_DOUBLINGS):
        shares, chain = (shares + shares @ chain) / 2.0, chain @ chain
    return shares[:, 0]


def _in_a_row(states: FloatArray, read: FloatArray, carries: FloatArray) -> tuple[FloatArray, FloatArray]:
    """(cells, cohorts) chances of how many passes between two steps read, and in how many passes.

    read: (cells, states, cohorts) chances that the next is a pass that reads so many.
    """
    rows, passes = np.zeros((2, *read.shape))
    after_step = states * (1 - _CARRIED[:, 0])
    rows[..., 0] = after_step / after_step.sum(axis=1, keepdims=True)
    ended, ended_passes = np.zeros((2, len(read), _MOST + 1))
    some = np.flatnonzero(read.any(axis=(0, 1))).tolist()
    for _ in range(_MOST):
        ended += ((1.0 - carries)[..., None] * rows).sum(axis=1)
        ended_passes += ((1.0 - carries)[..., None] * passes).sum(axis=1)
        further, counted = np.zeros((2, *read.shape))
        for more in (number for number in some if number):
            further[..., more:] += read[..., more, None] * rows[..., :-more]
            counted[..., more:] += read[..., more, None] * (passes + rows)[..., :-more]
        rows, passes = np.zeros((2, *read.shape))
        half = _STATES.size // 2  # states that differ in the oldest step become one
        rows[:, 1::2] = further[:, :half] + further[:, half:]
        passes[:, 1::2] = counted[:, :half] + counted[:, half:]
    return ended, np.maximum(ended_passes / np.maximum(ended, _RARE), 1.0)
