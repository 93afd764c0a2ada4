"""The simulator against the decoder: measured steps, predicted steps, and the choice that follows from them.

Predicted steps use the decoder's own way of launching: separate projections, one fused attention kernel,
heads on the accepted row. Rows of `measure` were taken as a step of the model reads its operands, so that
predictions are those of the rows (`cold=False`). The mask over all keys, which the decoder builds in every
step, is priced as three passes over it. What it does beside kernels is one number, gap_us: once a launch
where a step is a CUDA graph, once a step where Python launches (rows of `measure` hold a launch of their
own). It is given, or fitted to the decoding step of each model's smallest batch, which is then left out of
the scores of steps.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from medusa_sim import data
from medusa_sim.drafter import DraftWork, MedusaHeads, NoDrafter
from medusa_sim.errors import CoverageError, UsageError
from medusa_sim.latency.base import LatencyModel
from medusa_sim.latency.profile import OPERATOR_PROFILES
from medusa_sim.measure.environment import Environment, differences
from medusa_sim.measure.record import META, Meta, read_meta
from medusa_sim.measure.steps import StepMeta, StepRow, read_steps
from medusa_sim.operators import FloatArray
from medusa_sim.setup import DataDir, LatencyName, Outside, latency_model
from medusa_sim.specs.gpu import Gpu
from medusa_sim.specs.hf_config import model_from_config
from medusa_sim.specs.model import Model
from medusa_sim.specs.runtime import Runtime
from medusa_sim.specs.sourced import read_toml
from medusa_sim.step import Setting, StepTime, decode_step, verify_step, work_time
from medusa_sim.workload import elementwise_launch

GRAPHED = "cuda-graph"
_MASK_PASSES = 3
"""Gather, mask and bias."""
ALLOWANCE = 0.10
"""Error beyond the passes' own disagreement that a cell may have."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StepCell:
    """One cell: measured in every pass and predicted, microseconds. is_fitted: gap_us comes from it."""

    model: str
    batch: int
    seq_len: int
    candidates: int
    tokens_per_step: float
    measured_us: float
    passes_us: tuple[float, ...]
    predicted_us: float
    is_fitted: bool

    @property
    def where(self) -> str:
        """The cell in words."""
        return f"{self.model}, batch {self.batch}, {self.candidates} candidates"


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """Errors of one quantity as fractions of the measured one.

    floor: mean disagreement of the passes, the error that even a perfect prediction would have. within: share
    of cells whose error is at most floor + ALLOWANCE.
    """

    quantity: str
    cells: int
    mean: float
    worst: float
    worst_at: str
    bias: float
    floor: float
    within: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """The best count of candidates by predicted and by measured steps; 1 is "do not enable".

    grid_steps: how many places of the measured grid lie between them. regret: share of the attainable
    speedup that the predicted choice gives away.
    """

    model: str
    batch: int
    predicted: int
    measured: int
    grid_steps: int
    regret: float


@dataclass(frozen=True, slots=True, kw_only=True)
class DecoderValidation:
    """Everything that a folder of steps tells. gap_us: by model."""

    meta: StepMeta
    cells: tuple[StepCell, ...]
    comparisons: tuple[Comparison, ...]
    choices: tuple[Choice, ...]
    gap_us: dict[str, float]


