"""What the steps of a scenario cost at every batch and length: plain, verifying, and drafting of each option.

Verification is priced once on the (batch, length, candidates) grid, the drafting of each option on the small
axes that it depends on.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import cached_property, partial, reduce
from operator import add
from typing import Any, Self

import numpy as np

from medusa_sim.arrays import FloatArray, IntArray
from medusa_sim.plan.draft_options import DraftOption
from medusa_sim.plan.drafted import Drafted, of_rows
from medusa_sim.plan.scenario import Scenario
from medusa_sim.step.compose import Cost, PassWork, along
from medusa_sim.step.drafter.base import Drafter
from medusa_sim.step.kernels import Kernels, priced, timed
from medusa_sim.step.server import served_length
from medusa_sim.step.step import (
    Setting,
    StepTime,
    decode_step,
    decode_work,
    drafting_steps,
    drafting_works,
    kernels_time,
    verification_step,
    verification_work,
    work_time,
)
from medusa_sim.step.watts import launch_joules
from medusa_sim.step.workload import Launch

PLAIN = 0
"""The configuration that does not speculate."""


@dataclass(frozen=True, kw_only=True, eq=False)
class PricedSteps:
    """Steps at B batches, S lengths and C counts, each priced when it is first asked for.

    counts: (C,) different counts from 2 up. options: ways of drafting. option, candidates, tokens_per_step:
    (J,) of the configurations; option[j] indexes `options` (-1 for plain decoding, j = 0), candidates[j] is a
    count. is_in_flight: steps are those of the requests in flight around each length.
    """

    scenario: Scenario
    setting: Setting
    batch: IntArray
    seq_len: IntArray
    counts: IntArray
    options: tuple[DraftOption, ...]
    option: IntArray
    candidates: IntArray
    tokens_per_step: FloatArray
    is_in_flight: bool = False

    @cached_property
    def decode(self) -> StepTime:
        """The plain step, (B, S, 1)."""
        return work_time(self.setting.latency, self.decode_work)

    @cached_property
    def decode_work(self) -> PassWork:
        """Kernels of the plain step."""
        return decode_work(self.setting, *self._places)

    @cached_property
    def verify_work(self) -> PassWork:
        """Kernels of verification, of 1 + C columns: for the plain step's the first count again."""
        return verification_work(self.setting, *self._places, self._columns)

    @cached_property
    def _columns(self) -> IntArray:
        return np.concatenate([self.counts[:1], self.counts])[None, None, :]

    def take_steps(self, other: PricedSteps) -> None:
        """Take over what does not depend on the drafter from a surface that differs in it alone.

        The plain step; verification too, where both verify the same counts as often and alike.
        """
        own, its = self.setting, other.setting
        self.__dict__["decode"] = other.decode
        engine = own.runtime.engine
        alike = own.match_rate == its.match_rate and np.array_equal(self.counts, other.counts)
        if engine is None or not engine.chain_only or not alike:
            return
        waits = [setting.method in engine.synchronous_drafters for setting in (own, its)]
        if waits[0] == waits[1] and own.overlap == its.overlap:
            self.__dict__["verify"] = other.verify

    @cached_property
    def verify(self) -> StepTime:
        """Verification of each count, (B, S, 1 + C); column 0 (the plain step) is a placeholder."""
        if self.setting.match_rate < 1.0:
            return verification_step(self.setting, *self._places, self._columns)
        return work_time(self.setting.latency, self.verify_work)

    @cached_property
    def _split(self) -> tuple[PassWork, tuple[Launch, ...], Kernels]:
        """Verification: its work, the kernels that know the length, and the others timed."""
        work, latency = self.verify_work, self.setting.latency
        launches = tuple(priced(latency, work.launches))
        apart = tuple(launch for launch in launches if launch.knows_length)
        same = timed(latency, work.runtime, (launch for launch in launches if not launch.knows_length))
        return replace(work, launches=launches), apart, same

    @cached_property
    def drafting(self) -> tuple[StepTime | None, ...]:
        """Of each option, broadcasts with (B, S, its counts); None where the drafter costs nothing."""
        return tuple(self.drafting_of(index) for index in range(len(self.options)))

    @cached_property
    def drafted(self) -> Drafted:
        """The drafting of all options, laid out by option."""
        return Drafted(self.options, self.drafting, self._of_options, 1 + self.counts.size)

    def drafting_of(self, index: int) -> StepTime | None:
        """The drafting of one option, priced once."""
        if index not in self._drafted:
            works = self.drafting_works[index]
            steps = drafting_steps(*self._drafts(index), self._passes, works)
            step = reduce(add, steps) if steps else None
            if step is not None and step.device_us.shape[-1:] > (1,):  # with a row for each candidate
                step = step.each(partial(along, index=self.places(index)))
            self._drafted[index] = step
        return self._drafted[index]

    @cached_property
    def drafting_works(self) -> tuple[tuple[PassWork, ...], ...]:
        """Passes of the drafting of each option; the same of those that share a drafter."""
        known: dict[Drafter, tuple[PassWork, ...]] = {}
        for index, option in enumerate(self.options):
            if option.drafter not in known:
                known[option.drafter] = drafting_works(*self._drafts(index), self._passes)
        return tuple(known[option.drafter] for option in self.options)

    def _drafts(self, index: int) -> tuple[Setting, IntArray, IntArray, IntArray]:
        """Setting, batches, lengths and columns of an option: all, so that options ask for the same sizes."""
        setting = replace(self.setting, drafter=self.options[index].drafter)
        return setting, *self._places, self._columns

    @cached_property
    def _drafted(self) -> dict[int, StepTime | None]:
        return {}

    @cached_property
    def _passes(self) -> dict[Any, Any]:
        """What the options share."""
        return {}

    def places(self, index: int) -> slice:
        """Where the counts of an option stand in columns of which the first is plain decoding's."""
        return self._of_options[index]

    @cached_property
    def _of_options(self) -> tuple[slice, ...]:
        firsts = [1 + int(np.searchsorted(self.counts, option.candidates[0])) for option in self.options]
        sizes = [option.candidates.size for option in self.options]
        return tuple(slice(first, first + size) for first, size in zip(firsts, sizes, strict=True))

    @cached_property
    def _places(self) -> tuple[IntArray, IntArray]:
        lengths = self._met if self.is_in_flight else self.seq_len
        return self.batch[:, None, None], lengths[None, :, None]

    @property
    def _met(self) -> IntArray:
        """Lengths of the requests in flight around each length (length bias)."""
        lengths = served_length(self.setting, self.seq_len, self.scenario.traffic)
        return np.rint(lengths).astype(np.int64)

    def of_batches(self, rows: slice) -> Self:
        """Some of the batches: what is small is taken from here, what fills the grid is priced anew."""
        part = replace(self, batch=self.batch[rows])
        if self.setting.match_rate < 1.0:  # the rows of a block are no rows of the whole
            return part
        take = partial(of_rows, rows)
        work, apart, same = self._split
        own = tuple(launch.each(take) for launch in apart)
        kernels = timed(self.setting.latency, work.runtime, own, same.each(take))
        shape = replace(work, workload=work.workload.each(take))
        known: dict[str, Any] = {
            "decode": self.decode.each(take),
            "verify": kernels_time(self.setting.latency, shape, kernels),
            "plain_joules": take(self.plain_joules),
            "verify_joules": take(self._same_joules) + self.launch_joules(own),
            "drafted": self.drafted.rows(rows),
            "_of_options": self._of_options,
        }
        vars(part).update(known)
        return part

    def step_joules(self, step: StepTime) -> FloatArray:
        """Joules above idle of one GPU in a step; nan where its power is not known."""
        return self.launch_joules(launch for work in step.works for launch in work.launches)

    def launch_joules(self, launches: Iterable[Launch]) -> FloatArray:
        """Of some kernels."""
        gpu = self.scenario.gpu
        return np.full((), np.nan) if gpu.power is None else launch_joules(gpu, gpu.power, launches)

    @cached_property
    def _same_joules(self) -> FloatArray:
        """Of the kernels of verification that know no length."""
        work, _, _ = self._split
        return self.launch_joules(launch for launch in work.launches if not launch.knows_length)

    @cached_property
    def plain_joules(self) -> FloatArray:
        """Of the plain step."""
        return self.step_joules(self.decode)

    @cached_property
    def verify_joules(self) -> FloatArray:
        """Of verification alone."""
        return self.step_joules(self.verify)

    @cached_property
    def decode_us(self) -> FloatArray:
        """(B, S) plain decoding step."""
        return np.asarray(
            np.broadcast_to(self.decode.time_us, (self.batch.size, self.seq_len.size, 1))[..., 0]
        )

    @cached_property
    def idle_share(self) -> FloatArray:
        """(B, S) by which plain steps are longer in an engine with the drafter loaded that drafts nothing.

        One pass keeps its state up to date, and a drafter that is scheduled synchronously hides no host; a
        look-up has no state.
        """
        depths = {option.depth: index for index, option in enumerate(self.options) if option.chain}
        runtime = self.setting.runtime
        if runtime.engine is None or not depths or self.scenario.drafting.kind.looks_up:
            return np.zeros(self.decode_us.shape)
        drafting = self.drafting_of(depths[min(depths)])
        waits = replace(self.setting, runtime=runtime.drafting(self.scenario.drafting.method))
        loaded = decode_step(waits, *self._places).time_us
        if drafting is not None:
            loaded = loaded + drafting.cost.time_us
        return np.asarray(np.broadcast_to(loaded[..., 0], self.decode_us.shape) / self.decode_us - 1.0)

    def time_of(self, index: int) -> FloatArray:
        """(B, S, its counts) the whole step with one option."""
        drafting = self.drafting_of(index)
        return self.verify.cost.time_with(None if drafting is None else drafting.cost, self.places(index))

    def drafting_joules(self, index: int) -> FloatArray:
        """Of the drafting of one option."""
        if index not in self._joules:
            drafting = self.drafting_of(index)
            joules = np.zeros(()) if drafting is None else self.step_joules(drafting)
            self._joules[index] = along(joules, self.places(index))
        return self._joules[index]

    @cached_property
    def _joules(self) -> dict[int, FloatArray]:
        return {}

    @property
    def chains(self) -> bool:
        """Whether all that was searched are chains: drafts (num_speculative_tokens) then name a count."""
        return all(option.chain for option in self.options)

    @cached_property
    def ends_profile(self) -> bool:
        """Whether the largest count is where the acceptance ends, not the search or a limit on drafts."""
        if not self.options:
            return False
        last = int(self.counts[-1])
        further = self.scenario.options(last + 1)
        beyond = any(int(option.candidates[-1]) > last for option in further)
        drafts = max(option.depth for option in further)
        return not beyond and drafts < self.scenario.drafting.max_drafts

    @cached_property
    def configurations(self) -> tuple[slice, ...]:
        """Of each option."""
        ends = np.cumsum([1, *(option.candidates.size for option in self.options)]).tolist()
        return tuple(map(slice, ends[:-1], ends[1:]))

    def configuration_of(self, option: DraftOption | None, count: int) -> int:
        """The configuration that drafts so with so many candidates."""
        if option is None:
            return PLAIN
        first: int = self.configurations[self.options.index(option)].start
        return first + int(np.searchsorted(option.candidates, count))

    def option_of(self, configuration: int) -> DraftOption | None:
        """How a configuration drafts; None for plain decoding."""
        index = int(self.option[configuration])
        return None if index < 0 else self.options[index]

    def cost_at(self, at: int | IntArray, s: int, configuration: int) -> Cost:
        """The cost of one configuration at one batch (or several) and a length, with its band."""
        index, column = int(self.option[configuration]), self.column(configuration)
        if index < 0:
            return cell(self.decode.cost, at, s, 0)
        cost = cell(self.verify.cost, at, s, self.places(index).start + column)
        drafting = self.drafting_of(index)
        return cost if drafting is None else cost + cell(drafting.cost, at, s, column)

    def column(self, configuration: int) -> int:
        """Where a count stands among those of its option."""
        index = int(self.option[configuration])
        return 0 if index < 0 else configuration - self.configurations[index].start


def cell(cost: Cost, at: int | IntArray, s: int, column: int) -> Cost:
    """At one batch (or several) and a length."""
    return cost.each(lambda values: entry(values, at, s, column))


def entry(values: FloatArray, at: int | IntArray, s: int, column: int) -> FloatArray:
    """Of an array that broadcasts with (B, S, columns)."""
    if not values.ndim:
        return values
    index = tuple(
        place if size > 1 else 0
        for place, size in zip((at, s, column)[3 - values.ndim :], values.shape, strict=True)
    )
    return np.asarray(values[index])
