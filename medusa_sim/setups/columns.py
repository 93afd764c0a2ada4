"""Every column of a comparison, and the rows of one set-up.

Columns are quantities of `plan.quantities`: how tables, charts and sentences tell one is declared there.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from medusa_sim.arrays import BoolArray, FloatArray
from medusa_sim.errors import CoverageError
from medusa_sim.plan.cells import Cells
from medusa_sim.plan.columns import with_unlisted
from medusa_sim.plan.costs import usd_per_million_tokens
from medusa_sim.plan.quantities import values
from medusa_sim.plan.scenario import Scenario
from medusa_sim.setups.question import Question
from medusa_sim.setups.setup import PLAIN, SET_UP
from medusa_sim.units import US_PER_MS

OF_CELLS = (
    "drafts", "batch", "tokens_per_s_per_gpu", "tokens_per_s_per_user", "tokens_per_s_per_gpu_low",
    "tokens_per_s_per_gpu_high", "tokens_per_s_per_user_low", "tokens_per_s_per_user_high", "tpot_ms",
    "ttft_ms", "joule_per_token", "tokens_per_s_per_mw",
)  # fmt: skip
"""Those that are one copy's alone."""


@dataclass(frozen=True, slots=True)
class Priced:
    """Rows of one set-up with one drafter, as columns. key: its SET_UP."""

    key: tuple[Any, ...]
    scenario: Scenario
    rows: dict[str, Any]


def rows_of(every: Cells, key: tuple[Any, ...], asked: Question) -> Priced:
    """Rows of every batch that fits, each with the draft length that emits most tokens.

    every: of one length. key: as of `Priced`. What is told of all rows together (`sure`, `chosen`, ...) is
    added by `Comparison.for_target`. Raises CoverageError where no batch fits.
    """
    scenario, by_count = every.scenario, every.by_count
    first, last = (0, 1) if key[SET_UP.index("drafter")] == PLAIN else (1, by_count.shape[-1])
    rates = np.where(by_count.fits, by_count.tokens_per_s, -np.inf)[:, 0]
    places = first + np.argmax(rates[:, first:last], axis=-1)
    kept = np.flatnonzero(np.isfinite(rates[np.arange(places.size), places]))
    if not kept.size:
        raise CoverageError("the drafter and its drafts leave no room for a request")

    def at(value: FloatArray) -> FloatArray:
        return np.asarray(np.broadcast_to(value, by_count.shape)[kept, 0, places[kept]])

    rows = {name: at(value) for name, value in values(by_count, with_unlisted(OF_CELLS)).items()}
    batch, rate, gpus = rows["batch"], at(by_count.tokens_per_s), scenario.gpus
    copies, carried = np.ones(batch.shape, dtype=np.int64), rate
    if asked.users is not None:
        copies = np.ceil(asked.users / batch).astype(np.int64)
    elif asked.rate is not None:
        copies = np.ceil(asked.rate * asked.output_tokens / rate).astype(np.int64)
        carried = np.full(rate.shape, asked.rate * asked.output_tokens) / copies
    usd = usd_per_million_tokens(scenario.usd_per_gpu_hour, gpus, carried)
    faster, slower = map(at, by_count.token_band)
    return Priced(
        key,
        scenario,
        {name: np.full(batch.shape, value) for name, value in zip(SET_UP, key, strict=True)}
        | rows
        | {
            "gpus": copies * gpus,
            "replicas": copies,
            "usd_per_million_tokens": usd,
            "usd_per_million_tokens_low": usd * faster,
            "usd_per_million_tokens_high": usd * slower,
            # the prompt is in the time to the first token, and in no other
            "e2e_ms": rows["ttft_ms"] + (asked.output_tokens - 1.0) * at(by_count.tpot_us) / US_PER_MS,
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
