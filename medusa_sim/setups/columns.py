"""The rows of one set-up: columns are quantities of `grid.quantities`, read from its cells."""

from __future__ import annotations

from typing import Any

import numpy as np

from medusa_sim.arrays import BoolArray, FloatArray
from medusa_sim.grid.cells import Cells
from medusa_sim.grid.columns import COMPARE, with_unlisted
from medusa_sim.grid.costs import usd_per_million_tokens
from medusa_sim.grid.quantities import BY_NAME, scenario_values, values
from medusa_sim.setups.question import Question
from medusa_sim.setups.setup import PLAIN, SET_UP
from medusa_sim.units import US_PER_MS

OF_CELLS = tuple(
    name for name in COMPARE if name not in SET_UP and name in BY_NAME and BY_NAME[name].read is not None
)
"""Those that are one copy's alone."""


def draft_lengths(every: Cells, *, plain: bool) -> Cells:
    """(B, 1, K) the draft lengths of one set-up at its one length.

    plain: plain decoding alone, which is read off the cells of any drafter.
    """
    by_count = every.by_count
    return by_count.plain if plain else by_count.with_index(by_count.index[..., 1:])


def set_up_of(cells: Cells) -> dict[str, Any]:
    """SET_UP by name: of the cells' scenario, without a drafter where none of them drafts."""
    drafter = {} if cells.drafts.any() else {"drafter": PLAIN}
    return {**scenario_values(cells.scenario, *SET_UP), **drafter}


def rows_of(cells: Cells, asked: Question) -> dict[str, Any]:
    """Columns of the rows of one set-up: each batch that fits, with the draft length that emits most tokens.

    cells: (B, 1, K). What is told of all rows together (`sure`, `chosen`, ...) is added by
    `Comparison.for_target`.
    """
    kept = np.flatnonzero(np.broadcast_to(cells.fits, cells.shape).any(axis=(1, 2)))
    places = cells.best_places(cells.tokens_per_s)[kept, 0]

    def at(value: FloatArray) -> FloatArray:
        return np.asarray(np.broadcast_to(value, cells.shape)[kept, 0, places])

    scenario = cells.scenario
    rows = {name: at(value) for name, value in values(cells, with_unlisted(OF_CELLS)).items()}
    batch, rate, gpus = rows["batch"], at(cells.tokens_per_s), scenario.gpus
    copies, carried = np.ones(batch.shape, dtype=np.int64), rate
    if asked.users is not None:
        copies = np.ceil(asked.users / batch).astype(np.int64)
    elif asked.rate is not None:
        copies = np.ceil(asked.rate * asked.output_tokens / rate).astype(np.int64)
        carried = np.full(rate.shape, asked.rate * asked.output_tokens) / copies
    usd = usd_per_million_tokens(scenario.usd_per_gpu_hour, gpus, carried)
    faster, slower = map(at, cells.token_band)
    return {
        **{name: np.full(batch.shape, value) for name, value in set_up_of(cells).items()},
        **rows,
        "gpus": copies * gpus,
        "replicas": copies,
        "usd_per_million_tokens": usd,
        "usd_per_million_tokens_low": usd * faster,
        "usd_per_million_tokens_high": usd * slower,
        # the prompt is in the time to the first token, and in no other
        "e2e_ms": rows["ttft_ms"] + (asked.output_tokens - 1.0) * at(cells.tpot_us) / US_PER_MS,
    }


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
