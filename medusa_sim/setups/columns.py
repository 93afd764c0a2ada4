"""Every column of a comparison, declared once: its values, and how tables, charts and sentences tell it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from medusa_sim.arrays import BoolArray, FloatArray, IntArray
from medusa_sim.plan.quantities import joule_per_token, step_watts, usd_per_million_tokens
from medusa_sim.plan.surface import Surface
from medusa_sim.setups.question import Question
from medusa_sim.setups.setup import PLAIN, SET_UP
from medusa_sim.step.server import first_token_us
from medusa_sim.units import US_PER_MS, US_PER_S


@dataclass(frozen=True, eq=False)
class Rows:
    """Every batch of a set-up with one drafter that fits, each with its best draft length: (N,) arrays.

    key: its SET_UP.
    """

    surface: Surface
    key: tuple[Any, ...]
    asked: Question

    def named(self, name: str) -> Any:
        """A value of SET_UP, in every row."""
        return np.full(self.batch.shape, self.key[SET_UP.index(name)])

    @cached_property
    def _places(self) -> tuple[IntArray, IntArray]:
        """(rows of the surface that fit, the draft length that emits most tokens there)."""
        rates = self.surface.tokens_per_s[:, 0]
        fits: BoolArray = np.broadcast_to(self.surface.in_flight.fits, self.surface.served.tpot_us.shape)[
            :, 0
        ]
        first, last = (0, 1) if self.key[SET_UP.index("drafter")] == PLAIN else (1, rates.shape[-1])
        allowed = np.where(fits, rates, -np.inf)[:, first:last]
        places = first + np.argmax(allowed, axis=-1)
        kept = np.flatnonzero(fits[np.arange(places.size), places])
        return kept, places[kept]

    def at(self, values: FloatArray) -> FloatArray:
        """Of an array that broadcasts with the surface."""
        kept, places = self._places
        whole = np.broadcast_to(values, self.surface.served.tpot_us.shape)
        return np.asarray(whole[kept, 0, places])

    @property
    def gpus(self) -> int:
        """Of one copy."""
        return self.surface.scenario.gpus

    @cached_property
    def batch(self) -> IntArray:
        """Requests of one copy."""
        batch: IntArray = self.surface.batch[self._places[0]]
        return batch

    @cached_property
    def drafts(self) -> IntArray:
        """Draft length; 0 of plain decoding."""
        steps = self.surface.in_flight
        return self.at(np.broadcast_to(steps.drafts, steps.tokens_per_step.shape)).astype(np.int64)

    @cached_property
    def rate(self) -> FloatArray:
        """Output tokens a second of one copy."""
        return self.at(self.surface.tokens_per_s)

    @cached_property
    def tpot_us(self) -> FloatArray:
        """Time per output token."""
        return self.at(self.surface.served.tpot_us)

    @cached_property
    def slower(self) -> FloatArray:
        """The slow end of the 80 % band of the time per token over it."""
        return self.at(self.surface.token_band[1])

    @cached_property
    def faster(self) -> FloatArray:
        """The fast end of the 80 % band of the time per token over it."""
        return self.at(self.surface.token_band[0])

    @cached_property
    def copies(self) -> IntArray:
        """Copies of the model that carry the traffic, each at this batch."""
        if self.asked.users is not None:
            return np.ceil(self.asked.users / self.batch).astype(np.int64)
        if self.asked.rate is not None:
            return np.ceil(self.asked.rate * self.asked.output_tokens / self.rate).astype(np.int64)
        return np.ones(self.batch.shape, dtype=np.int64)

    @cached_property
    def usd(self) -> FloatArray:
        """Dollars per million tokens of what is carried."""
        asked, carried = self.asked, self.rate
        if asked.rate is not None:
            carried = np.full(carried.shape, asked.rate * asked.output_tokens) / self.copies
        return usd_per_million_tokens(self.surface.scenario.usd_per_gpu_hour, self.gpus, carried)

    @cached_property
    def joules(self) -> FloatArray:
        """Joules per token."""
        return joule_per_token(self.at(step_watts(self.surface)), self.rate)

    @cached_property
    def ttft_us(self) -> FloatArray:
        """Time to the first token."""
        surface = self.surface
        return self.at(first_token_us(surface.setting, surface.in_flight.step_us, surface.served))

    @cached_property
    def e2e_us(self) -> FloatArray:
        """Time of a whole request: its prompt is in the time to the first token, and in no other."""
        return self.ttft_us + (self.asked.output_tokens - 1.0) * self.tpot_us


@dataclass(frozen=True, slots=True)
class Column:
    """One column."""

    name: str
    of: Callable[[Rows], Any] | None = None
    """Its values; None of what is told of all rows together."""
    title: str = ""
    """Heading in tables for people; empty: not shown there."""
    axis: str = ""
    """What the vertical axis of the chart says; empty: never there."""
    phrase: str = ""
    """How a sentence tells it, with {} for the number."""
    falls_with_speed: bool = False
    """Whether it is the larger the longer a token takes."""


def _named(name: str, title: str = "") -> Column:
    return Column(name, lambda at: at.named(name), title)


def _with_band(
    column: Column, low: Callable[[Rows], Any], high: Callable[[Rows], Any]
) -> tuple[Column, Column]:
    return Column(f"{column.name}_low", low), Column(f"{column.name}_high", high)


_PER_GPU = Column(
    "tokens_per_s_per_gpu", lambda at: at.rate / at.gpus, "tokens/s/GPU", "output tokens/s a GPU",
    "{} tokens/s a GPU",
)  # fmt: skip
_PER_USER = Column("tokens_per_s_per_user", lambda at: US_PER_S / at.tpot_us, "tokens/s/user")
_USD = Column(
    "usd_per_million_tokens", lambda at: at.usd, "$/M tokens", "dollars per million output tokens",
    "${} a million tokens", falls_with_speed=True,
)  # fmt: skip
_COLUMNS = (
    _named("gpu"),
    Column("gpus", lambda at: at.copies * at.gpus),
    _named("tp"),
    _named("ep"),
    _named("dp_attention"),
    _named("precision"),
    _named("engine"),
    _named("drafter", "drafter"),
    Column("drafts", lambda at: at.drafts, "drafts"),
    Column("batch", lambda at: at.batch, "batch"),
    _PER_GPU,
    _PER_USER,
    _USD,
    Column("on_frontier"),
    Column("chosen"),
    Column("replicas", lambda at: at.copies),
    _named("kv_precision"),
    *_with_band(_PER_GPU, lambda at: at.rate / at.gpus / at.slower, lambda at: at.rate / at.gpus / at.faster),
    *_with_band(
        _PER_USER,
        lambda at: US_PER_S / (at.tpot_us * at.slower),
        lambda at: US_PER_S / (at.tpot_us * at.faster),
    ),
    *_with_band(_USD, lambda at: at.usd * at.faster, lambda at: at.usd * at.slower),
    Column("tpot_ms", lambda at: at.tpot_us / US_PER_MS),
    Column("ttft_ms", lambda at: at.ttft_us / US_PER_MS),
    Column("e2e_ms", lambda at: at.e2e_us / US_PER_MS),
    Column(
        "joule_per_token",
        lambda at: at.joules,
        "J/token",
        "joules per output token",
        "{} J a token",
        falls_with_speed=True,
    ),
    Column("tokens_per_s_per_mw", lambda at: 1e6 / at.joules, axis="output tokens/s per megawatt of GPUs"),
    Column("sure", title="sure"),
    Column("meets_limits"),
)
COLUMNS = {column.name: column for column in _COLUMNS}
"""In the order of the table; rates are of output tokens, of all copies where they count GPUs or dollars."""


def on_frontier(speed: FloatArray, worth: FloatArray) -> BoolArray:
    """(n,) whether no other row has at least this speed and this worth, and more of one of them.

    speed, worth: larger is better; nan is never on the frontier. Of equal rows the first is.
    """
    order = np.lexsort((-worth, -speed))
    order = order[np.isfinite(speed[order]) & np.isfinite(worth[order])]
    best_before = np.maximum.accumulate(np.concatenate([[-np.inf], worth[order]]))[:-1]
    is_best = np.zeros(speed.size, dtype=np.bool_)
    is_best[order] = worth[order] > best_before
    return is_best
