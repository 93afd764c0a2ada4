"""Predicted steps of the decoder, launched as it does, and what it takes outside its kernels.

Separate projections, one fused attention kernel, heads on the accepted row, and the mask over all keys as
three passes over it.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from medusa_sim.engines.runtime import Runtime
from medusa_sim.latency.model import LatencyModel
from medusa_sim.models.hf_config import model_from_config
from medusa_sim.models.model import Model, of_dtype
from medusa_sim.step.drafter.medusa import Medusa
from medusa_sim.step.launch import elementwise_launch
from medusa_sim.step.pass_cost import timed_pass
from medusa_sim.step.pass_times import PassTimes
from medusa_sim.step.pass_work import PassWork
from medusa_sim.step.setting import Setting
from medusa_sim.step.step import decode_step, speculative_step
from medusa_sim.step.workload import verify

_MASK_PASSES = 3
"""Gather, mask and bias."""


MASK = "mask"
"""Name of the operator that makes the mask."""


def decoder_runtime() -> Runtime:
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
        launch_us=0.0,
        host_us_per_launch=0.0,
        host_us_per_step=0.0,
        sources=dict.fromkeys(("launch_us", "host_us_per_launch", "host_us_per_step"), source),
    )


def decoder_model(folder: Path, name: str, dtype: str) -> Model:
    """The model that a folder of steps or runs describes, in the dtype of its rows."""
    model = model_from_config(folder / name / "config.json")
    return dataclasses.replace(model, name=name, **of_dtype(dtype))


def decoder_step(
    model: Model, latency: LatencyModel, batch: int, seq_len: int, candidates: int, depth: int
) -> PassTimes:
    """One step of the decoder: plain at one candidate, else Medusa with `depth` heads; the mask included."""
    runtime = decoder_runtime()
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
    return step + timed_pass(
        latency, PassWork(launches=(mask,), runtime=runtime, workload=workload, name="continued")
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Gaps:
    """What a plain step takes outside its kernels, and one that drafts, chooses and compacts as well, us."""

    plain_us: float = 0.0
    speculative_us: float = 0.0

    def step_us(self, candidates: int) -> float:
        """Of a step with so many candidates."""
        return self.plain_us if candidates == 1 else self.speculative_us


class Place(NamedTuple):
    """Where a step was measured: `decoder_step` takes these as they stand."""

    batch: int
    seq_len: int
    candidates: int
    depth: int


class PredictedSteps(NamedTuple):
    """Steps by place, us, with the gaps among them and the places that these were fitted to."""

    step_us: dict[Place, float]
    gaps: Gaps
    fitted_to: list[Place]


def predicted_steps(kernels_us: Mapping[Place, float], measured_us: Mapping[Place, float]) -> PredictedSteps:
    """Kernels and gaps, which leave no error at the first plain and the first speculative step.

    A gap is 0 where kernels alone take longer.
    """
    kinds = ([place for place in kernels_us if (place.candidates > 1) == drafts] for drafts in (False, True))
    fitted_to = [places[0] for places in kinds if places]
    plain, *speculative = (max(0.0, measured_us[place] - kernels_us[place]) for place in fitted_to)
    gaps = Gaps(plain_us=plain, speculative_us=speculative[0] if speculative else plain)
    step_us = {place: us + gaps.step_us(place.candidates) for place, us in kernels_us.items()}
    return PredictedSteps(step_us, gaps, fitted_to)
