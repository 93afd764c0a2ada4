"""The latency models by the names that users give them. Free of numpy: help pages read the names."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, get_args

from medusa_sim.errors import UsageError, unknown_name

if TYPE_CHECKING:
    from medusa_sim.data import DataDir
    from medusa_sim.gpus.gpu import Gpu
    from medusa_sim.latency.model import LatencyModel

LatencyName = Literal["calibrated", "roofline", "measured"]
Fallback = Literal["refuse", "calibrated"]


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
    whose fitted kernels (`latency.choice.choose`). serves: the engine whose attention verifies.
    Raises SpecError (no such kernel set or profile), UsageError (an unknown latency model).
    """
    if latency == "roofline":
        from medusa_sim.latency.roofline import RooflineLatency

        return RooflineLatency(gpu)
    if latency not in get_args(LatencyName):
        raise UsageError(unknown_name("latency model", latency, get_args(LatencyName)))
    fitted: LatencyModel | None = None
    if latency == "calibrated" or fallback == "calibrated":
        from medusa_sim.latency.calibrated import CalibratedLatency

        fitted = CalibratedLatency(
            gpu, kernels, cold=cold, library=library, engine=engine, kernel=kernel, serves=serves
        )
        if latency == "calibrated":
            return fitted
    from medusa_sim.latency.measured import MeasuredLatency, load_profile

    return MeasuredLatency(gpu, load_profile(gpu.name, data_dir), fitted)
