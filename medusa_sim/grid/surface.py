"""The cost of a scenario's steps at every batch and length: plain, verifying, and drafting of each option.

This is the only thing that prices steps. Verification is priced once on the (batch, length, candidates) grid,
the drafting of each option on the small axes that it depends on; `Cells` puts both together.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property, reduce
from math import log
from operator import add
from typing import NamedTuple

import numpy as np

from medusa_sim.arrays import FloatArray, Halves, IntArray, as_float
from medusa_sim.engines.served_groups import longest_tokens
from medusa_sim.errors import UsageError
from medusa_sim.grid.cached_or_self import cached_or_self
from medusa_sim.grid.configurations import Configurations
from medusa_sim.grid.extrapolation import edges_below
from medusa_sim.scenario.draft_options import DraftOption
from medusa_sim.scenario.scenario import Scenario
from medusa_sim.serving.request_steps import chances_of_mean
from medusa_sim.serving.traffic import served_length
from medusa_sim.step.compose import Cost
from medusa_sim.step.drafter.base import Drafter
from medusa_sim.step.drafting import drafting_times_of
from medusa_sim.step.pass_cost import timed_pass
from medusa_sim.step.pass_times import PassTimes
from medusa_sim.step.setting import Setting
from medusa_sim.step.step import decode_step, decode_work, verification_step

LARGEST_SEARCH = 60_000_000
"""Cells (batch x length x configurations) searched at most: about 2 GB of arrays."""
_NEXT_BATCH = 1.25
"""Of `Surface.fewer_requests`: each over the one before."""
_LENGTHS_TOGETHER = 4
"""Lengths that are priced in one go: few, so that their arrays stay small."""


class GrownPrompts(NamedTuple):
    """Prompts that are as much longer as the requests are."""

    answer_tokens: float
    """Tokens of a request's length that are its answer so far; the others are its prompt."""
    found_share: float = 0.0
    """Share of a prompt that is found in the cache, and not read again."""
    held_once: bool = False
    """Whether that is one text of all requests, which the cache holds once."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Surface:
    """Steps at some batches and lengths, each priced when it is first asked for.

    setting: what all steps share. asked_len: mean lengths of requests, half way through their outputs.
    seq_len: committed tokens of each sequence in the steps that are priced: as asked, or `in_flight_len`.
    grown: prompts that grow with the length. None: all prompts are the traffic's, and what a request is
    longer lies in a cached prefix.

    Other surfaces belong to one:

    | surface | differs in | because |
    |---|---|---|
    | `in_flight` | `seq_len` | long requests are in flight for longer, so those in flight are longer |
    | `sibling` | drafter | its plain steps (and verification, where it is the same) are used again |
    | `fewer_requests` | batches | where some requests queue, steps have fewer |
    | `at_batch_edges` | batches | the most requests that were measured: bands beyond them grow from there |
    | `at_length_edges` | lengths | the most tokens of a request that were measured, in the same way |
    """

    scenario: Scenario
    setting: Setting
    batch: IntArray
    asked_len: IntArray | FloatArray
    seq_len: IntArray | FloatArray
    configurations: Configurations
    sibling: Surface | None = None
    grown: GrownPrompts | None = None

    @property
    def shape(self) -> tuple[int, int]:
        """Numbers of batches and of lengths."""
        return self.batch.size, self.seq_len.size

    # Steps. They raise SpecError or CoverageError from the latency model.

    @cached_property
    def decode(self) -> PassTimes:
        """The plain step at every batch and length."""
        if self.sibling is not None:
            return self.sibling.decode
        return timed_pass(self.setting.latency, decode_work(self.setting, *self._places))

    @cached_property
    def verify(self) -> PassTimes:
        """Verification of every count (`Configurations.counts`) at every batch and length.

        The column of plain decoding is a placeholder.
        """
        if self.sibling is not None and self._verifies_as(self.sibling):
            return self.sibling.verify
        if self.configurations.counts.size == 1:
            return PassTimes(cost=Cost())
        return verification_step(self.setting, *self._places, self._counts)

    @cached_property
    def drafting(self) -> tuple[PassTimes | None, ...]:
        """The drafting of each option, broadcasts as `verify` does; None where a drafter costs nothing."""
        settings = [replace(self.setting, drafter=option.drafter) for option in self.configurations.options]
        if not settings:
            return ()
        every = drafting_times_of(settings, *self._places, self._counts)
        return tuple(reduce(add, steps) if steps else None for steps in every)

    @property
    def _places(self) -> tuple[IntArray, IntArray | FloatArray]:
        return self.batch[:, None, None], self.seq_len[None, :, None]

    @property
    def _counts(self) -> IntArray:
        """Tokens that verification processes, by count; for plain decoding the first count that drafts."""
        counts = self.configurations.counts
        return np.concatenate([counts[1:2], counts[1:]])[None, None, :]

    def _verifies_as(self, other: Surface) -> bool:
        """Whether both verify the same counts, in as many of the steps, at the same cost."""
        engine = self.setting.runtime.engine
        settings = self.setting, other.setting
        counts, its_counts = self.configurations.counts, other.configurations.counts
        if engine is None or not engine.chain_only or not np.array_equal(counts, its_counts):
            return False
        waits = [setting.drafter_name in engine.synchronous_drafters for setting in settings]
        verified = [(setting.overlap, setting.verified) for setting in settings]
        return waits[0] == waits[1] and verified[0] == verified[1]

    # The same steps elsewhere.

    @cached_property
    def in_flight_len(self) -> FloatArray:
        """(lengths,) mean tokens of requests in flight: what the steps and the cache of a server hold."""
        return np.asarray(served_length(self.setting, self.asked_len, self.scenario.traffic))

    @property
    def prompt_tokens(self) -> FloatArray | None:
        """(lengths,) mean tokens of a prompt that are read; None where all are the traffic's."""
        traffic = self.scenario.traffic
        if traffic is None or self.grown is None:
            return None
        return np.maximum(self._whole_prompts - self.cached_tokens, 1.0)

    @property
    def cached_tokens(self) -> FloatArray:
        """(lengths,) tokens before these, of a prefix that is cached."""
        if self.grown is not None:
            return self.grown.found_share * self._whole_prompts
        if self.scenario.traffic is None:
            return np.zeros(self.asked_len.shape)
        return np.maximum(as_float(self.asked_len) - self.scenario.length, 0.0)

    @property
    def _whole_prompts(self) -> FloatArray:
        """(lengths,) tokens of prompts that grow."""
        answer_tokens = 0.0 if self.grown is None else self.grown.answer_tokens
        return np.maximum(as_float(self.asked_len) - answer_tokens, 1.0)

    @cached_or_self
    def in_flight(self) -> Surface:
        """Steps of the requests in flight; this surface if their lengths are the same."""
        if np.array_equal(self.in_flight_len, self.seq_len):
            return self
        return replace(self, seq_len=self.in_flight_len, sibling=None)

    @cached_property
    def batch_edges(self) -> IntArray:
        """The most requests that the engine was measured with, and its doublings; empty: all are below."""
        engine = self.setting.runtime.engine
        return edges_below(0 if engine is None else engine.measured_requests, self.batch)

    @cached_property
    def length_edges(self) -> IntArray:
        """The most tokens of a request that were measured, and its doublings; empty: all are below."""
        runtime = self.setting.runtime
        measured = 0 if runtime.engine is None or runtime.local else longest_tokens()
        return edges_below(measured, self.asked_len)

    @cached_property
    def at_batch_edges(self) -> Surface:
        """Steps at `batch_edges`."""
        sibling = None if self.sibling is None else self.sibling.at_batch_edges
        return replace(self, batch=self.batch_edges, sibling=sibling)

    @cached_property
    def at_length_edges(self) -> Surface:
        """Steps at `length_edges`."""
        edges = self.length_edges
        as_asked = replace(self, asked_len=edges, seq_len=edges, sibling=None)
        return as_asked if np.array_equal(self.seq_len, self.asked_len) else as_asked.in_flight

    @property
    def with_batch_edges(self) -> Surface:
        """With `batch_edges` among its batches, where bands need them of these configurations alone.

        Of a count that has several ways of drafting bands are those of its best: edges of all stay apart.
        """
        if self.configurations.several_a_count:
            return self
        return replace(self, batch=np.union1d(self.batch, self.batch_edges))

    @property
    def with_length_edges(self) -> Surface:
        """With `length_edges` among its lengths, which are those asked; as `with_batch_edges`."""
        if self.configurations.several_a_count:
            return self
        lengths = np.union1d(self.asked_len, self.length_edges)
        return replace(self, asked_len=lengths, seq_len=lengths)

    @cached_property
    def fewer_requests(self) -> Surface:
        """Steps at numbers of requests up to these, close enough for times between them to be linear."""
        steps = np.arange(2 + np.ceil(log(max(int(self.batch.max(initial=1)), 2)) / log(_NEXT_BATCH)))
        return replace(self, batch=np.unique(np.rint(_NEXT_BATCH**steps)).astype(np.int64), sibling=None)

    @cached_property
    def kernels_alone(self) -> Surface | None:
        """Steps with the engine's kernels alone; None where the runtime is no engine."""
        runtime = self.setting.runtime
        if runtime.engine is None:
            return None
        return replace(self, setting=replace(self.setting, runtime=runtime.kernels_alone), sibling=None)

    # What does not depend on time.

    @cached_property
    def decode_steps(self) -> FloatArray | None:
        """(configurations,) steps in which a request decodes (N20); None without traffic."""
        traffic = self.scenario.traffic
        return None if traffic is None else traffic.request_steps(self.configurations.emission_chances)

    @cached_property
    def request_token_halves(self) -> Halves:
        """(configurations,) half-widths of the tokens of a request over its steps.

        Those of the tokens of a step where no traffic is known. Else a request takes whole steps, and the
        ends are those of (N20): of two tokens the second takes one step, whatever it accepts.
        """
        of_step, steps = self.configurations.token_halves, self.decode_steps
        traffic = self.scenario.traffic
        if traffic is None or steps is None:
            return of_step
        tokens, shape = self.configurations.tokens_per_step, self.configurations.emission_chances
        slow, fast = (
            np.where(steps, traffic.request_steps(chances_of_mean(tokens * ratio, shape)), 1.0)
            for ratio in of_step.ratios()
        )
        of_steps = Halves.within(fast, np.where(steps, steps, 1.0), slow)  # none: no step, and no doubt of it
        return Halves(*(np.maximum(half, 0.0) for half in of_steps.of_inverse))

    @property
    def loaded_drafter(self) -> Drafter | None:
        """The drafter that reads prompts, as the model does: with all its heads, whatever the counts."""
        return self.scenario.drafting.drafter(self.scenario.depth) if self.configurations.options else None

    @cached_property
    def max_batch(self) -> IntArray:
        """(lengths, configurations) largest batch that fits in memory; 0 where none does.

        Of requests in flight, which fill the cache: they are longer than the mean where outputs differ.
        """
        shared_tokens = (self.grown is not None and self.grown.held_once) * self.cached_tokens
        return self.configurations.max_batch(self.scenario, self.in_flight_len, shared_tokens)

    @cached_property
    def search_ends_profile(self) -> bool:
        """Whether the largest count is where the acceptance ends, not the search or a limit on drafts."""
        if not self.configurations.options:
            return False
        last = int(self.configurations.counts[-1])
        further = self.scenario.options(last + 1)
        beyond = any(int(option.candidates[-1]) > last for option in further)
        drafts = max(option.depth for option in further)
        return not beyond and drafts < self.scenario.drafting.max_drafts

    @cached_property
    def idle_share(self) -> FloatArray:
        """(batches, lengths) share by which a plain step is longer with a drafter that drafts nothing.

        One of the drafter's passes keeps its state up to date, and a drafter that is scheduled synchronously
        hides no work of the host. A look-up has no state.
        """
        options, runtime = self.configurations.options, self.setting.runtime
        depths = {option.depth: index for index, option in enumerate(options) if option.chain}
        if runtime.engine is None or not depths or self.scenario.drafting.drafter_class.looks_up:
            return np.zeros(self.shape)
        drafting = self.drafting[depths[min(depths)]]
        waits = replace(self.setting, runtime=runtime.drafting(self.scenario.drafting.method))
        loaded_us = decode_step(waits, *self._places).time_us
        if drafting is not None:
            loaded_us = loaded_us + drafting.time_us
        share = loaded_us / self.decode.time_us - 1.0
        return np.asarray(np.broadcast_to(share[..., 0], self.shape))