def decoder_runtime(launch_us: float = 0.0) -> Runtime:
    """How this project's decoder launches its kernels."""
    source = "medusa_sim.decoder.model: what it calls; the time is fitted or given by the caller"
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
    outside: Outside = "calibrated",
    gap_us: float | None = None,
    allow_different: bool = False,
    data_dir: DataDir = None,
) -> DecoderValidation:
    """Predicted against measured steps of `folder` (see `medusa_sim.measure.steps`).

    kernels, latency, outside: as everywhere. gap_us: None fits it. Raises UsageError where the profile
    of the GPU and the steps are of devices that differ in name, dtype or clocks, unless that is allowed;
    CoverageError where the kernels do not cover an operator; DataError for malformed files.
    """
    meta, rows = read_steps(folder)
    if not allow_different:
        refuse_different(gpu, meta.environment, {row.dtype for row in rows}, data_dir)
    model_of = latency_model(gpu, latency, kernels, cold=False, outside=outside, data_dir=data_dir)
    cells: list[StepCell] = []
    fitted: dict[str, float] = {}
    for name in dict.fromkeys(row.model for row in rows):
        mine = [row for row in rows if row.model == name]
        model = _model(folder, name, mine[0].dtype)
        fitted[name], found = _cells(model, mine, model_of, gap_us, graphed=meta.launched == GRAPHED)
        cells += found
    return DecoderValidation(
        meta=meta,
        cells=tuple(cells),
        comparisons=tuple(_comparisons(cells)),
        choices=tuple(_choices(cells)),
        gap_us=fitted,
    )


def refuse_different(gpu: Gpu, steps: Environment, dtypes: Iterable[str], data_dir: DataDir = None) -> None:
    """Raise UsageError where predictions of `gpu` say nothing about the device of the steps."""
    profile = profile_meta(gpu.name, data_dir)
    found = [] if gpu.name == steps.name else [f"name {gpu.name!r} and {steps.name!r}"]
    if profile is not None:
        found = differences(profile.environment, steps)
        missing = sorted(set(dtypes) - set(profile.dtypes))
        found += [f"dtype {', '.join(profile.dtypes)} and {', '.join(missing)}"] if missing else []
    if found:
        raise UsageError(
            f"the profile of {gpu.name} and the measured steps are not of one device ({'; '.join(found)}); "
            "measure both in one place, or compare them with --allow-different"
        )


def profile_meta(name: str, data_dir: DataDir = None) -> Meta | None:
    """How the operators of a GPU were measured; None where `measure` has no rows of it."""
    folder = data.find(OPERATOR_PROFILES, name, data_dir)
    if folder is None or not (folder / META).is_file() or "environment" not in read_toml(folder / META):
        return None
    return read_meta(folder)


def _model(folder: Path, name: str, dtype: str) -> Model:
    model = model_from_config(folder / name / "config.json")
    return dataclasses.replace(
        model, name=name, dtype=dtype, weight_dtype=dtype, kv_dtype=dtype, activation_dtype=dtype
    )


