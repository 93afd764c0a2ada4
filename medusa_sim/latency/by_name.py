"""The latency models by the names that users give them."""

from __future__ import annotations

from typing import Literal

from medusa_sim.data import DataDir
from medusa_sim.errors import UsageError, unknown_name
from medusa_sim.latency.base import LatencyModel
from medusa_sim.specs.gpu import Gpu

LatencyName = Literal["calibrated", "roofline", "measured"]
Fallback = Literal["refuse", "calibrated"]

LATENCIES: tuple[LatencyName, ...] = ("calibrated", "roofline", "measured")


def latency_model(
    gpu: Gpu,
    latency: LatencyName,
    kernels: str,
    *,
    cold: bool = True,
    fallback: Fallback = "refuse",
    data_dir: DataDir = None,
    library: str = "",
    engine: str = "",
    kernel: str = "",
    serves: str = "",
) -> LatencyModel:
    """The latency model of that name for one GPU.

    kernels: kernel set of `calibrated`. cold: operands come from HBM (always so in a step). fallback:
    what `measured` does beyond its profile: refuse, or ask the calibrated model. library, engine, kernel:
    whose fitted kernels (`latency.choice`). serves: the engine whose attention verifies.
    Raises SpecError (no such kernel set or profile), UsageError (an unknown latency model).
    """
    if latency == "roofline":
        from medusa_sim.latency.roofline import RooflineLatency

        return RooflineLatency(gpu)
    if latency == "calibrated":
        from medusa_sim.latency.calibrated import CalibratedLatency

        return CalibratedLatency(
            gpu, kernels, cold=cold, library=library, engine=engine, kernel=kernel, serves=serves
        )
    if latency == "measured":
        from medusa_sim.latency.measured import MeasuredLatency
        from medusa_sim.latency.profile import load_profile

        beyond = None
        if fallback == "calibrated":
            beyond = latency_model(
                gpu,
                "calibrated",
                kernels,
                cold=cold,
                library=library,
                engine=engine,
                kernel=kernel,
                serves=serves,
            )
        return MeasuredLatency(gpu, load_profile(gpu.name, data_dir), beyond)
    raise UsageError(unknown_name("latency model", latency, LATENCIES))
