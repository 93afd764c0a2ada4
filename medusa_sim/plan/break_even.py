"""Where speculation stops paying: the batch, the context, and in which direction."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt

from medusa_sim.arrays import FloatArray, IntArray
from medusa_sim.plan.draft_options import DraftOption
from medusa_sim.plan.surface import searched
from medusa_sim.specs.gpu import Gpu
from medusa_sim.step.step import Setting

Direction = Literal["loses from", "pays from", "pays throughout", "loses throughout"]

BATCHES_SEARCHED = 1024
SHORTEST_CONTEXT = 16
_EVERY_BATCH_TO = 64
_RATIO = 1.07
"""Beyond the first batches every 7 % is tried, and every whole number around the last change."""
_FEW_COUNTS = np.asarray([*range(2, 11), 12, 14, 16, 20, 24, 28, 32, 40, 48, 56, 64, 80, 96, 128, 192, 256])


@dataclass(frozen=True, slots=True, kw_only=True)
class BreakEven:
    """The last place where the best speculative speedup crosses 1 on the range searched.

    `loses from`: it stays at or below 1 from `at` on. `pays from`: it stays above 1 from `at` on. None
    where nothing changes on the range.
    """

    at: int | None
    direction: Direction
    searched_from: int
    searched_to: int

    @property
    def loses_from(self) -> int | None:
        """Smallest value from which speculation no longer pays; None if it pays at the far end."""
        if self.direction == "loses throughout":
            return self.searched_from
        return self.at if self.direction == "loses from" else None


def thinned(options: Sequence[DraftOption]) -> tuple[DraftOption, ...]:
    """The same options with about thirty counts each: near break-even the best counts are small."""
    kept = (option.only(_FEW_COUNTS) for option in options)
    return tuple(option for option in kept if option is not None)


def last_crossing(pays: npt.NDArray[np.bool_]) -> tuple[int, Direction]:
    """(place where the final state begins, direction) of answers along an ascending axis."""
    final = bool(pays[-1])
    changed = np.flatnonzero(pays != final)
    if changed.size == 0:
        return 0, "pays throughout" if final else "loses throughout"
    return int(changed[-1]) + 1, "pays from" if final else "loses from"


def crossing(values: IntArray, pays_at: Callable[[IntArray], npt.NDArray[np.bool_]]) -> BreakEven:
    """The last crossing over ascending whole `values`, told to the whole number."""
    return _refined(values, pays_at(values), pays_at)


def _refined(
    values: IntArray, pays: npt.NDArray[np.bool_], pays_at: Callable[[IntArray], npt.NDArray[np.bool_]]
) -> BreakEven:
    place, direction = last_crossing(pays)
    ends = {"searched_from": int(values[0]), "searched_to": int(values[-1])}
    if direction.endswith("throughout"):
        return BreakEven(at=None, direction=direction, **ends)
    below, above = int(values[place - 1]), int(values[place])
    while above - below > 1:
        between = np.unique(np.linspace(below, above, min(above - below + 1, 66)).astype(np.int64))
        inside = pays_at(between[1:-1])
        states = np.concatenate([[not pays[-1]], inside, [pays[-1]]])
        at, _ = last_crossing(states)
        below, above = int(between[at - 1]), int(between[at])
    return BreakEven(at=above, direction=direction, **ends)


def best_speculative(
    gpu: Gpu, setting: Setting, options: Sequence[DraftOption], batch: IntArray, seq_len: IntArray
) -> FloatArray:
    """(B, S) largest speedup of any configuration that speculates; memory is left out."""
    surface = searched(gpu, setting, options, batch, seq_len)
    return np.asarray(surface.speedup[..., 1:].max(axis=-1))


def break_even_batches(
    gpu: Gpu, setting: Setting, options: Sequence[DraftOption], seq_len: IntArray
) -> tuple[BreakEven, ...]:
    """For each length the last batch crossing between 1 and BATCHES_SEARCHED."""
    few = thinned(options)
    beyond = np.geomspace(
        _EVERY_BATCH_TO,
        BATCHES_SEARCHED,
        1 + round(float(np.log(BATCHES_SEARCHED / _EVERY_BATCH_TO) / np.log(_RATIO))),
    )
    batches = np.unique(np.concatenate([np.arange(1, _EVERY_BATCH_TO), np.rint(beyond).astype(np.int64)]))
    pays = best_speculative(gpu, setting, few, batches, seq_len) > 1.0

    def at_length(length: IntArray) -> Callable[[IntArray], npt.NDArray[np.bool_]]:
        return lambda batch: np.asarray(best_speculative(gpu, setting, few, batch, length)[:, 0] > 1.0)

    return tuple(_refined(batches, pays[:, s], at_length(seq_len[s : s + 1])) for s in range(seq_len.size))


def break_even_context(
    gpu: Gpu, setting: Setting, options: Sequence[DraftOption], batch: int, longest: int
) -> BreakEven:
    """The last context crossing between SHORTEST_CONTEXT and `longest` at one batch.

    A long context can bring speculation back at a large batch: reading the KV cache then takes most of
    a step, and a verification step reads it once for all candidates.
    """
    few = thinned(options)
    steps = 1 + max(1, round(float(np.log2(longest / SHORTEST_CONTEXT) * 4)))
    lengths = np.unique(np.rint(np.geomspace(SHORTEST_CONTEXT, longest, steps)).astype(np.int64))
    one = np.asarray([batch])
    return crossing(
        lengths, lambda length: np.asarray(best_speculative(gpu, setting, few, one, length)[0] > 1.0)
    )
