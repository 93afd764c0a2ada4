"""The simulator against the decoder: measured steps, predicted steps, and the choice that follows from them.

Predicted steps launch as the decoder does: separate projections, one fused attention kernel, heads on the
accepted row, and the mask over all keys as three passes over it. `measure` rotates operands as a real step
does, so its rows are used as measured (`cold=False`). The remainder is overhead outside kernels: one number
per launch where a step is a CUDA graph; where Python launches, one number per plain step and one per
speculative step, which drafts, chooses and compacts as well. They are given, or fitted to each model's
first plain and first speculative step, which are then left out of the scores.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np

from medusa_sim import data
from medusa_sim.data import DataDir
from medusa_sim.errors import CoverageError, UsageError
from medusa_sim.lab.measure.cells import StepMeta, StepRow, read_steps
from medusa_sim.lab.measure.environment import differences
from medusa_sim.lab.measure.spread import lower_quartile
from medusa_sim.lab.validate.comparison import (
    Cell,
    CountChoice,
    Deviation,
    choice_of,
    comparison,
    halves_differ,
)
from medusa_sim.latency.by_name import Fallback, LatencyName, latency_model
from medusa_sim.latency.measured import OPERATOR_PROFILES
from medusa_sim.latency.model import LatencyModel
from medusa_sim.reading import read_toml
from medusa_sim.specs.gpu import Gpu
from medusa_sim.specs.hf_config import model_from_config
from medusa_sim.specs.measurement import META, Environment, Meta, read_meta
from medusa_sim.specs.model import Model, of_dtype
from medusa_sim.specs.runtime import Runtime
from medusa_sim.step.drafter.medusa import Medusa
from medusa_sim.step.launch import elementwise_launch
from medusa_sim.step.pass_time import work_time
from medusa_sim.step.pass_work import PassWork
from medusa_sim.step.setting import Setting
from medusa_sim.step.step import decode_step, speculative_step
from medusa_sim.step.step_time import StepTime
from medusa_sim.step.workload import verify

GRAPHED = "cuda-graph"
_MASK_PASSES = 3
"""Gather, mask and bias."""
MASK = "mask"
"""Name of the operator that makes the mask."""


class _Place(NamedTuple):
    """Where a step was measured: `decoder_step` takes these as they stand."""

    batch: int
    seq_len: int
    candidates: int
    depth: int


@dataclass(frozen=True, slots=True, kw_only=True)
class StepCell(Cell):
    """A step, microseconds.

    measured_us: the lower quartile of the passes: other work on the machine rather slows a step.
    """

    seq_len: int
    tokens_per_step: float
    measured_us: float
    passes_us: tuple[float, ...]
    predicted_us: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Gaps:
    """Overhead outside kernels, us: per launch (CUDA graphs), or a plain and a speculative step (eager)."""

    launch_us: float = 0.0
    plain_us: float = 0.0
    speculative_us: float = 0.0

    def step_us(self, launches: float, candidates: int) -> float:
        """What a step of so many launches takes outside its kernels."""
        return launches * self.launch_us + (self.plain_us if candidates == 1 else self.speculative_us)


@dataclass(frozen=True, slots=True, kw_only=True)
class DecoderValidation:
    """Everything that a folder of steps tells. gaps: by model."""

    meta: StepMeta
    cells: tuple[StepCell, ...]
    comparisons: tuple[Deviation, ...]
    choices: tuple[CountChoice, ...]
    gaps: dict[str, Gaps]

    @property
    def effect(self) -> float:
        """|gain - 1| of each batch's best tree, on average: what a measurement must be able to tell."""
        gains = [choice.gain for choice in self.choices if choice.gain is not None]
        return float(np.mean(np.abs(np.asarray(gains) - 1.0))) if gains else 0.0


def decoder_runtime(launch_us: float = 0.0) -> Runtime:
    """How this project's decoder launches its kernels."""
    source = "medusa_sim.lab.decoder.model: what it calls; the time is fitted or given by the caller"
    return Runtime(
        name="decoder",
        title="The ground-truth decoder",
        kernels={},
        fused_qkv=False,
        fused_gate_up=False,
        attention="fused",
        head_rows="accepted",
        launch_us=launch_us,
        host_us_per_launch=0.0,
        host_us_per_step=0.0,
        sources=dict.fromkeys(("launch_us", "host_us_per_launch", "host_us_per_step"), source),
    )


