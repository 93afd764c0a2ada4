"""Cells of a surface: at every batch and length some configurations, and what a step of each gives.

Every number of a step is read here, as an array (batches, lengths, cells) in which what is the same along an
axis may stand once (`Steps.spread` repeats it). All configurations are `Cells.every`, the best of each number
of candidates `by_count`, the best of these `best`.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property

import numpy as np

from medusa_sim.arrays import Band, BoolArray, FloatArray, IntArray, as_float
from medusa_sim.grid.bands import BandedSteps
from medusa_sim.grid.cell_passes import picked
from medusa_sim.grid.configurations import PLAIN
from medusa_sim.grid.surface import surface_at
from medusa_sim.grid.unless_self import cached_unless_self
from medusa_sim.scenario.draft_options import DraftOption
from medusa_sim.scenario.scenario import Scenario
from medusa_sim.step.memory import DrafterMemory, MemoryParts, memory_parts
from medusa_sim.units import US_PER_S

_TIE = 1e-12
"""Share by which an option must beat the one before it: times that differ by rounding are equal."""
_ALWAYS_LAST = 1e9
"""Sorts what does not fit after whatever does, in the same order."""


class Cells(BandedSteps):
    """Configurations of a surface: their steps, which of them is best, what a server makes of them."""

    @property
    def drafts(self) -> IntArray:
        """Draft length (Medusa: heads run); 0 of plain decoding."""
        return self.configurations.depth[self.index]

    def option_at(self, b: int, s: int, k: int = 0) -> DraftOption | None:
        """The way in which a cell drafts; None for plain decoding."""
        return self.configurations.option_of(self.configuration_at(b, s, k))

    def configuration_at(self, b: int, s: int, k: int = 0) -> int:
        """Which configuration a cell has."""
        return int(self.spread(self.index)[b, s, k])

    def candidates_at(self, b: int, s: int, k: int = 0) -> int:
        """Candidates of a cell."""
        return int(self.configurations.candidates[self.configuration_at(b, s, k)])

    # Other configurations.

    @cached_unless_self
    def by_count(self) -> Cells:
        """For each count (1 first: plain decoding) its best configuration at each batch and length.

        The fastest of those that fit; where none fits, the fastest.
        """
        return self.with_index(self._best_of_counts())

    def _best_of_counts(self) -> IntArray:
        """(batches, lengths, counts) index of `by_count`."""
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
        """At each batch and length the cell of most worth (None: speedup) that fits, the first of equals.

        Plain decoding where none fits.
        """
        places = self.best_places(worth)
        index = np.take_along_axis(self.spread(self.index), places[..., None], axis=-1)
        none_fits = ~self.spread(self.fits).any(axis=-1, keepdims=True)
        return self.with_index(np.where(none_fits, PLAIN, index))

    def best_places(self, worth: FloatArray | None = None) -> IntArray:
        """(batches, lengths) places of `best` among the cells, 0 where none fits."""
        values = self.spread(self.speedup if worth is None else worth)
        fits = self.spread(self.fits)
        return np.asarray(np.argmax(np.where(fits, values, -np.inf), axis=-1))

    @cached_property
    def contenders(self) -> Cells:
        """Configurations that are the best of their count somewhere, at every batch and length."""
        return self.with_index(np.unique(self.by_count.index.ravel())[None, None, :])

    @cached_property
    def with_kernels_alone(self) -> Cells | None:
        """These cells with the engine's kernels alone; None where the runtime is no engine."""
        surface = self.surface.kernels_alone
        return None if surface is None else self._on(surface)

    # What is gained.

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

        What a server adds to every token draws it towards 1; what it adds to every step (prompts that the
        host launches) raises it.
        """
        if self.scenario.traffic is None:
            return self.step_speedup
        return np.asarray(self.baseline.first(self.baseline.served.token_us) / self.token_us)

    def speedup_at(self, b: int, s: int) -> FloatArray:
        """(cells,) `speedup` at one batch and length; the first cell must be plain decoding."""
        if self.scenario.traffic is None or self.by_count is self:  # a search has priced them everywhere
            return as_float(self.spread(self.speedup)[b, s])
        token_us = self.served_at(b, s).token_us
        return np.asarray(token_us[0] / token_us)

    # In a server.

    @cached_property
    def tpot_us(self) -> FloatArray:
        """Time per token of a request from its first token on."""
        return self.served.tpot_us

    @cached_property
    def token_us(self) -> FloatArray:
        """Time per token of a request with its prompt: batch / token_us is the rate of all requests."""
        return self.served.token_us

    @cached_property
    def tokens_per_s(self) -> FloatArray:
        """Tokens a second of the whole batch."""
        return np.asarray(self.batch * US_PER_S / self.token_us)

    @property
    def tokens_per_s_per_user(self) -> FloatArray:
        """Tokens a second of one request, from its first token on."""
        return np.asarray(US_PER_S / self.tpot_us)

    # What it needs.

    @property
    def memory(self) -> MemoryParts:
        """Bytes that one GPU keeps, by what they are for."""
        return self.memory_at(self.batch)

    def memory_at(self, batch: IntArray) -> MemoryParts:
        """`memory` at other batches, which broadcast with the cells."""
        shard = self.scenario.shard
        added = self.configurations.drafter_memory(shard)
        drafters = DrafterMemory(*(picked(each, self.index) for each in map(np.asarray, added)))
        return memory_parts(shard, drafters, batch, self.surface.served_len[None, :, None], self.candidates)

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
    def band(self) -> Band:
        """80 % band of `speedup`."""
        served = self.scenario.traffic is not None
        low, high = (self.server_speedup_halves if served else self.step_speedup_halves).ratios()
        return Band(self.speedup * low, self.speedup * high)

    @property
    def log_speedup_half(self) -> FloatArray:
        """Half the width of `band` on the logarithm, spread; 0 of plain decoding."""
        return self.spread(np.log(self.band.high / self.band.low) / 2.0)

    @property
    def low_us(self) -> FloatArray:
        """Lower end of the step."""
        return np.asarray(self.step_us * self.step_halves.ratios().low)

    @property
    def high_us(self) -> FloatArray:
        """Upper end of the step."""
        return np.asarray(self.step_us * self.step_halves.ratios().high)


def price(
    scenario: Scenario,
    batch: Sequence[int] | IntArray,
    seq_len: Sequence[int] | IntArray | FloatArray,
    options: Sequence[DraftOption] | None = None,
    *,
    grown_from: float | None = None,
) -> Cells:
    """Every configuration of a scenario at every batch and length with these ways of drafting (None: all).

    seq_len: a mean length need not be whole. grown_from: see `Surface`. Raises UsageError where the profile
    cannot describe the drafter; what a step takes is priced when it is read, and raises SpecError or
    CoverageError.
    """
    return Cells.every(surface_at(scenario, batch, seq_len, options, grown_from=grown_from))
