"""Everything that a step may run: plain decoding, and each way of drafting with each of its counts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from medusa_sim.arrays import FloatArray, Halves, IntArray
from medusa_sim.models.model import Model
from medusa_sim.scenario.draft_options import DraftOption
from medusa_sim.scenario.scenario import Scenario
from medusa_sim.step.memory import NO_DRAFTER, DrafterMemory, drafter_memory, largest_batch

PLAIN = 0
"""The configuration that does not speculate."""
NO_LIMIT = 1 << 40
"""Largest batch of scope `block`, which is no model and keeps nothing in memory."""


@dataclass(frozen=True, eq=False)
class Configurations:
    """J configurations: 0 is plain decoding, then the counts of each option, option by option."""

    options: tuple[DraftOption, ...]

    @cached_property
    def option(self) -> IntArray:
        """(configurations,) index in `options`, -1 for plain decoding."""
        return self.of_options(
            [-1], [np.full(option.candidates.size, i) for i, option in enumerate(self.options)]
        )

    @cached_property
    def candidates(self) -> IntArray:
        """(configurations,) tokens that a step verifies for each sequence, root included."""
        return self.of_options([1], [option.candidates for option in self.options])

    @cached_property
    def tokens_per_step(self) -> FloatArray:
        """(configurations,) mean tokens that a step emits for each sequence."""
        return self.of_options([1.0], [option.tokens_per_step for option in self.options])

    @cached_property
    def emission_chances(self) -> FloatArray:
        """(configurations, tokens) chances that a step emits at least 1, 2, ... tokens of a sequence."""
        longest = max((option.emission_chances.shape[1] for option in self.options), default=1)
        rows = [
            np.pad(option.emission_chances, ((0, 0), (0, longest - option.emission_chances.shape[1])))
            for option in self.options
        ]
        return np.concatenate([np.eye(1, longest), *rows])

    @cached_property
    def token_halves(self) -> Halves:
        """(configurations,) half-widths of the tokens per step."""
        return Halves(
            down=self.of_options([0.0], [option.token_halves.down for option in self.options]),
            up=self.of_options([0.0], [option.token_halves.up for option in self.options]),
        )

    @cached_property
    def depth(self) -> IntArray:
        """(configurations,) draft length (Medusa: heads run), 0 for plain decoding."""
        return self.of_options(
            [0], [np.full(option.candidates.size, option.depth) for option in self.options]
        )

    @cached_property
    def indices(self) -> IntArray:
        """(1, 1, configurations) of all: cells of every one, the same at every batch and length."""
        return np.arange(self.candidates.size)[None, None, :]

    @cached_property
    def counts(self) -> IntArray:
        """(counts,) every number of candidates once, from 1 up."""
        return np.unique(self.candidates)

    @cached_property
    def column(self) -> IntArray:
        """(configurations,) index of each configuration's number of candidates in `counts`."""
        return np.searchsorted(self.counts, self.candidates)

    @cached_property
    def with_count(self) -> IntArray:
        """(counts, most of any) configurations of each count; rows are filled up with their first."""
        members = [np.flatnonzero(self.column == column) for column in range(self.counts.size)]
        width = max(map(len, members))
        return np.stack([np.concatenate([row, np.full(width - row.size, row[0])]) for row in members])

    @property
    def several_a_count(self) -> bool:
        """Whether some count has several ways of drafting."""
        return bool(self.with_count.shape[1] > 1)

    @cached_property
    def option_slices(self) -> tuple[slice, ...]:
        """The configurations of each option, as a slice."""
        ends = np.cumsum([1, *(option.candidates.size for option in self.options)]).tolist()
        return tuple(map(slice, ends[:-1], ends[1:]))

    @property
    def are_chains(self) -> bool:
        """Whether all are chains: drafts (num_speculative_tokens) then name a count."""
        return all(option.chain for option in self.options)

    def of_options(self, plain: Sequence[float], values: Sequence[npt.NDArray[Any]]) -> npt.NDArray[Any]:
        """(configurations,) a number of plain decoding, then the numbers of each option's counts."""
        return np.concatenate([plain, *values])

    def option_of(self, configuration: int) -> DraftOption | None:
        """The way in which a configuration drafts; None for plain decoding."""
        return None if configuration == PLAIN else self.options[int(self.option[configuration])]

    def find(self, option: DraftOption | None, count: int) -> int:
        """The configuration of an option (None: plain decoding) with a count."""
        if option is None:
            return PLAIN
        first: int = self.option_slices[self.options.index(option)].start
        return first + int(np.searchsorted(option.candidates, count))

    def sizes_of(self, configuration: int) -> IntArray:
        """Configurations that draft as this one does with other counts, by count; for a chain, all chains.

        Raises ValueError for plain decoding.
        """
        option = self.option_of(configuration)
        if option is None:
            raise ValueError("plain decoding has one size")
        if option.candidates.size > 1:
            return np.flatnonzero(self.option == self.option[configuration])
        same_way = [
            i for i, other in enumerate(self.options)
            if other.candidates.size == 1 and (other.chain, other.width) == (option.chain, option.width)
        ]  # fmt: skip
        members = np.flatnonzero(np.isin(self.option, same_way))
        return members[np.argsort(self.candidates[members], kind="stable")]

    def drafter_memory(self, shard: Model) -> DrafterMemory:
        """(configurations,) what the drafter of each adds to the memory of a GPU that holds `shard`."""
        added = [*(drafter_memory(shard, option.drafter) for option in self.options), NO_DRAFTER]
        # plain decoding, option -1, stands last
        return DrafterMemory(*np.asarray(added)[self.option].T)

    def max_batch(
        self, scenario: Scenario, seq_len: IntArray | FloatArray, shared_tokens: FloatArray
    ) -> IntArray:
        """(lengths, configurations) largest batch that fits with all that it keeps; 0 where none does.

        shared_tokens: (lengths,) of each request, held once for all.
        """
        lengths, shard = seq_len[:, None], scenario.shard
        if scenario.scope == "block":
            return np.full((lengths.size, self.candidates.size), NO_LIMIT)
        drafters, usable_bytes = self.drafter_memory(shard), scenario.usable_memory_bytes
        most = largest_batch(shard, drafters, usable_bytes, lengths, self.candidates, shared_tokens[:, None])
        return most.astype(np.int64)


def at_counts(options: Sequence[DraftOption], candidates: IntArray) -> tuple[DraftOption, ...]:
    """The options, each with the listed counts only; those that have none of them are left out."""
    kept = (option.only(candidates) for option in options)
    return tuple(option for option in kept if option is not None)