def validate_decoder(
    folder: Path,
    gpu: Gpu,
    *,
    kernels: str = "torch",
    latency: LatencyName = "calibrated",
    fallback: Fallback = "calibrated",
    gaps: Gaps | None = None,
    allow_different: bool = False,
    data_dir: DataDir = None,
) -> DecoderValidation:
    """Predicted against measured steps of `folder` (see `medusa_sim.lab.measure.cells`).

    kernels, latency, fallback: as everywhere. gaps: None fits them. Raises UsageError where the profile
    of the GPU and the steps are of devices that differ in name, dtype or clocks, unless that is allowed;
    CoverageError where the kernels do not cover an operator; DataError for malformed files.
    """
    meta, rows = read_steps(folder)
    if not allow_different:
        refuse_different(gpu, meta.environment, {row.dtype for row in rows}, data_dir)
    model_of = latency_model(gpu, latency, kernels, cold=False, fallback=fallback, data_dir=data_dir)
    cells: list[StepCell] = []
    fitted: dict[str, Gaps] = {}
    for name in dict.fromkeys(row.model for row in rows):
        mine = [row for row in rows if row.model == name]
        model = decoder_model(folder, name, mine[0].dtype)
        fitted[name], cells_of = _cells(model, mine, model_of, gaps, graphed=meta.launched == GRAPHED)
        cells += cells_of
    return DecoderValidation(
        meta=meta,
        cells=tuple(cells),
        comparisons=tuple(_comparisons(cells)),
        choices=tuple(_choices(cells)),
        gaps=fitted,
    )


def refuse_different(gpu: Gpu, steps: Environment, dtypes: Iterable[str], data_dir: DataDir = None) -> None:
    """Raise UsageError where predictions of `gpu` say nothing about the device of the steps."""
    profile = profile_meta(gpu.name, data_dir)
    unlike = [] if gpu.name == steps.name else [f"name {gpu.name!r} and {steps.name!r}"]
    if profile is not None:
        unlike = differences(profile.environment, steps)
        missing = sorted(set(dtypes) - set(profile.dtypes))
        unlike += [f"dtype {', '.join(profile.dtypes)} and {', '.join(missing)}"] if missing else []
    if unlike:
        raise UsageError(
            f"the profile of {gpu.name} and the measured steps are not of one device ({'; '.join(unlike)}); "
            "measure both in one place, or compare them with --allow-different"
        )


def profile_meta(name: str, data_dir: DataDir = None) -> Meta | None:
    """How the operators of a GPU were measured; None where `measure` has no rows of it."""
    folder = data.find(OPERATOR_PROFILES, name, data_dir)
    if folder is None or not (folder / META).is_file() or "environment" not in read_toml(folder / META):
        return None
    return read_meta(folder, Meta)


def decoder_model(folder: Path, name: str, dtype: str) -> Model:
    """The model that a folder of steps or runs describes, in the dtype of its rows."""
    model = model_from_config(folder / name / "config.json")
    return dataclasses.replace(model, name=name, **of_dtype(dtype))


def _cells(
    model: Model, rows: Sequence[StepRow], latency: LatencyModel, gaps: Gaps | None, *, graphed: bool
) -> tuple[Gaps, list[StepCell]]:
    """Gaps, and every cell with its prediction."""
    tokens = {_Place(row.batch, row.seq_len, row.candidates, row.depth): row.tokens_per_step for row in rows}
    places = sorted(tokens)
    passes = {
        place: tuple(
            row.time_us for row in rows if (row.batch, row.seq_len, row.candidates, row.depth) == place
        )
        for place in places
    }
    base = {place: _kernels(model, latency, place) for place in places}
    fitted_to: list[_Place] = []
    if gaps is None:
        fitted_to = [place for place in places if place.candidates == 1][:1]
        if not graphed:
            fitted_to += [place for place in places if place.candidates > 1][:1]
        missing_us = [lower_quartile(passes[place]) - base[place].kernels_us for place in fitted_to]
        gaps = _fitted_gaps(missing_us, base[fitted_to[0]].launches, graphed=graphed)
    return gaps, [
        StepCell(
            model=model.name,
            batch=place.batch,
            seq_len=place.seq_len,
            candidates=place.candidates,
            tokens_per_step=tokens[place],
            measured_us=lower_quartile(passes[place]),
            passes_us=passes[place],
            predicted_us=base[place].kernels_us + gaps.step_us(base[place].launches, place.candidates),
            is_fitted=place in fitted_to,
        )
        for place in places
    ]


def _fitted_gaps(missing_us: Sequence[float], plain_launches: float, *, graphed: bool) -> Gaps:
    """Gaps that leave no error at the cells they are fitted to, and 0 where kernels alone take longer.

    missing_us: what kernels lack there of a plain step, and of a speculative one where one was measured.
    """
    if graphed:
        return Gaps(launch_us=max(0.0, missing_us[0] / plain_launches))
    plain, *speculative = (max(0.0, us) for us in missing_us)
    return Gaps(plain_us=plain, speculative_us=speculative[0] if speculative else plain)


