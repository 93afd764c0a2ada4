"""What the steps of a scenario cost at every batch and length: plain, verifying, and drafting of each option.

This is the only thing that prices a grid. Verification is priced once on the (batch, length, candidates)
grid, the drafting of each option on the small axes that it depends on; `Cells` puts both together.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property, reduce
from operator import add
from typing import Any

import numpy as np

from medusa_sim.arrays import FloatArray, IntArray
from medusa_sim.errors import UsageError
from medusa_sim.plan.configurations import Configurations
from medusa_sim.plan.draft_options import DraftOption
from medusa_sim.plan.scenario import Scenario
from medusa_sim.specs.runtime import Runtime
from medusa_sim.step.compose import Cost, PassWork
from medusa_sim.step.drafter.base import Drafter
from medusa_sim.step.server import served_length
from medusa_sim.step.step import (
    Setting,
    StepTime,
    decode_step,
    decode_work,
    drafting_steps,
    drafting_works,
    verification_step,
    verification_work,
    work_time,
)

LARGEST_SEARCH = 60_000_000
"""Cells (batch x length x configurations) searched at most: about 2 GB of arrays."""
_TOGETHER = 4


@dataclass(frozen=True, kw_only=True, eq=False)
class Surface:
    """Steps at B batches and S lengths.

    decode: the plain step, (B, S, 1). verify: verification, broadcasts with (B, S, 1 + C), whose columns are
    the counts of `configurations`; the first is a placeholder. drafting: what each option adds, broadcasts
    with the same; None where a drafter costs nothing. setting: what every step shares.
    """

    scenario: Scenario
    setting: Setting
    batch: IntArray
    seq_len: IntArray
    configurations: Configurations
    decode: StepTime
    verify: StepTime
    drafting: tuple[StepTime | None, ...]
    is_in_flight: bool = False

    @property
    def shape(self) -> tuple[int, int]:
        """(B, S)."""
        return self.batch.size, self.seq_len.size

    @cached_property
    def in_flight(self) -> Surface:
        """Steps of the requests in flight around each length: those of the length itself without traffic."""
        if self.is_in_flight or np.array_equal(self._met, self.seq_len):
            return self
        options = self.configurations.options
        return unpriced(self.scenario, self.batch, self._met, options, setting=self.setting).priced()

    @property
    def _met(self) -> IntArray:
        return lengths_in_flight(self.setting, self.scenario, self.seq_len)

    @cached_property
    def at_edges(self) -> Surface | None:
        """The same at the most requests that the engine was measured with, and its doublings, if below B."""
        engine = self.setting.runtime.engine
        known = 0 if engine is None else engine.measured_requests
        if not known or self.is_in_flight or self.batch.max(initial=0) <= known:
            return None
        edges = [known]
        while 2 * edges[-1] < self.batch.max():
            edges.append(2 * edges[-1])
        options = self.configurations.options
        return unpriced(self.scenario, edges, self.seq_len, options, setting=self.setting).priced()

    @cached_property
    def kernels_alone(self) -> Surface | None:
        """The same with the engine's kernels alone; None where the runtime is no engine."""
        runtime = self.setting.runtime
        return None if runtime.engine is None else self.run_by(runtime.kernels_alone)

    @cached_property
    def on_accepted_rows(self) -> Surface:
        """The same with Medusa heads on accepted rows alone."""
        return self.run_by(replace(self.setting.runtime, head_rows="accepted"))

    def run_by(self, runtime: Runtime) -> Surface:
        """The same under another runtime."""
        setting = replace(self.setting, runtime=runtime)
        options = self.configurations.options
        return unpriced(self.scenario, self.batch, self.seq_len, options, setting=setting).priced()

    @property
    def loaded_drafter(self) -> Drafter | None:
        """What reads prompts beside the model, whatever counts are asked about: with all its heads."""
        return self.scenario.drafting.drafter(self.scenario.depth) if self.configurations.options else None

    @cached_property
    def max_batch(self) -> IntArray:
        """(S, J) largest batch that fits in memory; 0 where none does."""
        return self.configurations.max_batch(self.scenario, self.seq_len)

    @cached_property
    def ends_profile(self) -> bool:
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
        """(B, S) by which plain steps are longer in an engine with the drafter loaded that drafts nothing.

        One pass keeps its state up to date, and a drafter that is scheduled synchronously hides no host; a
        look-up has no state.
        """
        options, runtime = self.configurations.options, self.setting.runtime
        depths = {option.depth: index for index, option in enumerate(options) if option.chain}
        if runtime.engine is None or not depths or self.scenario.drafting.kind.looks_up:
            return np.zeros(self.shape)
        drafting = self.drafting[depths[min(depths)]]
        waits = replace(self.setting, runtime=runtime.drafting(self.scenario.drafting.method))
        loaded_us = decode_step(waits, self.batch[:, None, None], self.seq_len[None, :, None]).time_us
        if drafting is not None:
            loaded_us = loaded_us + drafting.time_us
        share = loaded_us / self.decode.time_us - 1.0
        return np.asarray(np.broadcast_to(share[..., 0], self.shape))


