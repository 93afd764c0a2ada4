"""Requests that run at once in a full server, where the tokens of a step limit them: the others queue.

An engine puts the tokens of requests that decode into a step first, c of each, then as much of waiting
prompts as the budget C leaves. Of `rate` prompts that begin on a step, each decodes for D steps, so that

    room    = C - c rate D                      tokens of prompts that a step has room for
    s       = P / room                          part of it that a prompt takes
    R       = 1 + mean floor(length / room)     steps in which a prompt is read
    W       = (b - 1) / b rate s / 2 max(0, s (1 + cv^2) / (1 - rate s) - 1)       steps that it queues before
    b       = rate (D + I + W + R)              requests go around for ever
    running = rate (D + I + R)                  of them, all but those that queue

W is what an M/G/1 queue, whose customers are the other requests, carries over to the next step: prompts that
begin on one step are read in turn, half of them before a request's own (`step.mixed_steps`). However many
requests there are, prompts begin more rarely than C / (P + c D) a step, which fills every one: of 256
requests that verify 6 tokens each at 2,048 tokens a step, with prompts of 512 tokens and 21.5 steps to
decode, 76 run and the others queue.

>>> queue = in_queue(
...     requests=np.array([256.0]), verified_tokens=np.array([6.0]), decode_steps=np.array([21.5]),
...     away_steps=np.array([1.5]), prompt_tokens=np.array([512.0]), prompt_cv=0.4, budget=np.array([2048.0]))
>>> round(float(queue.running[0])), round(float(queue.room_tokens[0]))
(76, 1637)
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from medusa_sim.arrays import BoolArray, FloatArray
from medusa_sim.step.chance import log_normal

_HALVINGS = 40
"""Of the interval in which the rate lies."""
_LEAST = 1e-9
_ROUNDING = 1e-12


class Queue(NamedTuple):
    """(cells,) how many of the requests run, and how long a prompt waits."""

    running: FloatArray
    """Requests that decode, are away, or have their prompt read."""
    room_tokens: FloatArray
    """Tokens of prompts that a step has room for."""
    read_steps: FloatArray
    """R."""
    queued_steps: FloatArray
    """W."""


def in_queue(
    *,
    requests: FloatArray,
    verified_tokens: FloatArray,
    decode_steps: FloatArray,
    away_steps: FloatArray,
    prompt_tokens: FloatArray,
    prompt_cv: float,
    budget: FloatArray,
) -> Queue:
    """The queue where prompts ride on steps; all (cells,)."""
    lengths = prompt_tokens[:, None] * log_normal(np.full(1, prompt_cv))
    others, square = (requests - 1.0) / requests, 1.0 + prompt_cv**2
    other_steps = decode_steps + away_steps

    def steps(rate: FloatArray) -> tuple[FloatArray, FloatArray, FloatArray]:
        """(room, R, W)."""
        room = budget - verified_tokens * decode_steps * rate
        part = prompt_tokens / room
        carried = np.maximum(square * part / np.maximum(1.0 - rate * part, _LEAST) - 1.0, 0.0)
        queued = others * rate * part / 2.0 * carried
        return room, 1.0 + np.floor(lengths / room[:, None]).mean(axis=1), queued

    def is_full(rate: FloatArray) -> BoolArray:
        """Whether so many prompts a step keep more requests than there are."""
        _, read, queued = steps(rate)
        return np.asarray(rate * (other_steps + read + queued) > requests * (1.0 + _ROUNDING))

    most_rate = budget / (prompt_tokens + verified_tokens * decode_steps)
    rate = np.minimum(most_rate, requests / (other_steps + 1.0))
    if is_full(rate).any():
        rate = _halved(is_full, rate)
    room, read, _ = steps(rate)
    running = np.minimum(rate * (other_steps + read), requests)
    return Queue(running, room, read, (requests - running) / rate)


def _halved(is_full: Callable[[FloatArray], BoolArray], most: FloatArray) -> FloatArray:
    """The largest rate, up to the most, that is not full."""
    low, high = np.zeros(most.size), most
    for _ in range(_HALVINGS):
        rate = (low + high) / 2.0
        full = is_full(rate)
        low, high = np.where(full, low, rate), np.where(full, rate, high)
    return low
