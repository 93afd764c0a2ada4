"""The latency models by the names that users give them. Free of numpy: help pages read the names."""

from __future__ import annotations

from collections.abc import Callable
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
    calibrated: Callable[[], LatencyModel],
    *,
    fallback: Fallback = "refuse",
    data_dir: DataDir = None,
) -> LatencyModel:
    """The latency model of that name for one GPU.

    calibrated: makes the calibrated one. fallback: what `measured` does beyond its profile: refuse, or ask
    the calibrated model. Raises SpecError (no such kernel set or profile), UsageError (an unknown latency
    model).
    """
    if latency == "calibrated":
        return calibrated()
    if latency == "roofline":
        from medusa_sim.latency.roofline import RooflineLatency

        return RooflineLatency(gpu)
    if latency not in get_args(LatencyName):
        raise UsageError(unknown_name("latency model", latency, get_args(LatencyName)))
    from medusa_sim.latency.measured import MeasuredLatency, load_profile

    beyond = calibrated() if fallback == "calibrated" else None
    return MeasuredLatency(gpu, load_profile(gpu.name, data_dir), beyond)
