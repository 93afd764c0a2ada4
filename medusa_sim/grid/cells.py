"""Cells of a surface: at every batch and length some configurations, and what a step of each gives.

A number of cells is an array (batches, lengths, cells) in which what is the same along an axis may stand once
(`Cells.spread` repeats it). All configurations are `Cells.every`, the best of each number of candidates
`by_count`, the best of these `best`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
import numpy.typing as npt

from medusa_sim.arrays import Band, BoolArray, FloatArray, IntArray, NumberT, as_float
from medusa_sim.grid.bands import Bands
from medusa_sim.grid.cached_or_self import cached_or_self
from medusa_sim.grid.configurations import PLAIN, Configurations
from medusa_sim.grid.server_steps import ServerSteps
from medusa_sim.grid.steps import Steps, picked
from medusa_sim.grid.surface import GrownPrompts, Surface, surface_at
from medusa_sim.scenario.draft_options import DraftOption
from medusa_sim.scenario.scenario import Scenario
from medusa_sim.serving.server import Server
from medusa_sim.step.memory import DrafterMemory, MemoryParts, memory_parts
from medusa_sim.units import US_PER_S

_TIE = 1e-12
"""Share by which an option must beat the one before it: times that differ by rounding are equal."""
_ALWAYS_LAST = 1e9
"""Sorts what does not fit after whatever does, in the same order."""


@dataclass(frozen=True, eq=False)
class Cells:
    """Some configurations at every batch and length of a surface.

    index: (batches, lengths, cells) configuration of each cell.
    """

    surface: Surface
    index: IntArray

    @classmethod
    def every(cls, surface: Surface) -> Cells:
        """Every configuration at every batch and length."""
        return cls(surface, surface.configurations.indices)

    # Where they are, and what they run.

    @property
    def scenario(self) -> Scenario:
        """The scenario that was priced."""
        return self.surface.scenario

    @property
    def configurations(self) -> Configurations:
        """The configurations that the index names."""
        return self.surface.configurations

    @property
    def shape(self) -> tuple[int, int, int]:
        """Batches, lengths, cells at each."""
        return *self.surface.shape, self.index.shape[-1]

    def spread(self, values: npt.NDArray[NumberT]) -> npt.NDArray[NumberT]:
        """(batches, lengths, cells) a number of each cell, from an array in which some stand once."""
        return self.steps.spread(values)

    def first(self, values: FloatArray) -> FloatArray:
        """A number of the first cell at each batch and length."""
        return self.spread(values)[..., :1]

    @property
    def batch(self) -> IntArray:
        """(batches, 1, 1) sequences of a step."""
        return self.surface.batch[:, None, None]

    @property
    def seq_len(self) -> IntArray | FloatArray:
        """Committed tokens of each sequence."""
        return self.surface.seq_len[None, :, None]

    @cached_property
    def candidates(self) -> IntArray:
        """Tokens that a step verifies for each sequence, root included."""
        return self.configurations.candidates[self.index]

    @cached_property
    def tokens_per_step(self) -> FloatArray:
        """Mean tokens that a step emits for each sequence."""
        return self.configurations.tokens_per_step[self.index]

    @property
    def drafts(self) -> IntArray:
        """Draft length (Medusa: heads run); 0 of plain decoding."""
        return self.configurations.depth[self.index]

    def configuration_at(self, b: int, s: int, k: int = 0) -> int:
        """Which configuration a cell has."""
        return int(self.spread(self.index)[b, s, k])

    # Other configurations.

    def with_index(self, index: IntArray) -> Cells:
        """Other configurations of the same surface; this object if they are the same."""
        for axis in (0, 1):  # once where all batches or lengths have the same
            first = index.take([0], axis) if index.shape[axis] > 1 else index
            if np.array_equal(np.broadcast_to(first, index.shape), index):
                index = first
        return self if np.array_equal(index, self.index) else replace(self, index=index)

    @cached_property
    def plain(self) -> Cells:
        """Plain decoding, one cell at each batch and length."""
        return replace(self, index=np.array([[[PLAIN]]]))

    @property
    def baseline(self) -> Cells:
        """Cells of which the first is plain decoding: these, or that alone."""
        return self.plain if (self.index[..., 0] != PLAIN).any() else self

    @cached_or_self
    def by_count(self) -> Cells:
        """For each count (1 first: plain decoding) its best configuration at each batch and length.

        The fastest of those that fit; where none fits, the fastest.
        """
        configurations = self.configurations
        members = configurations.with_count
        if members.shape[1] == 1:
            return self.with_index(members[None, None, :, 0])
        every = self if self.index.shape[-1] == configurations.candidates.size else Cells.every(self.surface)
        per_token = every.steps.time_us * (
            (1.0 + _TIE * configurations.option) / configurations.tokens_per_step
        )
        if not every.fits.all():
            per_token = np.where(every.fits, per_token, _ALWAYS_LAST * per_token)
        fastest = np.argmin(per_token[..., members.T], axis=-2)
        return self.with_index(members[np.arange(len(members)), fastest])

    def best(self, worth: FloatArray | None = None) -> Cells:
        """At each batch and length the cell of most worth (None: speedup) that fits, the first of equals.

        Plain decoding where none fits.
        """
        best = self.best_k(worth)
        index = np.take_along_axis(self.spread(self.index), best[..., None], axis=-1)
        none_fits = ~self.spread(self.fits).any(axis=-1, keepdims=True)
        return self.with_index(np.where(none_fits, PLAIN, index))

    def best_k(self, worth: FloatArray | None = None) -> IntArray:
        """(batches, lengths) index k of `best` among the cells, 0 where none fits."""
        values = self.spread(self.speedup if worth is None else worth)
        fits = self.spread(self.fits)
        return np.asarray(np.argmax(np.where(fits, values, -np.inf), axis=-1))

    @cached_or_self
    def contenders(self) -> Cells:
        """Configurations that are the best of their count somewhere, at every batch and length."""
        return self.with_index(np.unique(self.by_count.index)[None, None, :])

    @cached_property
    def with_kernels_alone(self) -> Cells | None:
        """These cells with the engine's kernels alone; None where the runtime is no engine."""
        surface = self.surface.kernels_alone
        return None if surface is None else replace(self, surface=surface)

    # What their steps take, alone and in a server, and how sure that is.

    @cached_property
    def steps(self) -> Steps:
        """Steps of these cells."""
        return Steps(self.surface, self.index)

    @cached_property
    def server_steps(self) -> ServerSteps:
        """The steps in a server that stays full with the scenario's traffic."""
        return ServerSteps.of(self.steps)

    @property
    def server(self) -> Server:
        """What requests of that server see."""
        return self.server_steps.server

    @cached_property
    def bands(self) -> Bands:
        """80 % bands of these cells, as half-widths."""
        return Bands(self.steps, self.server_steps, self.baseline.server_steps)

    # What is gained.

    @cached_property
    def overhead(self) -> FloatArray:
        """The step over the plain one at the same batch and length."""
        return self.steps.time_us / self.steps.decode_us

    @cached_property
    def step_speedup(self) -> FloatArray:
        """Tokens per step over overhead: what is gained where a server adds nothing."""
        return self.tokens_per_step / self.overhead

    @cached_property
    def speedup(self) -> FloatArray:
        """Plain decoding's time per token over the cell's: of steps, with traffic of the server.

        What a server adds to every token draws it towards 1; what it adds to every step (prompts that the
        host launches) raises it.
        """
        if self.scenario.traffic is None:
            return self.step_speedup
        return np.asarray(self.baseline.first(self.baseline.server.token_us) / self.server.token_us)

    def speedup_at(self, b: int, s: int) -> FloatArray:
        """(cells,) `speedup` at one batch and length; the first cell must be plain decoding."""
        if self.scenario.traffic is None or self.by_count is self:  # a search has priced them everywhere
            return as_float(self.spread(self.speedup)[b, s])
        token_us = self.server_steps.server_at(b, s).token_us
        return np.asarray(token_us[0] / token_us)

    @cached_property
    def speedup_band(self) -> Band:
        """80 % band of `speedup`."""
        served = self.scenario.traffic is not None
        low, high = (self.bands.server_speedup if served else self.bands.step_speedup).ratios()
        return Band(self.speedup * low, self.speedup * high)

    # In a server.

    @cached_property
    def tokens_per_s(self) -> FloatArray:
        """Tokens a second of the whole batch."""
        return np.asarray(self.batch * US_PER_S / self.server.token_us)

    @property
    def tokens_per_s_per_user(self) -> FloatArray:
        """Tokens a second of one request, from its first token on."""
        return np.asarray(US_PER_S / self.server.tpot_us)

    # What it needs.

    @property
    def memory(self) -> MemoryParts:
        """Bytes that one GPU keeps, by what they are for."""
        return self.memory_at(self.batch)

    def memory_at(self, batch: IntArray) -> MemoryParts:
        """`memory` at other batches, which broadcast with the cells."""
        shard = self.scenario.shard
        added = self.configurations.drafter_memory(shard)
        drafters = DrafterMemory(*(picked(size, self.index) for size in map(np.asarray, added)))
        return memory_parts(
            shard, drafters, batch, self.surface.in_flight_len[None, :, None], self.candidates
        )

    @cached_property
    def max_batch(self) -> IntArray:
        """Largest batch that fits in memory; 0 where none does."""
        return picked(self.surface.max_batch[None], self.index)

    @cached_property
    def fits(self) -> BoolArray:
        """Whether the batch fits in memory."""
        return np.asarray(self.batch <= self.max_batch)

    def fits_in_time(self, max_latency_us: float | None) -> BoolArray:
        """Whether it fits and a token takes no longer than `max_latency_us` (None: no limit)."""
        return self.fits if max_latency_us is None else self.fits & (self.server.tpot_us <= max_latency_us)


def price(
    scenario: Scenario,
    batch: Sequence[int] | IntArray,
    seq_len: Sequence[int] | IntArray | FloatArray,
    options: Sequence[DraftOption] | None = None,
    *,
    grown: GrownPrompts | None = None,
) -> Cells:
    """Every configuration of a scenario at every batch and length with these ways of drafting (None: all).

    seq_len: a mean length need not be whole. grown: see `Surface`. Raises UsageError where the profile
    cannot describe the drafter; what a step takes is priced when it is read, and raises SpecError or
    CoverageError.
    """
    return Cells.every(surface_at(scenario, batch, seq_len, options, grown=grown))