def _cells(
    model: Model, rows: Sequence[StepRow], latency: LatencyModel, gap_us: float | None, *, graphed: bool
) -> tuple[float, list[StepCell]]:
    """gap_us, and every cell with its prediction."""
    keys = dict.fromkeys(
        (row.batch, row.seq_len, row.candidates, row.depth, row.tokens_per_step) for row in rows
    )
    smallest = min((batch, seq_len) for batch, seq_len, candidates, *_ in keys if candidates == 1)
    passes = {
        key: tuple(
            row.time_us for row in rows if (row.batch, row.seq_len, row.candidates, row.depth) == key[:4]
        )
        for key in keys
    }
    base = {key: _kernels_us(model, latency, key[:4], graphed=graphed) for key in keys}
    chosen = gap_us
    if chosen is None:
        first = next(key for key in keys if key[:2] == smallest and key[2] == 1)
        kernels_us, gaps = base[first]
        chosen = max(0.0, (float(np.mean(passes[first])) - kernels_us) / gaps)
    return chosen, [
        StepCell(
            model=model.name,
            batch=key[0],
            seq_len=key[1],
            candidates=key[2],
            tokens_per_step=key[4],
            measured_us=float(np.mean(passes[key])),
            passes_us=passes[key],
            predicted_us=base[key][0] + chosen * base[key][1],
            is_fitted=gap_us is None and key[:2] == smallest and key[2] == 1,
        )
        for key in keys
    ]


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
        drafter=MedusaHeads(heads=depth) if depth else NoDrafter(),
        depth=depth,
    )
    if candidates == 1:
        step = decode_step(setting, batch, seq_len)
    else:
        step = verify_step(setting, batch, seq_len, candidates)
    keys = batch * candidates * (seq_len + candidates)
    rows = -(-keys // model.hidden)  # as wide as rows that were measured
    mask = elementwise_launch(model, "mask", "residual", "attention", rows, model.hidden, _MASK_PASSES)
    return step + work_time(latency, DraftWork(launches=(mask,), runtime=runtime, own_pass=False))


def _kernels_us(
    model: Model,
    latency: LatencyModel,
    cell: tuple[int, int, int, int],
    *,
    graphed: bool,
) -> tuple[float, float]:
    """Time of a step's kernels without gaps, and how many gaps. cell: as `decoder_step` takes it."""
    step = decoder_step(model, latency, *cell, launch_us=1.0)
    return float(step.device_us) - step.launch_us, step.launch_us if graphed else 1.0


def _comparisons(cells: Sequence[StepCell]) -> list[Comparison]:
    """Decoding steps, verification steps, and speedups at equal batch and length."""
    scored = [cell for cell in cells if not cell.is_fitted]
    found = []
    for quantity, keep in (("decode step", True), ("verify step", False)):
        chosen = [cell for cell in scored if (cell.candidates == 1) == keep]
        if chosen:
            ratio = np.asarray([cell.predicted_us / cell.measured_us for cell in chosen])
            floors = [_disagreement(cell.passes_us) for cell in chosen]
            found.append(_comparison(quantity, ratio, floors, [cell.where for cell in chosen]))
    pairs = [(_baseline(cells, cell), cell) for cell in cells if cell.candidates > 1]
    if pairs:
        ratio = np.asarray(
            [
                base.predicted_us / cell.predicted_us / (base.measured_us / cell.measured_us)
                for base, cell in pairs
            ]
        )
        floors = [
            _disagreement(tuple(b / c for b, c in zip(base.passes_us, cell.passes_us, strict=True)))
            for base, cell in pairs
        ]
        found.append(_comparison("speedup", ratio, floors, [cell.where for _, cell in pairs]))
    return found


def _comparison(
    quantity: str, ratio: FloatArray, floors: Sequence[float], where: Sequence[str]
) -> Comparison:
    error = np.abs(ratio - 1.0)
    worst = int(np.argmax(error))
    floor = float(np.mean(floors))
    return Comparison(
        quantity=quantity,
        cells=len(error),
        mean=float(np.mean(error)),
        worst=float(error[worst]),
        worst_at=where[worst],
        bias=float(np.mean(ratio - 1.0)),
        floor=floor,
        within=float(np.mean(error <= floor + ALLOWANCE)),
    )


def _disagreement(passes: tuple[float, ...]) -> float:
    """(largest - smallest) / mean of the passes; 0 for one pass."""
    return (max(passes) - min(passes)) / float(np.mean(passes))


def _baseline(cells: Sequence[StepCell], cell: StepCell) -> StepCell:
    place = (cell.model, cell.batch, cell.seq_len)
    for other in cells:
        if other.candidates == 1 and (other.model, other.batch, other.seq_len) == place:
            return other
    raise CoverageError(f"{cell.where}: no decoding step at this batch and length was measured")


def _choices(cells: Sequence[StepCell]) -> list[Choice]:
    """Best counts of every model and batch with two counts or more."""
    found = []
    for place in dict.fromkeys((cell.model, cell.batch, cell.seq_len) for cell in cells):
        grid = sorted(
            (cell for cell in cells if (cell.model, cell.batch, cell.seq_len) == place),
            key=lambda cell: cell.candidates,
        )
        if len(grid) < 2:
            continue
        measured = np.asarray([cell.tokens_per_step / cell.measured_us for cell in grid])
        predicted = np.asarray([cell.tokens_per_step / cell.predicted_us for cell in grid])
        best, chosen = int(np.argmax(measured)), int(np.argmax(predicted))
        found.append(
            Choice(
                model=place[0],
                batch=place[1],
                predicted=grid[chosen].candidates,
                measured=grid[best].candidates,
                grid_steps=abs(best - chosen),
                regret=1.0 - float(measured[chosen] / measured[best]),
            )
        )
    return found
