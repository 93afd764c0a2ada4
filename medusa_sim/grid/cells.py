"""Cells of a surface: at every batch and length some configurations, and what a step of each gives.

Every number of a step is read here, as an array that broadcasts with (B, S, K): K cells at each of B batches
and S lengths. All configurations are `Cells.every`, the best of each number of candidates `by_count`, the
best of these `best`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from medusa_sim.arrays import Band, BoolArray, FloatArray, IntArray, as_float
from medusa_sim.grid.bands import Bands
from medusa_sim.grid.configurations import PLAIN, Configurations
from medusa_sim.grid.steps import Steps, picked
from medusa_sim.grid.surface import Surface, surface_at
from medusa_sim.scenario.draft_options import DraftOption
from medusa_sim.scenario.scenario import Scenario
from medusa_sim.step.memory import MemoryParts, memory_parts
from medusa_sim.step.server import Server
from medusa_sim.units import US_PER_S

_TIE = 1e-12
"""Share by which an option must beat the one before it: times that differ by rounding are equal."""
_ALWAYS_LAST = 1e9
"""Moves what does not fit behind whatever does, in the same order."""


@dataclass(frozen=True, eq=False)
class Cells:
    """Configurations of a surface and all that is known about them.

    index: configuration of each cell, broadcasts with (B, S, K). known_plain: plain decoding, where the cells
    that these were chosen from have it.
    """

    surface: Surface
    index: IntArray
    known_plain: Cells | None = None

    @classmethod
    def every(cls, surface: Surface) -> Cells:
        """Every configuration at every batch and length."""
        return cls(surface, np.arange(surface.configurations.candidates.size)[None, None, :])

    def with_index(self, index: IntArray) -> Cells:
        """Other cells of the same surface; this object, where the index is the same.

        index: (B or 1, S or 1, K).
        """
        for axis in (0, 1):  # once where all batches or lengths have the same
            first = index.take([0], axis) if index.shape[axis] > 1 else index
            if np.array_equal(np.broadcast_to(first, index.shape), index):
                index = first
        return self if np.array_equal(index, self.index) else Cells(self.surface, index, self.plain)

    @property
    def scenario(self) -> Scenario:
        """What was priced."""
        return self.surface.scenario

    @property
    def configurations(self) -> Configurations:
        """What the index names."""
        return self.surface.configurations

    @property
    def shape(self) -> tuple[int, int, int]:
        """(B, S, K)."""
        return *self.surface.shape, self.index.shape[-1]

    @property
    def batch(self) -> IntArray:
        """(B, 1, 1) sequences of a step."""
        return self.surface.batch[:, None, None]

    @property
    def seq_len(self) -> IntArray:
        """(1, S, 1) committed tokens of each sequence."""
        return self.surface.seq_len[None, :, None]

    @cached_property
    def candidates(self) -> IntArray:
        """Tokens that a step verifies for each sequence, root included."""
        return self.steps.candidates

    @property
    def drafts(self) -> IntArray:
        """Draft length (Medusa: heads run); 0 of plain decoding."""
        return self.configurations.depth[self.index]

    def option_at(self, b: int, s: int, k: int = 0) -> DraftOption | None:
        """How a cell drafts; None for plain decoding."""
        return self.configurations.option_of(self.configuration_at(b, s, k))

    def configuration_at(self, b: int, s: int, k: int = 0) -> int:
        """Which configuration a cell has."""
        return int(np.broadcast_to(self.index, self.shape)[b, s, k])

    def candidates_at(self, b: int, s: int, k: int = 0) -> int:
        """Candidates of a cell."""
        return int(self.configurations.candidates[self.configuration_at(b, s, k)])

    # Other configurations.

    @property
    def by_count(self) -> Cells:
        """For each count (1 first: plain decoding) its best configuration at each batch and length.

        The fastest of those that fit; where none fits, the fastest.
        """
        return self if self._by_count is None else self._by_count

    @cached_property
    def _by_count(self) -> Cells | None:
        """None where that are these cells: cells that held themselves would stay when nobody needs them."""
        found = self.with_index(self._best_of_counts())
        return None if found is self else found

    def _best_of_counts(self) -> IntArray:
        """(B or 1, S or 1, 1 + C) index of `by_count`."""
        configurations = self.configurations
        members = configurations.with_count
        every = self if self.index.shape[-1] == configurations.candidates.size else Cells.every(self.surface)
        if members.shape[1] == 1:
            return members[None, None, :, 0]
        per_token = every.step_us * ((1.0 + _TIE * configurations.option) / configurations.tokens_per_step)
        if not every.fits.all():
            per_token = np.where(every.fits, per_token, _ALWAYS_LAST * per_token)
        fastest = np.argmin(per_token[..., members.T], axis=-2)
        return np.asarray(members[np.arange(len(members)), fastest])

    def best(self, worth: FloatArray | None = None) -> Cells:
        """(B, S, 1) the cell of most worth (None: speedup) that fits, the first of equals.

        Plain decoding where none fits.
        """
        places = self.best_places(worth)
        index = np.take_along_axis(np.broadcast_to(self.index, self.shape), places[..., None], axis=-1)
        none_fits = ~np.broadcast_to(self.fits, self.shape).any(axis=-1, keepdims=True)
        return self.with_index(np.where(none_fits, PLAIN, index))

    def best_places(self, worth: FloatArray | None = None) -> IntArray:
        """(B, S) places of `best` among the cells, 0 where none fits."""
        values = np.broadcast_to(self.speedup if worth is None else worth, self.shape)
        fits = np.broadcast_to(self.fits, self.shape)
        return np.asarray(np.argmax(np.where(fits, values, -np.inf), axis=-1))

    @cached_property
    def contenders(self) -> Cells:
        """Configurations that are the best of their count somewhere, at every batch and length."""
        return self.with_index(np.unique(self.by_count.index.ravel())[None, None, :])

    # The same elsewhere.

    @property
    def plain(self) -> Cells:
        """Plain decoding, one cell at each batch and length."""
        return self if np.array_equal(self.index, [[[PLAIN]]]) else self._plain

    @cached_property
    def _plain(self) -> Cells:
        return self.known_plain or Cells(self.surface, np.array([[[PLAIN]]]))

    @property
    def in_flight(self) -> Cells:
        """The same with the steps of the requests in flight around each length."""
        return self if self.surface.in_flight is self.surface else self._in_flight

    @cached_property
    def _in_flight(self) -> Cells:
        return Cells(self.surface.in_flight, self.index)

    @cached_property
    def with_kernels_alone(self) -> Cells | None:
        """The same with the engine's kernels alone; None where the runtime is no engine."""
        surface = self.surface.kernels_alone
        return None if surface is None else Cells(surface, self.index)

    # What a step takes.

    @cached_property
    def steps(self) -> Steps:
        """The step of each cell, pass by pass."""
        return Steps(self.surface, self.index)

    @property
    def step_us(self) -> FloatArray:
        """The whole step."""
        return self.steps.time_us

    @property
    def decode_us(self) -> FloatArray:
        """The plain step at the same batch and length, broadcasts with (B, S, 1)."""
        return self.surface.decode.time_us

    # What a step gives.

    @cached_property
    def tokens_per_step(self) -> FloatArray:
        """Mean tokens that a step emits for each sequence."""
        return self.steps.tokens_per_step

    @cached_property
    def overhead(self) -> FloatArray:
        """The step over the plain one at the same batch and length."""
        return self.step_us / self.decode_us

    @cached_property
    def step_speedup(self) -> FloatArray:
        """Tokens per step over overhead: what is gained where a server adds nothing."""
        return self.tokens_per_step / self.overhead

    @cached_property
    def speedup(self) -> FloatArray:
        """Plain decoding's time per token over the cell's: of steps, with traffic of the server.

        A server adds to both what it does for every token alike (choosing it, prompts that ride along), so
        that its speedup is nearer to 1 than the step's.
        """
        if self.scenario.traffic is None:
            return self.step_speedup
        return np.asarray(self._baseline.first(self._baseline.served.token_us) / self.token_us)

    def speedup_at(self, b: int, s: int) -> FloatArray:
        """(K,) `speedup` at one batch and length; the first cell must be plain decoding."""
        if self.scenario.traffic is None:
            return as_float(np.broadcast_to(self.step_speedup, self.shape)[b, s])
        token_us = self.steps.served_at(b, s).token_us
        return np.asarray(token_us[0] / token_us)

    @property
    def _baseline(self) -> Steps:
        """Steps of which the first is plain decoding: these, or that alone."""
        return self.plain.steps if (self.index[..., 0] != PLAIN).any() else self.steps

    # In a server.

    @property
    def served(self) -> Server:
        """Steps seen through a server that stays full with the scenario's traffic (`step/server.py`)."""
        return self.steps.served

    @cached_property
    def tpot_us(self) -> FloatArray:
        """Time per token of a request from its first token on."""
        return self.served.tpot_us

    @cached_property
    def token_us(self) -> FloatArray:
        """The same with its own prompt: batch / token_us is the rate of all requests."""
        return self.served.token_us

    @cached_property
    def tokens_per_s(self) -> FloatArray:
        """Tokens a second of the whole batch."""
        return np.asarray(self.batch * US_PER_S / self.token_us)

    @property
    def tokens_per_s_per_user(self) -> FloatArray:
        """Tokens a second of one request, from its first token on."""
        return np.asarray(US_PER_S / self.tpot_us)

    @property
    def watts(self) -> FloatArray:
        """Mean watts of all GPUs while such steps follow one another (`Steps.watts`)."""
        return self.steps.watts

    # What it needs.

    @property
    def memory(self) -> MemoryParts:
        """What one GPU keeps, bytes."""
        return self.memory_at(self.batch)

    def memory_at(self, batch: IntArray) -> MemoryParts:
        """The same at other batches, which broadcast with (B, S, K)."""
        shard = self.scenario.shard
        added = self.configurations.drafter_bytes(shard)
        weights, kv, slots = (picked(row, self.index) if row.any() else 0.0 for row in added)
        return memory_parts(
            shard, weights, kv, slots, batch, self.surface.served_len[None, :, None], self.candidates
        )

    @cached_property
    def max_batch(self) -> IntArray:
        """Largest batch that fits in memory; 0 where none does."""
        return picked(self.surface.max_batch[None], self.index)

    @cached_property
    def fits(self) -> BoolArray:
        """Whether the batch fits in memory."""
        return np.asarray(self.batch <= self.max_batch)

    # How sure that is: ends of 80 % bands.

    @cached_property
    def bands(self) -> Bands:
        """Half-widths of all of them."""
        return Bands(self.steps, self._baseline)

    @cached_property
    def band(self) -> Band:
        """Of `speedup`."""
        served = self.scenario.traffic is not None
        low, high = (self.bands.server_speedup if served else self.bands.step_speedup).ratios()
        return Band(self.speedup * low, self.speedup * high)

    @property
    def log_speedup_half(self) -> FloatArray:
        """Half the width of `band` on the logarithm, (B, S, K); 0 of plain decoding."""
        return np.asarray(np.broadcast_to(np.log(self.band.high / self.band.low) / 2.0, self.shape))

    @property
    def low_us(self) -> FloatArray:
        """Lower end of the step."""
        return np.asarray(self.step_us * self.bands.step.ratios().low)

    @property
    def high_us(self) -> FloatArray:
        """Upper end of the step."""
        return np.asarray(self.step_us * self.bands.step.ratios().high)

    @property
    def token_band(self) -> Band:
        """Of the time per token, as ratios to it."""
        return self.bands.token_us.ratios()


def price(
    scenario: Scenario,
    batch: Sequence[int] | IntArray,
    seq_len: Sequence[int] | IntArray | FloatArray,
    options: Sequence[DraftOption] | None = None,
) -> Cells:
    """Every configuration of a scenario at every batch and length with these ways of drafting (None: all).

    seq_len: a mean length need not be whole. Raises UsageError where the profile cannot describe the drafter;
    what a step takes is priced when it is read, and raises SpecError or CoverageError.
    """
    return Cells.every(surface_at(scenario, batch, seq_len, options))
