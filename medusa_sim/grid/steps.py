"""Time, tokens and energy of the steps of cells, alone and in a server that stays full."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property, partial
from operator import attrgetter
from typing import Any, Self

import numpy as np
import numpy.typing as npt

from medusa_sim.arrays import FloatArray, Halves, IntArray, NumberT, as_float
from medusa_sim.grid.cell_passes import CellPasses, part_us
from medusa_sim.grid.configurations import PLAIN, Configurations
from medusa_sim.grid.surface import Surface
from medusa_sim.grid.unless_self import cached_unless_self
from medusa_sim.latency.operator_time import Bound, CodeArray
from medusa_sim.operators.operator import Size
from medusa_sim.scenario.scenario import Scenario
from medusa_sim.step import compose
from medusa_sim.step.compose import COST_FIELDS, Cost
from medusa_sim.step.kernel_sums import WAITS
from medusa_sim.step.launch import PARTS, Part
from medusa_sim.step.pass_times import PassTimes, bound_codes
from medusa_sim.step.server import Server, in_server
from medusa_sim.step.watts import launch_joules, requests_joules, watts


@dataclass(frozen=True, eq=False)
class Steps:
    """The step of some configurations at every batch and length.

    index: configuration of each cell. Arrays are (batches, lengths, cells); what is the same along an axis
    may stand there once. Times are microseconds.
    """

    surface: Surface
    index: IntArray

    @classmethod
    def every(cls, surface: Surface) -> Self:
        """Every configuration at every batch and length."""
        return cls(surface, np.arange(surface.configurations.candidates.size)[None, None, :])

    def with_index(self, index: IntArray) -> Self:
        """Other configurations of the same surface; this object if they are the same."""
        for axis in (0, 1):  # once where all batches or lengths have the same
            first = index.take([0], axis) if index.shape[axis] > 1 else index
            if np.array_equal(np.broadcast_to(first, index.shape), index):
                index = first
        return self if np.array_equal(index, self.index) else replace(self, index=index)

    @cached_unless_self
    def plain(self) -> Self:
        """Plain decoding, one cell at each batch and length."""
        return self.with_index(np.array([[[PLAIN]]]))

    @cached_unless_self
    def baseline(self) -> Self:
        """Steps of which the first is plain decoding: these, or that alone."""
        return self.plain if (self.index[..., 0] != PLAIN).any() else self

    @cached_unless_self
    def in_flight(self) -> Self:
        """Steps of the requests that a server has in flight (`Surface.in_flight`)."""
        return self._on(self.surface.in_flight)

    def _on(self, surface: Surface) -> Self:
        """These configurations on another surface; this object if the surface is its own."""
        return self if surface is self.surface else replace(self, surface=surface)

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
        return np.broadcast_to(values, self.shape)

    def first(self, values: FloatArray) -> FloatArray:
        """A number of the first cell at each batch and length."""
        return self.spread(values)[..., :1]

    @property
    def batch(self) -> IntArray:
        """Sequences of a step."""
        return self.surface.batch[:, None, None]

    @property
    def seq_len(self) -> IntArray | FloatArray:
        """Committed tokens of each sequence."""
        return self.surface.seq_len[None, :, None]

    # What a step gives.

    @cached_property
    def candidates(self) -> IntArray:
        """Tokens that it verifies for each sequence, root included."""
        return self.configurations.candidates[self.index]

    @cached_property
    def tokens_per_step(self) -> FloatArray:
        """Mean tokens that it emits for each sequence."""
        return self.configurations.tokens_per_step[self.index]

    @cached_property
    def token_halves(self) -> Halves:
        """Half-widths of the tokens per step."""
        of_all = self.configurations.token_halves
        return Halves(of_all.down[self.index], of_all.up[self.index])

    @property
    def request_token_halves(self) -> Halves:
        """Half-widths of the tokens of a request over its steps."""
        of_all = self.surface.request_token_halves
        return Halves(of_all.down[self.index], of_all.up[self.index])

    # What a step takes.

    @cached_property
    def passes(self) -> CellPasses:
        """The passes of its step."""
        return CellPasses(self.surface, self.index)

    @cached_property
    def step_us(self) -> FloatArray:
        """The whole step, spread."""
        names = ("device_us", "host_us", "exposed_us")
        parts = (self.passes.whole(attrgetter(f"cost.{name}")) for name in names)
        return self.spread(compose.step_us(*parts))

    @property
    def decode_us(self) -> FloatArray:
        """The plain step at the same batch and length."""
        return self.surface.decode.time_us

    @cached_property
    def cost(self) -> Cost:
        """Cost of the whole step, with the parts of its band."""
        return Cost(**{name: self.passes.whole(attrgetter(f"cost.{name}")) for name in COST_FIELDS})

    @property
    def target_us(self) -> FloatArray:
        """The target's pass, without drafting."""
        return np.asarray(self.passes.target(lambda times: times.time_us))

    @cached_property
    def attention_us(self) -> FloatArray:
        """Attention of the target, spread."""
        return self.spread(self.passes.target(part_us("attention")))

    @cached_property
    def parts_us(self) -> dict[Part, FloatArray]:
        """Kernels by what they are for, spread, in the order in which they stack; launch gaps apart."""
        known, passes = {*self.passes.parts, "drafter"}, self.passes

        def time_us(part: Part) -> FloatArray:
            read = passes.whole if part == "drafter" else passes.target
            return self.spread(read(part_us(part)))

        return {part: time_us(part) for part in PARTS if part in known}

    @cached_property
    def bound(self) -> CodeArray:
        """`Bound` codes."""

        def waits_us(code: Bound) -> FloatArray:
            return self.passes.whole(lambda times: times.waits_us[code])

        return bound_codes({code: waits_us(code) for code in WAITS}, self.cost)

    @cached_property
    def source(self) -> CodeArray:
        """Worst `Source` code of the kernels."""
        drafted = self.passes.drafting(lambda times: times.source).astype(np.int8)
        return np.asarray(np.maximum(self.passes.target(lambda times: times.source), drafted))

    @cached_property
    def joules(self) -> FloatArray:
        """Joules of one GPU above idle; nan where its power is not known."""
        gpu = self.scenario.gpu
        power = gpu.power
        if power is None:
            return np.full((), np.nan)
        known: dict[int, FloatArray] = {}  # passes that were timed together have their kernels in common

        def joules(times: PassTimes) -> FloatArray:
            total = np.zeros(())
            for work in times.works:
                if id(work.launches) not in known:
                    known[id(work.launches)] = launch_joules(gpu, power, work.launches)
                total = total + work.share * work.alone(known[id(work.launches)])
            return total

        return self.passes.whole(joules)

    @cached_property
    def watts(self) -> FloatArray:
        """Mean watts of all GPUs while such steps follow one another.

        With traffic, prompts that ride on the steps and the filtering of logits count. nan (a 0-d array)
        where the GPU's power is not known, and for scope `block`.
        """
        scenario, setting, power = self.scenario, self.surface.setting, self.scenario.gpu.power
        if power is None or scenario.scope == "block":
            return np.full((), np.nan)
        joules, time_us = self.in_flight.joules, self.served.token_us * self.tokens_per_step
        if (traffic := scenario.traffic) is not None:
            assert self.decode_steps is not None  # noqa: S101  # there is traffic
            joules, time_us = requests_joules(
                scenario.gpu, power, setting, self.surface.loaded_drafter, self.batch, self.candidates,
                traffic, step_joules=joules, decode_steps=self.decode_steps, prompt_tokens=self.prompt_tokens,
            ), self.served.token_us * traffic.output_tokens  # fmt: skip
        return np.asarray(scenario.gpus * watts(power, joules, time_us))

    # In a server.

    @cached_property
    def decode_steps(self) -> FloatArray | None:
        """Steps in which a request decodes; None without traffic."""
        steps = self.surface.decode_steps
        return None if steps is None else steps[self.index]

    @property
    def prompt_tokens(self) -> FloatArray | None:
        """Mean tokens of a prompt; None where all are the traffic's."""
        tokens = self.surface.prompt_tokens
        return None if tokens is None else tokens[None, :, None]

    @cached_property
    def served(self) -> Server:
        """Steps of requests in flight, in a server that stays full with the scenario's traffic."""
        return self._served(np.asarray)

    def served_at(self, b: int, s: int) -> Server:
        """(cells,) `served` at one batch and length."""
        return self._served(lambda values: as_float(self.spread(values)[b, s]))

    def served_if(
        self, b: int, s: int, k: int, step_us: FloatArray | float, emission_chances: FloatArray
    ) -> Server:
        """A cell in a server if its step took `step_us` and emitted other numbers of tokens.

        emission_chances: (..., X) probabilities that a step emits at least 1, 2, ... X tokens.
        """
        traffic, batch = self.scenario.traffic, int(self.surface.batch[b])
        candidates = int(self.spread(self.candidates)[b, s, k])
        prompt_tokens = None if self.surface.prompt_tokens is None else self.surface.prompt_tokens[s]
        decode_steps = None if traffic is None else traffic.request_steps(emission_chances)
        return self._in_server(
            as_float(step_us),
            self.in_flight.attention_us[b, s, k],
            batch,
            candidates,
            emission_chances.sum(axis=-1),
            (np.asarray(s), np.asarray(self.spread(self.index)[b, s, k])),
            decode_steps=decode_steps,
            prompt_tokens=prompt_tokens,
        )

    def _served(self, some: Callable[[npt.NDArray[Any]], FloatArray]) -> Server:
        """Some of the cells in a server: those whose numbers `some` takes."""
        lengths = np.arange(self.surface.seq_len.size)[None, :, None]
        return self._in_server(
            some(self.in_flight.step_us),
            some(self.in_flight.attention_us),
            some(self.batch),
            some(self.candidates),
            some(self.tokens_per_step),
            (some(lengths).astype(np.int64), some(self.index).astype(np.int64)),
            decode_steps=None if self.decode_steps is None else some(self.decode_steps),
            prompt_tokens=None if self.prompt_tokens is None else some(self.prompt_tokens),
        )

    def _in_server(
        self,
        step_us: FloatArray,
        attention_us: FloatArray,
        batch: Size,
        candidates: Size,
        tokens_per_step: FloatArray,
        places: tuple[IntArray, IntArray],
        *,
        decode_steps: FloatArray | None,
        prompt_tokens: FloatArray | None,
    ) -> Server:
        """Steps in a server. places: of each one's length and configuration."""
        return in_server(
            self.surface.setting, step_us, batch, candidates, tokens_per_step, self.scenario.traffic,
            attention_us=attention_us,
            fewer=partial(self._of_fewer, as_float(batch), step_us, attention_us, places),
            decode_steps=decode_steps, prompt_tokens=prompt_tokens, drafter=self.surface.loaded_drafter,
        )  # fmt: skip

    def _of_fewer(
        self,
        requests: FloatArray,
        step_us: FloatArray,
        attention_us: FloatArray,
        places: tuple[IntArray, IntArray],
        running: FloatArray,
    ) -> tuple[FloatArray, FloatArray]:
        """Steps of `requests` and their attention where fewer run: as much shorter as steps of `_fewer`.

        places: of each one's length and configuration there.
        """
        sizes = self._fewer.surface.batch

        def share(values_us: FloatArray) -> FloatArray:
            each_us = self._fewer.spread(values_us)
            return _between(sizes, each_us, running, places) / _between(sizes, each_us, requests, places)

        return step_us * share(self._fewer.step_us), attention_us * share(self._fewer.attention_us)

    @cached_property
    def _fewer(self) -> Steps:
        """Every configuration at numbers of requests up to these."""
        return Steps.every(self.surface.in_flight.fewer_requests)


def _between(
    sizes: IntArray, values: FloatArray, some: FloatArray, places: tuple[IntArray, IntArray]
) -> FloatArray:
    """Values at `some` requests, between those at two sizes."""
    above = np.clip(np.searchsorted(sizes, some), 1, sizes.size - 1)
    part = (np.maximum(some, sizes[0]) - sizes[above - 1]) / (sizes[above] - sizes[above - 1])
    low, high = values[above - 1, *places], values[above, *places]
    return np.asarray(low + part * (high - low))
