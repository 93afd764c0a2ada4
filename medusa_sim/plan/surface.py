"""The joint search: every way of drafting x every candidate count x every batch and length, at once.

Verification is priced once on the (batch, length, candidates) grid, the drafting of each option on the
small axes it depends on; both are then laid out as one axis of configurations. Configuration 0 is plain
decoding, so that choosing not to speculate is a choice like any other.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from medusa_sim.arrays import BoolArray, FloatArray, IntArray
from medusa_sim.errors import UsageError
from medusa_sim.latency.cached import cached
from medusa_sim.plan.draft_options import DraftOption
from medusa_sim.specs.gpu import Gpu
from medusa_sim.step.drafter import Drafter
from medusa_sim.step.memory import step_memory_bytes, usable_memory_bytes
from medusa_sim.step.step import Setting, StepTime, decode_step, drafting_steps, verification_step

PLAIN = 0
"""The configuration that does not speculate."""
LARGEST_SEARCH = 60_000_000
"""Cells (batch x length x configurations) searched at most: about 2 GB of arrays."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Surface:
    """Every configuration at every batch and length. Shapes: B batches, S lengths, J configurations.

    options, option, candidates: option[j] indexes `options` (-1 for plain decoding), candidates[j] is the
    count. tokens_per_step: (J,). step_us, low_us, high_us: (B, S, J), the whole step with its 80 % band.
    decode: the plain step, (B, S, 1). max_batch: (S, J), the largest batch that fits in memory.
    """

    gpu: Gpu
    setting: Setting
    batch: IntArray
    seq_len: IntArray
    options: tuple[DraftOption, ...]
    option: IntArray
    candidates: IntArray
    tokens_per_step: FloatArray
    decode: StepTime
    step_us: FloatArray
    low_us: FloatArray
    high_us: FloatArray

    @cached_property
    def decode_us(self) -> FloatArray:
        """(B, S) plain decoding step."""
        return np.asarray(
            np.broadcast_to(self.decode.time_us, (self.batch.size, self.seq_len.size, 1))[..., 0]
        )

    @cached_property
    def speedup(self) -> FloatArray:
        """(B, S, J) tokens per step over overhead, at the same batch and length."""
        return self.tokens_per_step * self.decode_us[..., None] / self.step_us

    @cached_property
    def max_batch(self) -> IntArray:
        """(S, J) largest batch whose weights, drafter, KV cache and activations fit; 0 where none does."""
        found = np.empty((self.seq_len.size, self.candidates.size), dtype=np.int64)
        for index in np.unique(self.option):
            columns = np.flatnonzero(self.option == index)
            drafter = None if index < 0 else self.options[index].drafter
            found[:, columns] = max_batch(
                self.gpu, self.setting, drafter, self.seq_len[:, None], self.candidates[columns]
            )
        return found

    @cached_property
    def fits(self) -> BoolArray:
        """(B, S, J) whether the batch fits in memory."""
        return np.asarray(self.batch[:, None, None] <= self.max_batch)

    def option_of(self, configuration: int) -> DraftOption | None:
        """How a configuration drafts; None for plain decoding."""
        index = int(self.option[configuration])
        return None if index < 0 else self.options[index]


def max_batch(
    gpu: Gpu, setting: Setting, drafter: Drafter | None, seq_len: IntArray, candidates: IntArray
) -> IntArray:
    """Largest batch that fits in memory; a step keeps its weights and so many bytes a sequence."""
    none, one = (step_memory_bytes(setting.model, drafter, b, seq_len, candidates) for b in (0, 1))
    room = usable_memory_bytes(gpu) - none
    return np.maximum(np.floor(room / (one - none)), 0.0).astype(np.int64)


def searched(
    gpu: Gpu,
    setting: Setting,
    options: Sequence[DraftOption],
    batch: Sequence[int] | IntArray,
    seq_len: Sequence[int] | IntArray,
) -> Surface:
    """Times and tokens of every configuration at every batch and length (scope `model`).

    Raises UsageError for a search beyond LARGEST_SEARCH cells; SpecError or CoverageError from the
    latency model.
    """
    batches, lengths = np.asarray(batch, dtype=np.int64), np.asarray(seq_len, dtype=np.int64)
    counts = np.unique(np.concatenate([option.candidates for option in options]))
    configurations = 1 + sum(option.candidates.size for option in options)
    shape = (batches.size, lengths.size, configurations)
    if batches.size * lengths.size * configurations > LARGEST_SEARCH:
        raise UsageError(
            f"{batches.size} batches x {lengths.size} lengths x {configurations} configurations are too "
            "many; search fewer lengths, a smaller range of batches or fewer candidates"
        )
    known = replace(setting, scope="model", latency=cached(setting.latency))
    rows, columns = batches[:, None, None], lengths[None, :, None]
    decode = decode_step(known, rows, columns)
    verify = verification_step(known, rows, columns, counts[None, None, :])
    step, low, high = (np.empty(shape) for _ in range(3))
    step[..., :1], low[..., :1], high[..., :1] = decode.time_us, decode.low_us, decode.high_us
    start = 1
    for option in options:
        place = slice(start, start + option.candidates.size)
        start = place.stop
        timed = replace(known, drafter=option.drafter)
        parts = drafting_steps(timed, rows, columns, option.candidates[None, None, :])
        whole = verify.cost.at(np.searchsorted(counts, option.candidates))
        for part in parts:
            whole = whole + part.cost
        step[..., place], low[..., place], high[..., place] = whole.time_us, whole.low_us, whole.high_us
    return Surface(
        gpu=gpu,
        setting=replace(setting, scope="model"),
        batch=batches,
        seq_len=lengths,
        options=tuple(options),
        option=np.concatenate([[-1], *(np.full(o.candidates.size, i) for i, o in enumerate(options))]),
        candidates=np.concatenate([[1], *(option.candidates for option in options)]),
        tokens_per_step=np.concatenate([[1.0], *(option.tokens_per_step for option in options)]),
        decode=decode,
        step_us=step,
        low_us=low,
        high_us=high,
    )
