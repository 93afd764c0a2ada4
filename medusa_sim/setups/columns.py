"""Every column of a comparison: its values, and how tables, charts and sentences tell it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from medusa_sim.arrays import BoolArray, FloatArray
from medusa_sim.errors import CoverageError
from medusa_sim.plan.quantities import joule_per_token, step_watts, usd_per_million_tokens
from medusa_sim.plan.scenario import Scenario
from medusa_sim.plan.surface import Surface
from medusa_sim.setups.question import Question
from medusa_sim.setups.setup import PLAIN, SET_UP
from medusa_sim.units import US_PER_MS, US_PER_S


@dataclass(frozen=True, slots=True)
class Column:
    """How a column is told.

    title: heading in tables for people (empty: not shown there); axis: what the vertical axis of the chart
    says (empty: never there); phrase: of a sentence, with {} for the number; falls_with_speed: whether it is
    the larger the longer a token takes.
    """

    title: str = ""
    axis: str = ""
    phrase: str = ""
    falls_with_speed: bool = False


COLUMNS: dict[str, Column] = dict.fromkeys(
    (
        "gpu", "gpus", "tp", "ep", "dp_attention", "precision", "engine", "drafter", "drafts", "batch",
        "tokens_per_s_per_gpu", "tokens_per_s_per_user", "usd_per_million_tokens", "on_frontier", "chosen",
        "replicas", "kv_precision", "tokens_per_s_per_gpu_low", "tokens_per_s_per_gpu_high",
        "tokens_per_s_per_user_low", "tokens_per_s_per_user_high", "usd_per_million_tokens_low",
        "usd_per_million_tokens_high", "tpot_ms", "ttft_ms", "e2e_ms", "joule_per_token",
        "tokens_per_s_per_mw", "sure", "meets_limits",
    ),
    Column(),
) | {
    "drafter": Column("drafter"),
    "drafts": Column("drafts"),
    "batch": Column("batch"),
    "tokens_per_s_per_gpu": Column("tokens/s/GPU", "output tokens/s a GPU", "{} tokens/s a GPU"),
    "tokens_per_s_per_user": Column("tokens/s/user"),
    "usd_per_million_tokens": Column(
        "$/M tokens", "dollars per million output tokens", "${} a million tokens", falls_with_speed=True
    ),
    "joule_per_token": Column("J/token", "joules per output token", "{} J a token", falls_with_speed=True),
    "tokens_per_s_per_mw": Column(axis="output tokens/s per megawatt of GPUs"),
    "sure": Column("sure"),
}  # fmt: skip
"""In the order of the table; rates are of output tokens, of all copies where they count GPUs or dollars."""


@dataclass(frozen=True, slots=True)
class Priced:
    """Rows of one set-up with one drafter, as columns. key: its SET_UP."""

    key: tuple[Any, ...]
    scenario: Scenario
    rows: dict[str, Any]


def rows_of(surface: Surface, key: tuple[Any, ...], asked: Question) -> Priced:
    """Rows of every batch that fits, each with the draft length that emits most tokens.

    key: as of `Priced`. What is told of all rows together (`sure`, `chosen`, ...) is added by
    `Comparison.for_target`. Raises CoverageError where no batch fits.
    """
    scenario, rates, shape = surface.scenario, surface.tokens_per_s[:, 0], surface.served.tpot_us.shape
    fits: BoolArray = np.broadcast_to(surface.in_flight.fits, shape)[:, 0]
    first, last = (0, 1) if key[SET_UP.index("drafter")] == PLAIN else (1, rates.shape[-1])
    places = first + np.argmax(np.where(fits, rates, -np.inf)[:, first:last], axis=-1)
    kept = np.flatnonzero(fits[np.arange(places.size), places])
    if not kept.size:
        raise CoverageError("the drafter and its drafts leave no room for a request")

    def at(values: FloatArray) -> FloatArray:
        return np.asarray(np.broadcast_to(values, shape)[kept, 0, places[kept]])

    batch, gpus, rate, tpot_us = (
        surface.batch[kept],
        scenario.gpus,
        at(surface.tokens_per_s),
        at(surface.served.tpot_us),
    )
    faster, slower = map(at, surface.token_band)  # ends of the 80 % band of the time per token over it
    copies, carried = np.ones(batch.shape, dtype=np.int64), rate
    if asked.users is not None:
        copies = np.ceil(asked.users / batch).astype(np.int64)
    elif asked.rate is not None:
        copies = np.ceil(asked.rate * asked.output_tokens / rate).astype(np.int64)
        carried = np.full(rate.shape, asked.rate * asked.output_tokens) / copies
    usd = usd_per_million_tokens(scenario.usd_per_gpu_hour, gpus, carried)
    joules = joule_per_token(at(step_watts(surface)), rate)
    ttft_us = at(surface.served.first_token_us)
    steps = surface.in_flight
    return Priced(
        key,
        scenario,
        {name: np.full(batch.shape, value) for name, value in zip(SET_UP, key, strict=True)}
        | {
            "gpus": copies * gpus,
            "drafts": at(np.broadcast_to(steps.drafts, steps.tokens_per_step.shape)).astype(np.int64),
            "batch": batch,
            "tokens_per_s_per_gpu": rate / gpus,
            "tokens_per_s_per_user": US_PER_S / tpot_us,
            "usd_per_million_tokens": usd,
            "replicas": copies,
            "tokens_per_s_per_gpu_low": rate / gpus / slower,
            "tokens_per_s_per_gpu_high": rate / gpus / faster,
            "tokens_per_s_per_user_low": US_PER_S / (tpot_us * slower),
            "tokens_per_s_per_user_high": US_PER_S / (tpot_us * faster),
            "usd_per_million_tokens_low": usd * faster,
            "usd_per_million_tokens_high": usd * slower,
            "tpot_ms": tpot_us / US_PER_MS,
            "ttft_ms": ttft_us / US_PER_MS,
            # the prompt is in the time to the first token, and in no other
            "e2e_ms": (ttft_us + (asked.output_tokens - 1.0) * tpot_us) / US_PER_MS,
            "joule_per_token": joules,
            "tokens_per_s_per_mw": 1e6 / joules,
        },
    )


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
