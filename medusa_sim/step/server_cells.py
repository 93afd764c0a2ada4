"""Cells of a grid as a full server sees them: who decodes, who is away, who sends a prompt to a step.

(N7) and its letters are those of `step.server`.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import NamedTuple, TypeVar

import numpy as np

from medusa_sim.arrays import FloatArray, IntArray
from medusa_sim.step.chance import Hits, binomial, log_normal
from medusa_sim.step.graphs import padded_tokens
from medusa_sim.step.prompts import prompts_apart
from medusa_sim.step.setting import Setting
from medusa_sim.step.traffic import Traffic, step_limits

_Cells = TypeVar("_Cells", bound="InFlight")


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class InFlight:
    """(M,) of each cell: its step, and what its requests do."""

    step_us: FloatArray
    """The step without prompts, with all requests decoding."""
    requests: FloatArray
    """Requests in flight."""
    width: FloatArray
    """Tokens that each of them verifies."""
    tokens: FloatArray
    """Tokens that each of them emits."""
    request_attention_us: FloatArray
    """Attention of one request."""
    room: FloatArray
    """Tokens of prompts that a step takes."""
    decodes: FloatArray
    """Steps that a request decodes for."""
    away: FloatArray
    """Steps that it is on its way to the client and back."""
    away_us: FloatArray
    """That way where no step runs meanwhile."""
    queued: FloatArray
    """Steps that a prompt waits for others."""
    share: FloatArray
    """Probability that a request begins its prompt on a step: pi of (N7)."""

    @property
    def stays(self) -> FloatArray:
        """Share of the requests that are not on their way to the client and back."""
        return self.decodes / np.maximum(self.decodes + self.away, 1e-9)

    def at(self: _Cells, place: np.ndarray) -> _Cells:
        """Some of them."""
        return type(self)(**{field.name: getattr(self, field.name)[place] for field in fields(self)})

    def sharing(self, linear_us: FloatArray, mean_linear_us: FloatArray) -> ServerCells:
        """The cells with what the rows of their steps share."""
        known = {field.name: getattr(self, field.name) for field in fields(self)}
        return ServerCells(**known, linear_us=linear_us, mean_linear_us=mean_linear_us)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ServerCells(InFlight):
    """Cells with what the rows of a step share."""

    linear_us: FloatArray
    """Linear layers with all requests decoding."""
    mean_linear_us: FloatArray
    """The same in the mean over how many are away."""

    @property
    def empty_us(self) -> FloatArray:
        """A step without prompts, of the requests that are there."""
        gone = self.requests * (1.0 - self.stays)
        return self.step_us - gone * self.request_attention_us + self.mean_linear_us - self.linear_us


class Rows(NamedTuple):
    """Rows of the steps of M cells, as an engine pads them."""

    whole: IntArray
    """(M,) with all requests decoding."""
    gone: Hits
    """How many requests of a cell are away."""
    fewer: IntArray
    """Rows without each of these, so that no tile's edge falls on one number of requests."""

    def mean(self, fewer_us: FloatArray) -> FloatArray:
        """(M,) over how many requests are away. fewer_us: of each of `fewer`."""
        return sums_by_place(self.gone.weight * fewer_us, self.gone.place, self.whole.size)


def rows_of(setting: Setting, cells: InFlight) -> Rows:
    """Rows of the steps of cells."""
    engine = setting.runtime.engine

    def padded(requests: FloatArray, width: FloatArray) -> IntArray:
        rows = requests * width if engine is None else padded_tokens(engine, requests, width)
        return np.maximum(np.rint(rows), 1.0).astype(np.int64)

    gone = binomial(cells.requests, cells.away / np.maximum(cells.decodes + cells.away, 1e-9))
    here = cells.at(gone.place)
    fewer = padded(np.maximum(here.requests - gone.number, 1.0), here.width)
    return Rows(padded(cells.requests, cells.width), gone, fewer)


def in_flight(
    setting: Setting,
    traffic: Traffic,
    *,
    step_us: FloatArray,
    requests: FloatArray,
    width: FloatArray,
    tokens: FloatArray,
    attention_us: FloatArray,
    server_us: float,
) -> InFlight:
    """What requests do in cells, (M,) each. attention_us: of a step; server_us: the way of a response."""
    limits = step_limits(setting.runtime, setting.latency.gpu)
    budget = limits[1] * np.maximum(requests / limits[0], 1.0)  # who asks for more of them raises both
    room = np.maximum(budget - requests * width, budget / 8.0)
    decodes = (traffic.output_tokens - 1.0) / tokens
    ahead = np.where(width > 1.0, _steps_ahead(setting, drafts=True), _steps_ahead(setting, drafts=False))
    others = np.minimum(requests - 1.0, 1.0)  # steps run on meanwhile
    away = others * (ahead + (server_us / step_us + 0.5 if server_us else 0.0))
    apart = prompts_apart(setting)
    share, queued = _alone(decodes, away) if apart else _queueing(traffic, requests, room, decodes + away)
    return InFlight(
        step_us=step_us,
        requests=requests,
        width=width,
        tokens=tokens,
        request_attention_us=attention_us / requests,
        room=room,
        decodes=decodes,
        away=away,
        away_us=server_us * (1.0 - others),
        queued=queued,
        share=share,
    )


def _alone(decodes: FloatArray, away: FloatArray) -> tuple[FloatArray, FloatArray]:
    """(pi of (N7), steps that a prompt queues) where prompts have passes of their own."""
    share = np.minimum(1.0 / np.maximum(decodes + away, 1e-9), 1.0)
    return share, np.zeros(share.size)


def _queueing(
    traffic: Traffic, requests: FloatArray, room: FloatArray, others: FloatArray
) -> tuple[FloatArray, FloatArray]:
    """(pi of (N7), steps that a prompt queues) where prompts ride. others: steps that decode or are away.

    Prompts that together fill a good part of the room of a step queue for it, as in an M/G/1 queue whose
    customers are the requests themselves: b = rate (D + I + R + wait(rate)).
    """
    of_step = traffic.prompt_tokens / room
    lengths = traffic.prompt_tokens * log_normal(np.full(1, traffic.prompt_cv))
    reading = 1.0 + np.floor(lengths / room[:, None]).mean(axis=1)
    cycle = others + reading
    wait = of_step**2 * (1.0 + traffic.prompt_cv**2) / 2.0
    # b (1 - rate s) = rate cycle (1 - rate s) + rate^2 wait
    linear, square = cycle + requests * of_step, of_step * cycle - wait
    root = np.sqrt(np.maximum(linear**2 - 4.0 * requests * square, 0.0))
    rate = 2.0 * requests / (linear + root)
    share = np.minimum(rate / requests, 1.0)
    return share, np.maximum(1.0 / share - cycle, 0.0)


def _steps_ahead(setting: Setting, *, drafts: bool) -> float:
    """Steps that are scheduled before the running one ends."""
    engine = setting.runtime.engine
    if engine is None or (drafts and setting.drafter_name in engine.synchronous_drafters):
        return 0.0
    return engine.steps_ahead.value


def sums_by_place(values: FloatArray, place: IntArray, size: int) -> FloatArray:
    """(size,) sums of the values of each place."""
    return np.bincount(place, values, size).astype(np.float64)
