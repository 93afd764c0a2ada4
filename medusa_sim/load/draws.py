"""What requests emit, step by step, with any number of drafts; whether a look-up finds any, drawn in runs.

    (L5)  P(found after found) = 1 - (1 - z) / r,  P(found after none) = z / r

z is the share of the steps in which drafts are found (`match_rate`), r how many times as long as of
independent steps runs are: a text that is being copied goes on being copied. A step verifies what was found.

Tokens of a step stand in a long row, each number of them as often as the profile says, in random order; a
request reads on from a place of its own, a step a cell. So its luck does not depend on who is served beside
it, nor on the policy: policies are compared request by request. With K drafts a cell gives at most K + 1.
"""

from __future__ import annotations

from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from medusa_sim.arrays import BoolArray, FloatArray, IntArray
from medusa_sim.load.kinds import kinds_of, rates_by_kind
from medusa_sim.load.step_table import StepTable

_LEAST, _MOST = 1 << 12, 1 << 18
_LEAST_OF_KIND = 1 << 11
"""Cells: as many as the requests take steps, within these."""


Bytes: TypeAlias = NDArray[np.int8]


class Draws:
    """Cells of every request. begins: of each, the first cell; size: cells of one number of drafts.

    Cell i of K drafts is `K * size + i`. sums: (cells + 1,) tokens of all cells before each; empty where
    nothing is drafted (`is_plain`) and a cell is a token. found: (size + 1,) cells before each in which
    drafts were found; empty where they always are (not `looks_up`).

    output_tokens: (requests,) tokens to emit; spread: of the requests' acceptance (L4). A request whose first
    draft is accepted more often than others' are found finds more.
    """

    def __init__(self, table: StepTable, output_tokens: IntArray, seed: int, spread: float) -> None:
        self.sums: IntArray = np.zeros(0, dtype=np.int64)
        self.found = self.sums
        self.is_plain, self.looks_up = not table.drafts_max, table.match_rate < 1.0
        self.size = 0
        self.begins: list[int] = [0] * output_tokens.size
        if self.is_plain:
            return
        random = np.random.default_rng([seed, 5])
        rates = rates_by_kind(table.rates, spread)
        kinds, longest = len(rates), int(output_tokens.max())
        steps = round(float(output_tokens.sum() / table.tokens_per_step[-1]))
        cells = max(min(max(steps, _LEAST), _MOST) // kinds, _LEAST_OF_KIND if kinds > 1 else 0)
        begins = random.integers(0, cells, output_tokens.size)
        if kinds > 1:
            begins += kinds_of(output_tokens.size, seed) * (cells + longest)
        self.begins, self.size = begins.tolist(), kinds * (cells + longest)
        hits = None
        if self.looks_up:
            rate = np.maximum(rates[:, :1], table.match_rate)
            rates, hits = rates / rate, _in_runs(rate, table.match_runs, cells, random)
        tokens = random.permuted(_even(rates, cells), axis=1)
        if hits is not None:
            tokens = np.where(hits, tokens, np.int8(1))
            self.found = _sums(_longer(hits, longest))
        tokens = _longer(tokens, longest)
        self.sums = _sums(np.concatenate([np.minimum(tokens, most + 1) for most in range(len(rates[0]) + 1)]))


def _even(rates: FloatArray, cells: int) -> Bytes:
    """(kinds, cells) tokens of a step, each number as often as the rates (kinds, K) say, the most first."""
    place = (np.arange(cells) + 0.5) / cells
    tokens = np.ones((len(rates), cells), dtype=np.int8)
    for each in rates.T:
        tokens += place < each[:, None]
    return tokens


def _in_runs(rate: FloatArray, runs: float, cells: int, random: np.random.Generator) -> BoolArray:
    """(kinds, cells) whether drafts are found (L5). rate: (kinds, 1) z of each."""
    drawn = random.random((len(rate), cells))
    stays = 1.0 - 1.0 / runs
    anew = drawn >= stays
    anew[:, 0] = True
    drawn[:, 0] = stays + drawn[:, 0] / runs
    last = np.maximum.accumulate(np.where(anew, np.arange(cells), 0), axis=1)
    return np.asarray(np.take_along_axis(drawn < stays + rate / runs, last, axis=1))


def _longer(cells: Bytes | BoolArray, more: int) -> Bytes:
    """(all,) of kinds in a row, each beginning again after its end."""
    return np.pad(cells.astype(np.int8), ((0, 0), (0, more)), mode="wrap").ravel()


def _sums(cells: Bytes) -> IntArray:
    sums = np.zeros(cells.size + 1, dtype=np.int64)
    np.cumsum(cells, out=sums[1:])
    return sums
