"""Operators and decoder steps of one model on a CPU in turns: what predicts and what is predicted, in one
state of the machine (`turns`).
"""

from __future__ import annotations

import dataclasses
import math
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import torch
from msgspec.structs import replace

from medusa_sim.data import user_data_dir
from medusa_sim.errors import UsageError
from medusa_sim.gpus.gpu import Gpu, load_gpu
from medusa_sim.lab.measure import hardware
from medusa_sim.lab.measure.arguments import MeasureOptions, StepGrid, Tell
from medusa_sim.lab.measure.bench import CpuBench
from medusa_sim.lab.measure.cells import StepMeta, StepRow, write_config, write_steps
from medusa_sim.lab.measure.decoder_steps import steps_meta
from medusa_sim.lab.measure.disagreement import speedups_differ
from medusa_sim.lab.measure.environment import environment
from medusa_sim.lab.measure.kernels import Pool
from medusa_sim.lab.measure.operator_run import operators_meta
from medusa_sim.lab.measure.record import Recorder, begin, write_meta
from medusa_sim.lab.measure.shape_pass import FastestLayers
from medusa_sim.lab.measure.shapes import LEAST_ROWS, TimedShape, fill_up, shape_of, timed_shapes
from medusa_sim.lab.measure.spread import Timing, settled_timing, timing_of
from medusa_sim.lab.measure.step_operators import step_operators
from medusa_sim.lab.measure.subject import Subject, random_subject
from medusa_sim.lab.measure.timed_steps import Step, step_us
from medusa_sim.lab.measure.turns import ReferenceKernel, Turns, Visit, step_clock, take_turns
from medusa_sim.latency.measured import OPERATOR_PROFILES
from medusa_sim.models.model import of_dtype
from medusa_sim.models.named import load_model

STEADY = 0.01
"""Passes that differ by less, on average over the speedups, need no more rounds."""
_FEWEST_ROUNDS = 5
_SETTLE_S = 0.08
_PATIENCE = 0.4
_METHOD = "CPU time of runs of calls, in turns with steps, divided by the time of a kernel beside each"
_PLAIN_VISITS = 3
"""Visits of a plain step in a round: every speedup of its batch rests on it."""


@dataclass(slots=True, kw_only=True)
class Together:
    """One model's run. shapes: what its steps are made of; more: those from which kernels are fitted besides.

    bench: times operators, by its clock steps too. record: where the operators' rows go; folder: where the
    steps go; method: how they are measured. Every round leaves complete files.
    """

    subject: Subject
    shapes: Sequence[TimedShape]
    more: Sequence[TimedShape]
    bench: CpuBench
    record: Recorder
    folder: Path
    method: StepMeta
    tell: Tell
    turns: Turns = field(init=False)

    def __post_init__(self) -> None:
        """Nothing measured yet."""
        self.turns = Turns(ReferenceKernel(self.bench.clock))

    def run(self, budget_s: float) -> None:
        """Measure within the budget, or for one round if that takes longer. Raises OutputError."""
        write_config(self.folder, self.subject.name, self.subject.model.config.to_hf())
        operators, more = (
            [Visit(shape.key, partial(self.bench.ready, shape)) for shape in shapes]
            for shapes in (self.shapes, self.more)
        )
        steps = self._step_visits()
        try:
            for rounds in take_turns(
                self.turns, _mixed(operators, steps), more, budget_s=budget_s, is_steady=self._is_steady
            ):
                self._write()
                told = f"{self.subject.name}: round {rounds} of {len(self.turns.found)} operators and steps"
                if rounds > 1:
                    told += f", passes differ by {100.0 * speedups_differ(self._rows()):.1f} %"
                self.tell(told)
        except KeyboardInterrupt:
            self._write()
            raise

    @property
    def reference(self) -> dict[str, float]:
        """What the reference kernel took, us."""
        timing = timing_of(self.turns.states_us)
        return {"p10": timing.p10_us, "median": timing.time_us, "p90": timing.p90_us}

    @property
    def meta(self) -> StepMeta:
        """How the steps were measured, and in which states of the machine."""
        return replace(self.method, reference=self.reference)

    @property
    def best(self) -> FastestLayers:
        """The fastest linear layers."""
        fastest = FastestLayers()
        for shape, timing in self._timings():
            fastest.see(shape, timing.time_us)
        return fastest

    def _timings(self) -> Iterator[tuple[TimedShape, Timing]]:
        """Every operator that was visited, with its time."""
        for shape in (*self.shapes, *self.more):
            if shape.key in self.turns.found:
                yield shape, settled_timing(self.turns.times_us(shape.key))

    def _step_visits(self) -> list[Visit]:
        with torch.inference_mode():
            return [
                Visit(
                    (batch, count),
                    partial(_settled, step, self.bench.clock),
                    _PLAIN_VISITS if count == 1 else 1,
                )
                for batch in self.subject.grid.batches
                for count, step in self.subject.steps(batch).items()
            ]

    def _is_steady(self) -> bool:
        return self.turns.rounds >= _FEWEST_ROUNDS and speedups_differ(self._rows()) < STEADY

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
        for shape, timing in self._timings():
            self.record.put(shape, timing)
        self.record.save()
        if rows := self._rows():
            write_steps(self.folder, self.meta, rows)


