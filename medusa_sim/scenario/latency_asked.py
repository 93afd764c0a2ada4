"""The times of kernels that a scenario asks for: of its GPU by name, corrected by rows, slowed, or given."""

from __future__ import annotations

from functools import partial
from pathlib import Path

from medusa_sim.engines.runtime import Runtime, local_runtime_names
from medusa_sim.errors import UsageError
from medusa_sim.gpus.gpu import Gpu
from medusa_sim.latency.by_name import latency_model
from medusa_sim.latency.calibrated import CalibratedLatency
from medusa_sim.latency.local import LocalLatency, clock_under
from medusa_sim.latency.model import LatencyModel
from medusa_sim.models.model import Model
from medusa_sim.scenario.arguments import Arguments


def latency_asked(
    asked: Arguments, gpu: Gpu, runtime: Runtime, shard: Model, kernel_set: str
) -> LatencyModel:
    """The latency model of a scenario. shard: what one GPU holds of the model; kernel_set: by name.

    Raises UsageError for a model of another GPU, and for what only local engines take.
    """
    if not isinstance(asked.latency, str):
        if (other := asked.latency.gpu) != gpu:
            numbers = " with other numbers" if other.name == gpu.name else ""
            raise UsageError(
                f"gpu {gpu.name} with a latency model of {other.name}{numbers}: a scenario has one "
                "GPU; leave out one of them"
            )
        return asked.latency
    for option, value in (("--bench", asked.bench), ("--power-limit", asked.power_limit)):
        if value is not None and not runtime.local:
            raise UsageError(
                f"{option} is for llama.cpp and MLX, not for {runtime.name}; choose --runtime "
                f"{' or '.join(local_runtime_names())}"
            )
    if runtime.local and asked.latency == "calibrated":
        local = LocalLatency(gpu, runtime.local)
        if asked.bench is not None:
            from medusa_sim.scenario.local_correction import corrected_by_file

            local = corrected_by_file(gpu, shard, runtime, Path(asked.bench))
        clock = clock_under(asked.power_limit, gpu)  # rows are taken as measured without a limit
        return LocalLatency(local.gpu, local.law.backend, local.law, clock)
    library = "" if asked.kernels else runtime.library
    calibrated = partial(CalibratedLatency, gpu, kernel_set, library=library, serves=runtime.library)
    return latency_model(gpu, asked.latency, calibrated, fallback=asked.fallback, data_dir=asked.data_dir)