@dataclass(frozen=True, kw_only=True, eq=False)
class Unpriced:
    """A surface before it is priced: what its steps launch."""

    scenario: Scenario
    setting: Setting
    batch: IntArray
    seq_len: IntArray
    configurations: Configurations
    is_in_flight: bool = False

    @property
    def max_batch(self) -> IntArray:
        """(S, J) as of `Surface`."""
        return self.configurations.max_batch(self.scenario, self.seq_len)

    @property
    def _places(self) -> tuple[IntArray, IntArray]:
        lengths = self.seq_len
        if self.is_in_flight:
            lengths = lengths_in_flight(self.setting, self.scenario, lengths)
        return self.batch[:, None, None], lengths[None, :, None]

    @property
    def _counts(self) -> IntArray:
        """(1, 1, 1 + C) tokens that verification processes; for the plain step's column the first count."""
        counts = self.configurations.counts
        return np.concatenate([counts[1:2], counts[1:]])[None, None, :]

    @cached_property
    def decode_work(self) -> PassWork:
        """Kernels of the plain step."""
        return decode_work(self.setting, *self._places)

    @cached_property
    def verify_work(self) -> PassWork | None:
        """Kernels of verification; None where nothing is drafted, or the step is a mean over others (N5)."""
        if self.configurations.counts.size == 1 or self.setting.match_rate < 1.0 or self.setting.kept:
            return None
        return verification_work(self.setting, *self._places, self._counts)

    @cached_property
    def drafting_works(self) -> tuple[tuple[PassWork, ...], ...]:
        """Passes of the drafting of each option; the same of those that share a drafter."""
        known: dict[Drafter, tuple[PassWork, ...]] = {}
        passes: dict[Any, Any] = {}
        for option in self.configurations.options:
            if option.drafter not in known:
                setting = replace(self.setting, drafter=option.drafter)
                known[option.drafter] = drafting_works(setting, *self._places, self._counts, passes)
        return tuple(known[option.drafter] for option in self.configurations.options)

    def priced(self, beside: Surface | None = None) -> Surface:
        """The surface. Raises SpecError or CoverageError from the latency model.

        beside: one that differs in the drafter alone; what does not depend on it is taken from there.
        """
        decode = None if beside is None else beside.decode
        verify = None if beside is None or not self._verifies_as(beside) else beside.verify
        return Surface(
            scenario=self.scenario,
            setting=self.setting,
            batch=self.batch,
            seq_len=self.seq_len,
            configurations=self.configurations,
            decode=decode or work_time(self.setting.latency, self.decode_work),
            verify=verify or self._verification(),
            drafting=self._drafting(),
            is_in_flight=self.is_in_flight,
        )

    def _verifies_as(self, other: Surface) -> bool:
        """Whether both verify the same counts as often and alike."""
        own, its = self.setting, other.setting
        engine = own.runtime.engine
        counts, its_counts = self.configurations.counts, other.configurations.counts
        if engine is None or not engine.chain_only or not np.array_equal(counts, its_counts):
            return False
        waits = [setting.method in engine.synchronous_drafters for setting in (own, its)]
        alike = [(setting.overlap, setting.match_rate, setting.kept) for setting in (own, its)]
        return waits[0] == waits[1] and alike[0] == alike[1]

    def _verification(self) -> StepTime:
        if self.configurations.counts.size == 1:
            return StepTime(cost=Cost())
        if self.verify_work is None:
            return verification_step(self.setting, *self._places, self._counts)
        return work_time(self.setting.latency, self.verify_work)

    def _drafting(self) -> tuple[StepTime | None, ...]:
        """Of each option; passes that options share are timed once."""
        passes: dict[Any, Any] = {}
        steps = []
        for option, works in zip(self.configurations.options, self.drafting_works, strict=True):
            setting = replace(self.setting, drafter=option.drafter)
            timed = drafting_steps(setting, *self._places, self._counts, passes, works)
            steps.append(reduce(add, timed) if timed else None)
        return tuple(steps)


def lengths_in_flight(setting: Setting, scenario: Scenario, seq_len: IntArray) -> IntArray:
    """(S,) mean lengths of the requests in flight around each length (length bias)."""
    return np.rint(served_length(setting, seq_len, scenario.traffic)).astype(np.int64)


def unpriced(
    scenario: Scenario,
    batch: Sequence[int] | IntArray,
    seq_len: Sequence[int] | IntArray | FloatArray,
    options: Sequence[DraftOption] | None = None,
    *,
    setting: Setting | None = None,
    in_flight: bool = False,
) -> Unpriced:
    """What is to be priced at every batch and length with these ways of drafting (None: all of them).

    setting: another than the scenario's. in_flight: the steps that the scenario's traffic meets around each
    length, and those alone. Raises UsageError where that is too much, or the profile cannot describe the
    drafter.
    """
    configurations = Configurations(tuple(scenario.options() if options is None else options))
    batches, lengths = np.asarray(batch, dtype=np.int64), np.asarray(seq_len)
    size = configurations.candidates.size
    if batches.size * lengths.size * size > LARGEST_SEARCH:
        raise UsageError(
            f"{batches.size} batches x {lengths.size} lengths x {size} configurations are too many; search "
            "fewer lengths, a smaller range of batches or fewer candidates"
        )
    return Unpriced(
        scenario=scenario,
        setting=setting or scenario.setting,
        batch=batches,
        seq_len=lengths,
        configurations=configurations,
        is_in_flight=in_flight,
    )


def in_groups(lengths: int) -> list[slice]:
    """Places of the lengths that a search prices at once, each at the batches of all."""
    return [slice(first, min(first + _TOGETHER, lengths)) for first in range(0, lengths, _TOGETHER)]
