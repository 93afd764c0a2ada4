"""Where a model's operators lie on a GPU's roofline: FLOP/s against operational intensity, by phase."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from medusa_sim.latency.base import Bound, LatencyModel, Source, roofline_time_us
from medusa_sim.operators.operator import operational_intensity
from medusa_sim.specs.gpu import Gpu
from medusa_sim.specs.model import Model
from medusa_sim.specs.runtime import Runtime
from medusa_sim.step.kernels import launch_time, priced
from medusa_sim.step.network import block_launches
from medusa_sim.step.workload import Grid, Phase, Workload, decode, prefill, verify
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
        """FLOP/byte."""
        return self.peak_flops_per_s / self.bandwidth_bytes_per_s

    def flops_per_s(self, intensity: float) -> float:
        """At an operational intensity in FLOP/byte."""
        return min(self.peak_flops_per_s, intensity * self.bandwidth_bytes_per_s)


def roof_of(gpu: Gpu, dtype: str) -> Roof:
    """The roof of a GPU. Raises SpecError where it has no peak for the dtype."""
    return Roof(peak_flops_per_s=gpu.peak(dtype), bandwidth_bytes_per_s=gpu.bandwidth_bytes_per_s)


def _phase_columns(
    latency: LatencyModel, gpu: Gpu, model: Model, runtime: Runtime, grid: Grid, phase: Phase
) -> list[dict[str, object]]:
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
    columns: list[dict[str, object]] = []
    for launch in priced(latency, block_launches(model, workload, runtime)):
        operator = launch.operator
        time = launch_time(latency, launch)
        flops, size = np.broadcast_arrays(operator.flops, batch)
        columns.append(
            {
                "gpu": [gpu.name] * batch.size,
                "model": [model.name] * batch.size,
                "op": [operator.name] * batch.size,
                "part": [launch.part] * batch.size,
                "phase": [phase] * batch.size,
                "batch": size,
                "seq_len": seq_len,
                "query_tokens": tokens,
                "flops": flops,
                "bytes": np.broadcast_to(operator.bytes, size.shape),
                "operational_intensity": np.broadcast_to(operational_intensity(operator), size.shape),
                "time_us": np.broadcast_to(time.time_us, size.shape),
                "flops_per_s": np.broadcast_to(flops / time.time_us * US_PER_S, size.shape),
                "roofline_flops_per_s": np.broadcast_to(
                    flops / roofline_time_us(gpu, operator) * US_PER_S, size.shape
                ),
                "bound": [Bound(int(code)).name.lower() for code in np.broadcast_to(time.bound, size.shape)],
                "source": [
                    Source(int(code)).name.lower() for code in np.broadcast_to(time.source, size.shape)
                ],
            }
        )
    return columns