def decoder_step(
    model: Model,
    latency: LatencyModel,
    batch: int,
    seq_len: int,
    candidates: int,
    depth: int,
    launch_us: float = 0.0,
) -> StepTime:
    """One step of the decoder: plain at one candidate, else Medusa with `depth` heads; the mask included."""
    runtime = decoder_runtime(launch_us)
    setting = Setting(
        latency=latency,
        model=model,
        runtime=runtime,
        scope="model",
        drafter=Medusa(heads=depth) if depth else None,
        compacted_drafts=depth,
    )
    if candidates == 1:
        return decode_step(setting, batch, seq_len)  # one token needs no mask
    step = speculative_step(setting, batch, seq_len, candidates)
    keys = batch * candidates * (seq_len + candidates)
    rows = -(-keys // model.hidden)  # as wide as rows that were measured
    mask = elementwise_launch(model, MASK, "residual", "attention", rows, model.hidden, _MASK_PASSES)
    workload = verify(batch, seq_len, candidates)
    return step + work_time(
        latency, PassWork(launches=(mask,), runtime=runtime, workload=workload, of="continued")
    )


class _Kernels(NamedTuple):
    """A step's kernels: their time without gaps, and how many launches they are."""

    kernels_us: float
    launches: float


def _kernels(model: Model, latency: LatencyModel, place: _Place) -> _Kernels:
    """The kernels of the step at a place; with gaps of 1 us their sum is the number of launches."""
    step = decoder_step(model, latency, *place, launch_us=1.0)
    return _Kernels(float(step.device_us) - step.gaps_us, step.gaps_us)


def _comparisons(cells: Sequence[StepCell]) -> list[Deviation]:
    """Decoding steps, verification steps, and speedups at equal batch and length."""
    scored = [cell for cell in cells if not cell.is_fitted]
    deviations = []
    for quantity, keep in (("decode step", True), ("verify step", False)):
        chosen = [cell for cell in scored if (cell.candidates == 1) == keep]
        if chosen:
            ratio = np.asarray([cell.predicted_us / cell.measured_us for cell in chosen])
            floors = [halves_differ(cell.passes_us, lower_quartile) for cell in chosen]
            deviations.append(comparison(quantity, ratio, floors, [cell.where for cell in chosen]))
    pairs = [(_baseline(cells, cell), cell) for cell in scored if cell.candidates > 1]
    if pairs:
        ratio = np.asarray(
            [
                base.predicted_us / cell.predicted_us / (base.measured_us / cell.measured_us)
                for base, cell in pairs
            ]
        )
        floors = [_gain_differs(base, cell) for base, cell in pairs]
        deviations.append(comparison("speedup", ratio, floors, [cell.where for _, cell in pairs]))
    return deviations


def _gain_differs(base: StepCell, cell: StepCell) -> float:
    """How far halves of the passes disagree about the ratio of two steps."""
    places = range(len(cell.passes_us))
    return halves_differ(
        places,
        lambda chosen: (
            lower_quartile([base.passes_us[int(i)] for i in chosen])
            / lower_quartile([cell.passes_us[int(i)] for i in chosen])
        ),
    )


def _floor(cells: Sequence[StepCell], plain: StepCell, best: StepCell) -> float | None:
    """How far halves of the passes disagree about a gain, or about all of its model on average if that is
    more: with few passes two halves may agree by chance. None for one pass.
    """
    if len(best.passes_us) == 1:
        return None
    trees = [cell for cell in cells if cell.model == best.model and cell.candidates > 1]
    mean = np.mean([_gain_differs(_baseline(cells, cell), cell) for cell in trees])
    return max(_gain_differs(plain, best), float(mean))


def speedups_differ(rows: Sequence[StepRow]) -> float:
    """How far the passes of one model disagree, on average over the speedups of its trees."""
    passes: dict[tuple[int, int, int], list[float]] = {}
    for row in rows:
        passes.setdefault((row.batch, row.seq_len, row.candidates), []).append(row.time_us)
    cells = {
        key: StepCell(
            model=rows[0].model,
            batch=key[0],
            seq_len=key[1],
            candidates=key[2],
            tokens_per_step=1.0,
            measured_us=lower_quartile(times),
            passes_us=tuple(times),
            predicted_us=0.0,
            is_fitted=False,
        )
        for key, times in passes.items()
    }
    return float(
        np.mean([_gain_differs(cells[(*key[:2], 1)], cell) for key, cell in cells.items() if key[2] > 1])
    )


def _baseline(cells: Sequence[StepCell], cell: StepCell) -> StepCell:
    place = (cell.model, cell.batch, cell.seq_len)
    for other in cells:
        if other.candidates == 1 and (other.model, other.batch, other.seq_len) == place:
            return other
    raise CoverageError(f"{cell.where}: no decoding step at this batch and length was measured")


def _choices(cells: Sequence[StepCell]) -> list[CountChoice]:
    """Best counts of every model and batch with two counts or more."""
    choices = []
    for place in dict.fromkeys((cell.model, cell.batch, cell.seq_len) for cell in cells):
        grid = sorted(
            (cell for cell in cells if (cell.model, cell.batch, cell.seq_len) == place),
            key=lambda cell: cell.candidates,
        )
        if len(grid) < 2:
            continue
        tokens = np.asarray([cell.tokens_per_step for cell in grid])
        measured = tokens / np.asarray([cell.measured_us for cell in grid])
        plain, best = grid[0], grid[1 + int(np.argmax(measured[1:]))]
        choices.append(
            choice_of(
                place[0],
                place[1],
                [cell.candidates for cell in grid],
                measured,
                tokens / np.asarray([cell.predicted_us for cell in grid]),
                gain=best.tokens_per_step * plain.measured_us / best.measured_us,
                floor=_floor(cells, plain, best),
            )
        )
    return choices
