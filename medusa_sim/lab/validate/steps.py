"""The simulator against the decoder: measured steps compared with predicted ones.

`measure` rotates operands as a real step does, so its rows are used as measured (`cold=False`). The remainder
are `gaps`, fitted to each model's first plain and first speculative step, which are then left out of
the scores.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np

from medusa_sim import data
from medusa_sim.data import DataDir
from medusa_sim.errors import UsageError
from medusa_sim.gpus.gpu import Gpu
from medusa_sim.lab.measure.cells import StepMeta, StepRow, read_steps
from medusa_sim.lab.measure.environment import differences
from medusa_sim.lab.measure.predicted_step import (
    Gaps,
    Place,
    decoder_model,
    decoder_step,
    predicted_steps,
)
from medusa_sim.lab.measure.spread import lower_quartile
from medusa_sim.lab.validate.comparison import CountChoice, Deviation
from medusa_sim.lab.validate.step_scores import StepCell, step_choices, step_comparisons
from medusa_sim.latency.by_name import Fallback, LatencyName, latency_model
from medusa_sim.latency.calibrated import CalibratedLatency
from medusa_sim.latency.measured import OPERATOR_PROFILES
from medusa_sim.latency.measurement import META, Environment, Meta, read_meta
from medusa_sim.latency.model import LatencyModel
from medusa_sim.models.model import Model
from medusa_sim.reading.documents import read_toml


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


def validate_decoder(
    folder: Path,
    gpu: Gpu,
    *,
    kernels: str,
    latency: LatencyName,
    fallback: Fallback,
    allow_different: bool = False,
    data_dir: DataDir = None,
) -> DecoderValidation:
    """Predicted against measured steps of `folder` (see `medusa_sim.lab.measure.cells`).

    kernels, latency, fallback: as everywhere. Raises UsageError where the profile
    of the GPU and the steps are of devices that differ in name, dtype or clocks, unless that is allowed;
    CoverageError where the kernels do not cover an operator; DataError for malformed files.
    """
    meta, rows = read_steps(folder)
    if not allow_different:
        refuse_different(gpu, meta.environment, {row.dtype for row in rows}, data_dir)
    calibrated = partial(CalibratedLatency, gpu, kernels, cold=False)
    model_of = latency_model(gpu, latency, calibrated, fallback=fallback, data_dir=data_dir)
    cells: list[StepCell] = []
    fitted: dict[str, Gaps] = {}
    for name in dict.fromkeys(row.model for row in rows):
        mine = [row for row in rows if row.model == name]
        model = decoder_model(folder, name, mine[0].dtype)
        fitted[name], cells_of = _cells(model, mine, model_of)
        cells += cells_of
    return DecoderValidation(
        meta=meta,
        cells=tuple(cells),
        comparisons=tuple(step_comparisons(cells)),
        choices=tuple(step_choices(cells)),
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


def _cells(model: Model, rows: Sequence[StepRow], latency: LatencyModel) -> tuple[Gaps, list[StepCell]]:
    """Gaps, and every cell with its prediction."""
    passes: dict[Place, list[StepRow]] = {}
    for row in rows:
        passes.setdefault(Place(row.batch, row.seq_len, row.candidates, row.depth), []).append(row)
    times_us = {place: tuple(row.time_us for row in passes[place]) for place in sorted(passes)}
    measured_us = {place: lower_quartile(each) for place, each in times_us.items()}
    kernels_us = {place: float(decoder_step(model, latency, *place).device_us) for place in times_us}
    predicted = predicted_steps(kernels_us, measured_us)
    return predicted.gaps, [
        StepCell(
            model=model.name,
            batch=place.batch,
            seq_len=place.seq_len,
            candidates=place.candidates,
            tokens_per_step=passes[place][-1].tokens_per_step,
            measured_us=measured_us[place],
            passes_us=each,
            predicted_us=predicted.step_us[place],
            is_fitted=place in predicted.fitted_to,
        )
        for place, each in times_us.items()
    ]
