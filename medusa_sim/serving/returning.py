"""Requests that end together come back together: the cohorts of how many steps begin on one step.

Requests that end on one step are a cohort: their clients' next ones are in the queue a way later, all at
once. A step that carries prompts may last longer than the way and one that does not less, so that cohorts of
several steps meet and other steps get none. Letters are those of `request_cycle`:

    m      cohorts that came in while the step or pass before the last `ahead` ones ran
    some   = 1 - (1 - ends)^m               chance that a step carries prompts of m cohorts
    ends   chance that any other request ends on a step, so that it has a cohort
    I      steps from the end of a cohort to the one on which it begins, on average

What comes in follows from how long the last steps took. So they are a Markov chain whose states say which of
the last four carried prompts; those before are as these are on average. It starts on an idle server, as every
run does: where two rhythms are stable (a step and a pass in turn, or several steps and then the passes of all
their cohorts) that of the start goes on. The way is spread by 5 %, so that a whole number of steps is no
edge. In numbers: of plain steps of 7.5 ms, others of 15 and a way of 8.6 ms, every second one carries prompts
of two cohorts.

>>> steps = returning(
...     way_us=np.array([8600.0]), ahead=np.array([1]), alone_us=np.array([7500.0]),
...     carrying_us=np.array([15000.0]), ends=np.array([0.92]), apart=False)
>>> steps.chances.round(2)[0, :4].tolist()
[0.47, 0.06, 0.47, 0.0]
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from medusa_sim.arrays import FloatArray

_MOST = 8
"""Cohorts that begin on one step, or on passes in a row; more count as so many."""
_COHORTS = np.arange(_MOST + 1)
_TOGETHER = np.eye(_MOST + 1)[np.minimum(_COHORTS[:, None] + _COHORTS, _MOST)]
"""(cohorts, cohorts, cohorts) 1 where so many and so many are so many together."""
_KNOWN = 4
"""Steps of which a state knows whether they carried prompts."""
_STATES = np.arange(1 << _KNOWN)
_CARRIED = (_STATES[:, None] >> np.arange(_KNOWN)) & 1
"""(states, known) whether the last step did, the one before it, and so on."""
_THEN_PLAIN, _THEN_CARRYING = (
    np.eye(_STATES.size)[(2 * _STATES + carries) % _STATES.size] for carries in (0, 1)
)
"""(states, states) 1 where one follows the other with a step of that kind."""
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
    ends: FloatArray,
    apart: bool,
) -> Returning:
    """All (cells,). ahead: 0 or 1; alone_us, carrying_us: of a step without prompts, and of one with some,
    or of a pass that reads them (apart).
    """
    alone_us = np.maximum(alone_us, way_us / _MOST_STEPS)
    ones = np.ones((way_us.size, _MOST + 1))
    away_steps = ahead + np.ceil(way_us / alone_us)
    one_on_each = Returning(away_steps, ones[:, 0].copy(), ones * (_COHORTS == 1), ones)
    is_longer = (1.0 + _WAY_SPREAD) * way_us > alone_us
    cells = np.flatnonzero((ends > 0.0) & (way_us > 0.0) & (apart | is_longer))
    if not cells.size:
        return one_on_each
    # where cohorts may meet
    ends = ends[cells]
    coming, away = _on_the_way(way_us[cells], ahead[cells], alone_us[cells], carrying_us[cells], apart=apart)
    chances = _how_many(coming)
    none = (1.0 - ends)[:, None, None] ** _COHORTS
    carries = 1.0 - (chances * none).sum(axis=-1)  # (cells, states)
    states = _from_the_start(carries)
    steps, plain_steps = states, states * (1.0 - carries)
    if apart:  # no pass is a step; one without prompts before it follows another step
        after_step = states * (1 - _CARRIED[:, 0])
        steps, plain_steps = plain_steps, after_step * (1.0 - carries)
        read, passes = _in_a_row(after_step, chances * (1.0 - none), carries)
        # of passes that all have prompts: how many there were if some might have none
        read /= np.maximum(1.0 - (1.0 - ends)[:, None] ** (_COHORTS / passes), _RARE)
    else:
        read, passes = (states[..., None] * chances).sum(axis=1), ones[cells]
    read[read < _FEW] = 0.0
    read /= (read @ _COHORTS)[:, None]  # as many begin as end
    read[:, 0] = 1.0 - read[:, 1:].sum(axis=1)
    begun = (states * (chances @ _COHORTS)).sum(axis=1)
    mean_away, mean_on_plain = (
        (some * away).sum(axis=1) / np.maximum(some.sum(axis=1), _RARE) for some in (steps, plain_steps)
    )
    away_steps, on_plain = (steps * away).sum(axis=1) / begun, mean_on_plain / np.maximum(mean_away, _RARE)
    for values, found in zip(one_on_each, (away_steps, on_plain, read, passes), strict=True):
        values[cells] = found
    return one_on_each


def _on_the_way(
    way_us: FloatArray, ahead: FloatArray, alone_us: FloatArray, carrying_us: FloatArray, *, apart: bool
) -> tuple[FloatArray, FloatArray]:
    """(cells, states, steps) chance that the cohort of each step so far back begins now; of how many not yet.

    Passes of prompts (apart) end no cohort.
    """
    known_us = np.where(_CARRIED, carrying_us[:, None, None], alone_us[:, None, None])
    further = int(np.ceil(((1.0 + _WAY_SPREAD) * way_us / known_us.min(axis=(1, 2))).max()))
    step_us = np.pad(known_us, ((0, 0), (0, 0), (0, further)), mode="mean")
    cohorts = np.pad(1.0 - apart * _CARRIED, ((0, 0), (0, further)), mode="mean")
    ended_us = step_us.cumsum(axis=-1) - step_us  # so long ago

    def has_come(steps: FloatArray) -> FloatArray:
        """Of each cohort, until the end of the step so far back."""
        until_us = np.take_along_axis(ended_us, np.rint(steps).astype(np.int64)[:, None, None], axis=-1)
        ways = (ended_us - until_us) / way_us[:, None, None]
        return np.asarray(np.clip((ways - 1.0 + _WAY_SPREAD) / (2.0 * _WAY_SPREAD), 0.0, 1.0))

    come = has_come(ahead)
    return cohorts * (come - has_come(ahead + 1.0)), (cohorts * (1.0 - come)).sum(axis=-1)


def _how_many(coming: FloatArray) -> FloatArray:
    """(cells, states, cohorts) chances of how many come, each by itself."""
    chances = np.zeros((*coming.shape[:-1], _MOST + 1))
    chances[..., 0] = 1.0
    for place in np.flatnonzero(coming.any(axis=(0, 1))):
        chances += coming[..., place, None] * (chances @ _TOGETHER[1] - chances)
    return chances


def _from_the_start(carries: FloatArray) -> FloatArray:
    """(cells, states) shares of the steps from the start on, before which none carried prompts."""
    chain = (1.0 - carries)[..., None] * _THEN_PLAIN + carries[..., None] * _THEN_CARRYING
    shares = np.eye(1, _STATES.size)
    for _ in range(_DOUBLINGS):
        shares, chain = (shares + shares @ chain) / 2.0, chain @ chain
    return shares[:, 0]


def _in_a_row(after_step: FloatArray, read: FloatArray, carries: FloatArray) -> tuple[FloatArray, FloatArray]:
    """(cells, cohorts) chances of how many passes between two steps read, and in how many passes.

    read: (cells, states, cohorts) chances that the next is a pass that reads so many.
    """
    rows = (after_step / after_step.sum(axis=1, keepdims=True))[..., None] * np.eye(1, _MOST + 1)
    ended = []  # after no pass, after one, ...
    for _ in range(_MOST):
        ended.append(((1.0 - carries)[..., None] * rows).sum(axis=1))
        after_reading = (read[..., some, None] * (rows @ _TOGETHER[some]) for some in _COHORTS)
        rows = _THEN_CARRYING.T @ sum(after_reading, start=np.zeros_like(rows))
    chances = np.sum(ended, axis=0)
    passes = np.tensordot(np.arange(_MOST), ended, axes=1) / np.maximum(chances, _RARE)
    return chances, np.maximum(passes, 1.0)
