"""Requests that run at once in a full server, where the tokens of a step limit them: the others queue.

An engine puts the tokens of requests that decode into a step first, c of each, then as much of waiting
prompts as the budget C leaves. Of `rate` prompts that begin on a step, each decodes for D steps, so that

    room    = C - c rate D                      tokens of prompts that a step has room for
    full    = room                              of these, what it reads while prompts queue
            = fit(room / P) P                   where they are read whole: as many as fit (`fitting_prompts`)
    part    = P / full                          of a full step, what a prompt takes
    R       = 1 + mean floor(length / room)     steps in which a prompt is read; 1 of one that is read whole
    W       = (b - 1) / b rate part / 2 max(0, part (1 + cv^2) v x(v (1 - rate part)) - 1) + behind
    x       : x(phi(z) / Phi(z)) = z + phi(z) / Phi(z),  v^2 = 2 (D + I + 1) / (part (1 + cv^2))
    behind  = held d / 6 (D + d part / (1 - rate part / 2)),  d = rate D
    b       = rate (D + I + W + R)              requests go around for ever
    running = rate (D + I + R)                  of them, all but those that queue

W is what an M/G/1 queue, whose customers are the other requests, carries over to the next step: prompts that
begin on one step are read in turn, half of them before a request's own (`mixed_steps`). Its customers
never run out, and v x is 1 / (1 - rate part). Of b requests those that queue are missing among those that
come: how many queue is normal, and never below 0, around b - (D + I + 1) / part. x is the mean in its
deviations, 1 / u where u is large.

`behind` is the wait behind whole prompts (`held` of all) that are longer than the room, but not than C: one
holds those behind it until y requests have ended, anything up to d, after y / d D steps; the y that wait by
then are read in part / (1 - rate part / 2) each, as fewer come meanwhile; the mean of y^2 is d^2 / 3. Where
three prompts in sixteen are longer than C, which such an engine would refuse, all are read in chunks.

However many requests there are, prompts begin more rarely than C / (P + c D) a step, which fills every one:
of 256 requests that verify 6 tokens each at 2,048 tokens a step, with prompts of 512 tokens and 21.5 steps to
decode, 77 run and the others queue.

>>> asked = Requests(*np.array([[256.0], [6.0], [6.0], [21.5], [512.0]]))
>>> queue = in_queue(asked, away_steps=np.array([1.5]), budget=np.array([2048.0]), prompt_cv=0.4)
>>> round(float(queue.running[0])), round(float(queue.room_tokens[0]))
(77, 1636)
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from math import erfc, pi, sqrt
from typing import NamedTuple

import numpy as np

from medusa_sim.arrays import BoolArray, FloatArray
from medusa_sim.serving.chance import log_normal

_HALVINGS = 40
"""Of the interval in which the rate lies."""
_MOST_FIT = 13.0 / 16.0
"""Share of prompts: between the last and the last but one of eight lengths (`chance.log_normal`)."""
_NONE = 1e-99
_ROUNDING = 1e-12
_PROMPTS = 1024
_ROOMS = np.arange(1, 257) / 16.0
"""Prompts that are fitted one after the other into steps with room for so many of mean length."""


@dataclass(frozen=True, eq=False)
class Requests:
    """(cells,) the requests of a server."""

    requests: FloatArray
    """b, how many go around."""
    candidates: FloatArray
    """Tokens of a request that graphs are captured for: those that it verifies where it drafts."""
    verified_tokens: FloatArray
    """c, tokens that a step processes of a request, on average."""
    decode_steps: FloatArray
    """D, steps in which a request decodes."""
    prompt_tokens: FloatArray
    """P, of a prompt, on average."""


class Queue(NamedTuple):
    """(cells,) how many of the requests run, and how long a prompt waits."""

    running: FloatArray
    """Requests that decode, are away, or have their prompt read."""
    room_tokens: FloatArray
    """Tokens of prompts that a step has room for."""
    full_tokens: FloatArray
    """full, those that it reads where prompts queue."""
    read_steps: FloatArray
    """R."""
    queued_steps: FloatArray
    """W."""


def in_queue(
    asked: Requests, *, away_steps: FloatArray, budget: FloatArray, prompt_cv: float, whole: bool = False
) -> Queue:
    """The queue where prompts ride on steps; all (cells,). whole: an engine cuts none if they fit a step."""
    requests, decode_steps, prompt_tokens = asked.requests, asked.decode_steps, asked.prompt_tokens
    lengths = prompt_tokens[:, None] * log_normal(np.full(1, prompt_cv))
    others, square = (requests - 1.0) / requests, 1.0 + prompt_cv**2
    other_steps = decode_steps + away_steps
    is_whole = whole & are_read_whole(lengths, budget[:, None])
    cut = np.where(is_whole[:, None], 0.0, lengths)

    def queue_at(rate: FloatArray) -> Queue:
        """Where so many prompts begin on a step: W as it then is, whatever requests that takes."""
        room = budget - asked.verified_tokens * decode_steps * rate
        full = room
        if whole:
            fitting_tokens = fitting_prompts(prompt_cv, room / prompt_tokens) * prompt_tokens
            full = np.where(is_whole, fitting_tokens, room)
        part = prompt_tokens / full
        v = np.sqrt(2.0 * (other_steps + 1.0) / (part * square))
        carried = np.maximum(square * part * v * _queuing(v * (1.0 - rate * part)) - 1.0, 0.0)
        queued = others * rate * part / 2.0 * carried
        if whole and prompt_cv:
            held = _share_between(room / prompt_tokens, budget / prompt_tokens, prompt_cv)
            d, reading = rate * decode_steps, part / np.maximum(1.0 - rate * part / 2.0, 0.5)
            queued = queued + is_whole * held * d / 6.0 * (decode_steps + d * reading)
        read = 1.0 + np.floor(cut / room[:, None]).mean(axis=1)
        return Queue(np.minimum(rate * (other_steps + read), requests), room, full, read, queued)

    def is_full(rate: FloatArray) -> BoolArray:
        """Whether so many prompts a step keep more requests than there are."""
        queue = queue_at(rate)
        kept = rate * (other_steps + queue.read_steps + queue.queued_steps)
        return np.asarray(kept > requests * (1.0 + _ROUNDING))

    most_rate = budget / (prompt_tokens + asked.verified_tokens * decode_steps)
    rate = np.minimum(most_rate, requests / (other_steps + 1.0))
    if is_full(rate).any():
        rate = _halved(is_full, rate)
    queue = queue_at(rate)
    return queue._replace(queued_steps=(requests - queue.running) / rate)


def are_read_whole(prompt_tokens: FloatArray, budget: FloatArray | int) -> BoolArray:
    """(...) whether an engine that reads prompts whole does so with (..., prompts): most fit a step.

    It refuses longer ones, so that a server of many such has chunks enabled, and cuts the others as well.
    """
    return np.asarray((prompt_tokens <= budget).mean(axis=-1) >= _MOST_FIT)


def _halved(is_full: Callable[[FloatArray], BoolArray], most: FloatArray) -> FloatArray:
    """The largest rate, up to the most, that is not full."""
    low, high = np.zeros(most.size), most
    for _ in range(_HALVINGS):
        rate = (low + high) / 2.0
        full = is_full(rate)
        low, high = np.where(full, low, rate), np.where(full, rate, high)
    return low


def fitting_prompts(prompt_cv: float, rooms: FloatArray) -> FloatArray:
    """How many whole prompts fit a step on average while they queue: the next that does not fit waits.

    rooms: room of a step, in prompts of mean length. Of equal prompts as many as are whole in it, of unequal
    ones half of a mean one, seen from its inside, is left empty. Prompts longer than the room are cut.

    >>> fitting_prompts(0.0, np.array([0.5, 2.5, 100.0])).round(3).tolist()
    [0.5, 2.0, 99.5]
    """
    few = np.interp(rooms, [0.0, *_ROOMS], [0.0, *_fitting(prompt_cv)])
    return np.where(rooms <= _ROOMS[-1], few, rooms - (1.0 + prompt_cv**2) / 2.0)


def _queuing(slack: FloatArray) -> FloatArray:
    """x: mean of a normal variable that is never below 0, in deviations; endless without slack."""
    logs, means = _normals()
    log = np.log(np.maximum(slack, _NONE))
    return np.where(log < logs[-1], np.interp(log, logs, means, left=1.0 / _NONE), np.exp(-log))


@cache
def _normals() -> tuple[FloatArray, FloatArray]:
    """Logarithm of phi(a) / Phi(a), rising, and its x."""
    places = np.arange(160, -601, -1) / 20.0
    shares = np.asarray([erfc(-place / sqrt(2.0)) / 2.0 for place in places])
    slacks = np.exp(-(places**2) / 2.0) / sqrt(2.0 * pi) / shares
    return np.log(slacks), places + slacks


def _share_between(least: FloatArray, most: FloatArray, cv: float) -> FloatArray:
    """Share of log-normal lengths of mean 1 between two that are not far apart."""
    variance, middle = np.log1p(cv**2), (least + most) / 2.0
    apart = np.log(middle) + variance / 2.0
    density = np.exp(-(apart**2) / (2.0 * variance)) / (middle * np.sqrt(2.0 * np.pi * variance))
    return np.asarray((most - least) * density)


@cache
def _fitting(prompt_cv: float) -> FloatArray:
    """`fitting_prompts` of each of _ROOMS, of prompts one after the other in an order of chance."""
    from statistics import NormalDist

    normal = [NormalDist().inv_cdf((k + 0.5) / _PROMPTS) for k in range(_PROMPTS)]
    sigma = np.sqrt(np.log1p(prompt_cv**2))
    lengths = np.exp(sigma * np.random.default_rng(0).permutation(normal) - sigma**2 / 2.0)
    steps, filled = np.ones(_ROOMS.size), np.zeros(_ROOMS.size)
    for length in lengths:
        filled = filled + length
        further = np.where(length > _ROOMS, np.floor(filled / _ROOMS), filled > _ROOMS)
        filled = np.where(length > _ROOMS, filled - further * _ROOMS, np.where(further, length, filled))
        steps = steps + further
    return np.asarray(_PROMPTS / steps)