def surface_at(
    scenario: Scenario,
    batch: Sequence[int] | IntArray,
    seq_len: Sequence[int] | IntArray | FloatArray,
    options: Sequence[DraftOption] | None = None,
    *,
    in_flight: bool = False,
    grown: GrownPrompts | None = None,
) -> Surface:
    """Steps of a scenario at every batch and length with these ways of drafting (None: all of them).

    seq_len: mean lengths, which need not be whole. in_flight: price the steps of the requests in flight
    around each length, as a server has them. grown: see `Surface`. Raises UsageError where that is too
    much, or the profile cannot describe the drafter.
    """
    configurations = Configurations(tuple(scenario.options() if options is None else options))
    batches, lengths = np.asarray(batch, dtype=np.int64), np.asarray(seq_len)
    size = configurations.candidates.size
    if batches.size * lengths.size * size > LARGEST_SEARCH:
        raise UsageError(
            f"{batches.size} batches x {lengths.size} lengths x {size} configurations are too many; search "
            "fewer lengths, a smaller range of batches or fewer candidates"
        )
    surface = Surface(
        scenario=scenario,
        setting=scenario.setting,
        batch=batches,
        asked_len=lengths,
        seq_len=lengths,
        configurations=configurations,
        grown=grown,
    )
    return surface.in_flight if in_flight else surface


def in_groups(lengths: int) -> list[slice]:
    """Slices of the lengths that a search prices together."""
    return [
        slice(first, min(first + _LENGTHS_TOGETHER, lengths))
        for first in range(0, lengths, _LENGTHS_TOGETHER)
    ]
