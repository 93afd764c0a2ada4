"""Operators and decoder steps of one model on a CPU in turns: what predicts and what is predicted, in one
state of the machine (`turns`).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import torch

from medusa_sim.errors import UsageError
from medusa_sim.lab.measure.bench import CpuBench
from medusa_sim.lab.measure.cells import StepRow, write_config, write_steps
from medusa_sim.lab.measure.decoder_steps import Tell, steps_meta
from medusa_sim.lab.measure.kernels import Pool
from medusa_sim.lab.measure.record import Recorder
from medusa_sim.lab.measure.session import FastestLayers
from medusa_sim.lab.measure.shapes import Case
from medusa_sim.lab.measure.spread import Timing, settled_timing, timing_of
from medusa_sim.lab.measure.subject import Subject
from medusa_sim.lab.measure.timed_steps import Step, step_us
from medusa_sim.lab.measure.turns import ReferenceKernel, Turns, Visit, step_clock, take_turns
from medusa_sim.specs.measurement import Environment

STEADY = 0.01
"""Passes that differ by less, on average over the speedups, need no more rounds."""
_FEWEST_ROUNDS = 5
_SETTLE_S = 0.08
_PATIENCE = 0.4
_PLAIN_VISITS = 3
"""Visits of a plain step in a round: every speedup of its batch rests on it."""


@dataclass(slots=True)
class Together:
    """One model's run. cases: what its steps are made of; more: shapes from which kernels are fitted besides.

    record: where the operators' rows go; folder: where the steps go. disagreement: how far the passes of a
    grid differ, on average over its speedups. Every round leaves complete files.
    """

    folder: Path
    subject: Subject
    cases: Sequence[Case]
    more: Sequence[Case]
    record: Recorder
    seen: Environment
    copy_bytes_per_s: float
    disagreement: Callable[[Sequence[StepRow]], float]
    packed: bool = False
    tell: Tell = lambda _: None
    turns: Turns = field(init=False)
    _clock: Callable[[], float] = field(init=False)

    def __post_init__(self) -> None:
        """Nothing measured yet."""
        self._clock = step_clock()
        self.turns = Turns(ReferenceKernel(self._clock))

    def run(self, budget_s: float) -> None:
        """Measure within the budget, or for one round if that takes longer. Raises OutputError."""
        write_config(self.folder, self.subject.name, self.subject.model.config.to_hf())
        bench = CpuBench(
            Pool(torch.device("cpu"), self.seen.cache_bytes, packed=self.packed),
            self._clock,
            patience=_PATIENCE,
        )
        operators, more = (
            [Visit(case.key, partial(bench.ready, case)) for case in cases]
            for cases in (self.cases, self.more)
        )
        steps = self._step_visits()
        try:
            for rounds in take_turns(
                self.turns, _mixed(operators, steps), more, budget_s=budget_s, is_steady=self._is_steady
            ):
                self._write()
                differ = f", passes differ by {self.disagreement(self._rows()):.1%}" if rounds > 1 else ""
                kinds = f"{len(self.turns.found)} operators and steps"
                self.tell(f"{self.subject.name}: round {rounds} of {kinds}{differ}")
        except KeyboardInterrupt:
            self._write()
            raise

    @property
    def reference(self) -> dict[str, float]:
        """What the reference kernel took, us."""
        timing = timing_of(self.turns.states_us)
        return {"p10": timing.p10_us, "median": timing.time_us, "p90": timing.p90_us}

    @property
    def best(self) -> FastestLayers:
        """The fastest linear layers."""
        fastest = FastestLayers()
        for case, timing in self._timings():
            fastest.see(case, timing.time_us)
        return fastest

    def _timings(self) -> Iterator[tuple[Case, Timing]]:
        """Every operator that was visited, with its time."""
        for case in (*self.cases, *self.more):
            if case.key in self.turns.found:
                yield case, settled_timing(self.turns.times_us(case.key))

    def _step_visits(self) -> list[Visit]:
        with torch.inference_mode():
            return [
                Visit((batch, count), _settled(step, self._clock), _PLAIN_VISITS if count == 1 else 1)
                for batch in self.subject.grid.batches
                for count, step in self.subject.steps(batch).items()
            ]

    def _is_steady(self) -> bool:
        return self.turns.rounds >= _FEWEST_ROUNDS and self.disagreement(self._rows()) < STEADY

    def _rows(self) -> list[StepRow]:
        """One row a cell and complete round; a run that was stopped in its first round keeps what it has."""
        rounds = max(self.turns.rounds, 1)
        return [
            self.subject.row(batch, count, repetition, timing_of([time_us]))
            for batch in self.subject.grid.batches
            for count in self.subject.trees
            if (batch, count) in self.turns.found
            for repetition, time_us in enumerate(self.turns.times_us((batch, count))[:rounds])
        ]

    def _write(self) -> None:
        if not self.turns.found:
            return
        for case, timing in self._timings():
            self.record.put(case, timing)
        self.record.save()
        if rows := self._rows():
            subject = self.subject
            meta = steps_meta(subject.grid, self.seen, self.copy_bytes_per_s, packed=self.packed)
            meta.attention[subject.name] = subject.attention
            meta.reference.update(self.reference)
            write_steps(self.folder, meta, rows)


def require_cpu(device: torch.device) -> None:
    """Raise UsageError off a CPU: a GPU's graphs are captured once, and nothing else runs on it."""
    if device.type != "cpu":
        raise UsageError(
            "--with-operators measures on a CPU; on a GPU measure operators in a call of their own"
        )


def _settled(step: Step, clock: Callable[[], float]) -> Callable[[], Callable[[], float]]:
    """Runs the step until the caches hold what it leaves in them; then each call times it once."""

    def once() -> float:
        with torch.inference_mode():
            return step_us(step, torch.device("cpu"), clock)

    def ready() -> Callable[[], float]:
        began = time.perf_counter()
        while True:
            once()
            if time.perf_counter() - began >= _SETTLE_S:
                return once

    return ready


def _mixed(operators: Sequence[Visit], steps: Sequence[Visit]) -> list[Visit]:
    """Steps spread evenly among the operators, and the further visits of a step over the round."""
    placed = [
        (((place + 0.5) / len(group) + again / visit.often) % 1.0, visit)
        for group in (operators, steps)
        for place, visit in enumerate(group)
        for again in range(visit.often)
    ]
    return [visit for _, visit in sorted(placed, key=lambda entry: entry[0])]