def require_cpu(device: torch.device) -> None:
    """Raise UsageError off a CPU: a GPU's graphs are captured once, and nothing else runs on it."""
    if device.type != "cpu":
        raise UsageError(
            "--with-operators measures on a CPU; on a GPU measure operators in a call of their own"
        )


def _settled(step: Step, clock: Callable[[], float]) -> Callable[[], float]:
    """Times the step once a call, us: it has run until the caches hold what it leaves in them."""

    def once() -> float:
        with torch.inference_mode():
            return step_us(step, torch.device("cpu"), clock)

    began = time.perf_counter()
    while True:
        once()
        if time.perf_counter() - began >= _SETTLE_S:
            return once


def _mixed(operators: Sequence[Visit], steps: Sequence[Visit]) -> list[Visit]:
    """Steps spread evenly among the operators, and the further visits of a step over the round."""
    placed = [
        (((place + 0.5) / len(group) + again / visit.often) % 1.0, visit)
        for group in (operators, steps)
        for place, visit in enumerate(group)
        for again in range(visit.often)
    ]
    return [visit for _, visit in sorted(placed, key=lambda entry: entry[0])]


def _shapes(name: str, gpu: Gpu, subject: Subject) -> tuple[list[TimedShape], list[TimedShape]]:
    """What the steps of a model are made of, with as many others as a fit needs; the rest of the others."""
    grid, model = subject.grid, dataclasses.replace(load_model(name), **of_dtype(subject.dtype))
    cells = [
        (batch, count, tree.depth) for batch in grid.batches for count, (tree, _) in subject.trees.items()
    ]
    needed = [shape_of(model, operator, 0) for operator in step_operators(model, gpu, cells, grid.seq_len)]
    return fill_up(needed, timed_shapes([model], (subject.dtype,)), LEAST_ROWS)


def measure_together(
    folder: Path,
    asked: MeasureOptions,
    grid: StepGrid,
    device: torch.device,
    dtype: str,
    tell: Tell = lambda _: None,
) -> StepMeta:
    """Steps of one model to `folder`, and the operators that they and a fit are made of to the device's rows.

    Raises UsageError off a CPU or for several models, SpecError or OutputError for what is not there or
    cannot be written.
    """
    require_cpu(device)
    if len(asked.models) > 1:
        raise UsageError(
            "--with-operators measures one model; a model is a device of its own on a CPU (--name)"
        )
    (path,) = asked.models
    subject = random_subject(path, dtype, grid, device, packed=asked.packed)
    seen = environment(device, asked.name)
    home = user_data_dir(asked.data_dir)
    rows = asked.out or home / OPERATOR_PROFILES / seen.name
    rates = hardware.rates(device, seen, (dtype,))
    meta = operators_meta(asked, (dtype,), seen, rates, _METHOD)
    record, meta = begin(rows, meta, resume=False)
    write_meta(rows, meta)
    hardware.write_hardware(home, seen, rates)
    first, more = _shapes(path, load_gpu(seen.name, home), subject)
    method = steps_meta(grid, seen, rates.copy_bytes_per_s, packed=asked.packed)
    run = Together(
        subject=subject,
        shapes=first,
        more=more,
        bench=CpuBench(
            Pool(torch.device("cpu"), seen.cache_bytes, packed=asked.packed), step_clock(), patience=_PATIENCE
        ),
        record=record,
        folder=folder,
        method=replace(method, attention={subject.name: subject.attention}),
        tell=tell,
    )
    try:
        run.run(asked.budget or math.inf)
    finally:
        if run.turns.found:
            best = run.best
            reached = hardware.with_rows(rates, best.flops_per_s, best.bytes_per_s)
            beside = {"attention": subject.attention, "reference": run.reference}
            write_meta(rows, replace(meta, rates=reached, **beside))
            hardware.write_hardware(home, seen, reached)
    tell(f"{record.rows} operators in {rows}")
    return run.meta
