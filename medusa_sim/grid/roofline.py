"""Where a model's operators lie on a GPU's roofline: FLOP/s against operational intensity, by phase."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from medusa_sim.engines.runtime import Runtime
from medusa_sim.gpus.gpu import Gpu
from medusa_sim.grid.axes import Grid
from medusa_sim.latency.model import LatencyModel
from medusa_sim.latency.operator_time import Bound, Source, names_of
from medusa_sim.latency.roofline import roofline_time_us
from medusa_sim.models.model import Model
from medusa_sim.operators.operator import operational_intensity
from medusa_sim.step.kernels import decomposed, launch_time
from medusa_sim.step.network import block_launches
from medusa_sim.step.workload import Phase, Workload, decode, prefill, verify
from medusa_sim.units import US_PER_S

if TYPE_CHECKING:
    import pyarrow as pa

PHASES: tuple[Phase, ...] = ("prefill", "decode", "verify")


def roofline_points(latency: LatencyModel, gpu: Gpu, model: Model, runtime: Runtime, grid: Grid) -> pa.Table:
    """One row for each operator of the paper's block, phase and point of the grid.

    Columns: gpu, model, op, part, phase, batch, seq_len, query_tokens, flops, bytes, operational_intensity
    (FLOP/byte), time_us, flops_per_s, roofline_flops_per_s (what the datasheet allows at that
    intensity), bound, source. Prefill and decode do not depend on the candidates and have one row.
    """
    import pyarrow as pa

    tables = [
        pa.table(columns)
        for phase in PHASES
        for columns in _phase_columns(latency, gpu, model, runtime, grid, phase)
    ]
    return pa.concat_tables(tables)


@dataclass(frozen=True, slots=True, kw_only=True)
class Roof:
    """What the datasheet allows: FLOP/s over FLOP/byte; the ridge is where memory stops binding."""

    peak_flops_per_s: float
    bandwidth_bytes_per_s: float

    @property
    def ridge(self) -> float:
        """Operational intensity at the ridge, FLOP/byte."""
        return self.peak_flops_per_s / self.bandwidth_bytes_per_s

    def flops_per_s(self, intensity: float) -> float:
        """At an operational intensity in FLOP/byte."""
        return min(self.peak_flops_per_s, intensity * self.bandwidth_bytes_per_s)


def roof_of(gpu: Gpu, dtype: str) -> Roof:
    """The roof of a GPU. Raises SpecError where it has no peak for the dtype."""
    return Roof(peak_flops_per_s=gpu.peak(dtype), bandwidth_bytes_per_s=gpu.bandwidth_bytes_per_s)


def _phase_columns(
    latency: LatencyModel, gpu: Gpu, model: Model, runtime: Runtime, grid: Grid, phase: Phase
) -> list[dict[str, Any]]:
    counts = grid.candidates if phase == "verify" else np.ones(1, dtype=np.int64)
    batch, seq_len, candidates = (
        axis.ravel() for axis in np.meshgrid(grid.batch, grid.seq_len, counts, indexing="ij")
    )
    workload: Workload = {
        "prefill": prefill(batch, seq_len),
        "decode": decode(batch, seq_len),
        "verify": verify(batch, seq_len, candidates),
    }[phase]
    tokens = seq_len if phase == "prefill" else candidates
    columns: list[dict[str, Any]] = []
    for launch in decomposed(latency, block_launches(model, workload, runtime)):
        operator, time = launch.operator, launch_time(latency, launch)
        values: dict[str, Any] = {
            "gpu": gpu.name,
            "model": model.name,
            "op": operator.name,
            "part": launch.part,
            "phase": phase,
            "batch": batch,
            "seq_len": seq_len,
            "query_tokens": tokens,
            "flops": operator.flops,
            "bytes": operator.bytes,
            "operational_intensity": operational_intensity(operator),
            "time_us": time.time_us,
            "flops_per_s": operator.flops / time.time_us * US_PER_S,
            "roofline_flops_per_s": operator.flops / roofline_time_us(gpu, operator) * US_PER_S,
            "bound": names_of(time.bound, Bound),
            "source": names_of(time.source, Source),
        }
        columns.append({name: np.broadcast_to(value, batch.shape) for name, value in values.items()})
    return columns
