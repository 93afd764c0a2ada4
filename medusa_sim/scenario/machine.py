"""The machine of a scenario: engine, GPUs, the model as they hold it, and how long their kernels take."""

from __future__ import annotations

from functools import cached_property
from pathlib import Path
from typing import Any

from medusa_sim.errors import UsageError
from medusa_sim.latency.by_name import latency_model
from medusa_sim.latency.local import LocalLatency, clock_under
from medusa_sim.latency.model import LatencyModel
from medusa_sim.scenario.arguments import Arguments
from medusa_sim.scenario.as_run import as_run, formats_asked
from medusa_sim.scenario.defaults import default_drafter
from medusa_sim.scenario.kernel_fits import KernelFits
from medusa_sim.specs.backends import Backend, backend_of_model
from medusa_sim.specs.case import Case, case_of
from medusa_sim.specs.gpu import Gpu, load_gpu
from medusa_sim.specs.local import with_backend
from medusa_sim.specs.model import Model
from medusa_sim.specs.models import load_model
from medusa_sim.specs.parallel import ONE, Parallel
from medusa_sim.specs.prices import Price, given_price, price_of
from medusa_sim.specs.runtime import Runtime, load_runtime, local_runtime_names
from medusa_sim.specs.variants import on_one_gpu, with_dtypes
from medusa_sim.step.drafter import drafter_class
from medusa_sim.step.drafter.base import Drafter
from medusa_sim.step.memory import usable_memory_bytes
from medusa_sim.step.names import Scope
from medusa_sim.step.setting import step_kernels


class Machine:
    """What of a scenario depends neither on what is drafted nor on requests.

    Every part is loaded when it is first read, from `arguments`.
    """

    arguments: Arguments

    @property
    def scope(self) -> Scope:
        """Which operators a step has."""
        return self.arguments.scope

    @cached_property
    def runtime(self) -> Runtime:
        """The engine, or how kernels launch; the drafter's own where none is named."""
        asked = self.arguments
        given = asked.runtime or self.drafter_class.default_runtime
        if isinstance(given, str):
            given = with_backend(given, self.gpu.local)
        return loaded_runtime(given, asked.data_dir)

    @cached_property
    def gpu(self) -> Gpu:
        """The GPU."""
        asked = self.arguments
        return load_gpu(asked.gpu, asked.data_dir) if isinstance(asked.gpu, str) else asked.gpu

    @cached_property
    def published(self) -> Model:
        """The model as it was published."""
        given = self.arguments.model
        return given if isinstance(given, Model) else load_model(given)

    @cached_property
    def _as_run(self) -> tuple[Model, tuple[str, ...]]:
        asked = self.arguments
        return as_run(self.published, self.runtime, self.gpu, asked.dtype, asked.weight_dtype, asked.kv_dtype)

    @property
    def precision(self) -> str:
        """Format of the checkpoint: as published or asked for, whatever the GPU unpacks."""
        asked = self.arguments
        formats = formats_asked(self.published, self.runtime, asked.dtype, asked.weight_dtype)
        return with_dtypes(self.published, *formats).precision

    @property
    def engine_name(self) -> str:
        """The runtime as it was named: `vllm` for its newest version."""
        given = self.arguments.runtime
        return given if isinstance(given, str) else self.runtime.name

    @property
    def model(self) -> Model:
        """The model in the formats that it runs in."""
        return self._as_run[0]

    @property
    def unpacked_forms(self) -> tuple[str, ...]:
        """Formats of the checkpoint that the GPU has no arithmetic for."""
        return self._as_run[1]

    @cached_property
    def parallel(self) -> Parallel:
        """The split of the model over GPUs."""
        asked = self.arguments
        return Parallel(tp=asked.tp, ep=asked.ep, dp_attention=asked.dp_attention)

    @property
    def gpus(self) -> int:
        """GPUs that run the model together."""
        return self.parallel.tp

    @property
    def gpus_text(self) -> str:
        """`h200-sxm`; `8 x h200-sxm (tp 8)`."""
        parallel = self.parallel
        return self.gpu.name if parallel == ONE else f"{parallel.tp} x {self.gpu.name} ({parallel.ways})"

    @cached_property
    def shard(self) -> Model:
        """The part of the model that one GPU holds."""
        return on_one_gpu(self.model, self.parallel)

    @property
    def usable_memory_bytes(self) -> float:
        """Bytes that the engine may fill on one GPU."""
        return usable_memory_bytes(self.gpu, self.runtime.engine, self.shard)

    @cached_property
    def price(self) -> Price | None:
        """Price of a GPU-hour, given or listed; None where neither is."""
        name, asked = self.gpu.name, self.arguments
        return price_of(name, asked.data_dir) if asked.price is None else given_price(name, asked.price)

    @property
    def usd_per_gpu_hour(self) -> float | None:
        """The price in dollars; None where there is none."""
        return None if self.price is None else self.price.usd_per_gpu_hour

    @property
    def drafter_class(self) -> type[Drafter]:
        """The registered drafter; the runtime's usual one where none is named."""
        asked = self.arguments
        if asked.drafter is not None:
            return drafter_class(asked.drafter)
        engine = None if asked.runtime is None else self.runtime.engine
        return drafter_class(default_drafter(None if engine is None else engine.drafters))

    # The kernels: how long they take, and how well that is known.

    @cached_property
    def latency(self) -> LatencyModel:
        """The times of kernels of this GPU."""
        asked = self.arguments
        if not isinstance(asked.latency, str):
            if (other := asked.latency.gpu) != self.gpu:
                numbers = " with other numbers" if other.name == self.gpu.name else ""
                raise UsageError(
                    f"gpu {self.gpu.name} with a latency model of {other.name}{numbers}: a scenario has one "
                    "GPU; leave out one of them"
                )
            return asked.latency
        if asked.bench is not None and not self.runtime.local:
            raise UsageError(
                f"--bench corrects llama.cpp and MLX, not {self.runtime.name}; choose --runtime "
                f"{' or '.join(local_runtime_names())}"
            )
        if asked.power_limit is not None and not self.runtime.local:
            raise UsageError(
                f"--power-limit slows kernels of llama.cpp and MLX, not of {self.runtime.name}; choose "
                f"--runtime {' or '.join(local_runtime_names())}"
            )
        if self.runtime.local and asked.latency == "calibrated":
            local = LocalLatency(self.gpu, self.runtime.local)
            if asked.bench is not None:
                from medusa_sim.scenario.local_correction import corrected
                from medusa_sim.scenario.local_rows import read_rows

                local = corrected(local, self.shard, self.runtime, read_rows(Path(asked.bench)).rows)
            clock = clock_under(asked.power_limit, self.gpu)  # rows are taken as measured without a limit
            return LocalLatency(local.gpu, local.law.backend, local.law, clock)
        return latency_model(
            self.gpu,
            asked.latency,
            self._kernel_set,
            fallback=asked.fallback,
            data_dir=asked.data_dir,
            library="" if asked.kernels else self.runtime.library,
            serves=self.runtime.library,
        )

    @property
    def _kernel_set(self) -> str:
        return self.arguments.kernels or step_kernels(self.gpu, self.runtime, self.model.dtype)

    @property
    def kernels(self) -> str:
        """Name of the kernel set; `none` of a roofline and of local engines, whose laws know no sets."""
        return "none" if self.latency.name in ("roofline", "local") else self._kernel_set

    @property
    def case(self) -> Case:
        """The set-up as the ranges of an engine's terms see it."""
        return case_of(self.shard, self.gpu, self.gpus, self._backend.key)

    @property
    def backend(self) -> Backend | None:
        """The attention kernel of a verification step; None where nothing tells (a roofline, the block)."""
        if self.latency.name in ("roofline", "local") or self.scope == "block":
            return None
        return self._backend

    @property
    def _backend(self) -> Backend:
        runtime = self.runtime
        return backend_of_model(self.shard, runtime.library, self.gpu.architecture, runtime.backend)

    @cached_property
    def kernel_fits(self) -> KernelFits:
        """Fits of the kernels that its steps call."""
        return KernelFits(
            gpu=self.gpu,
            model=self.model,
            shard=self.shard,
            runtime=self.runtime,
            latency=self.latency,
            kernels=self.kernels,
            scope=self.scope,
            is_split=self.parallel != ONE,
        )


def loaded_runtime(given: str | Runtime, data_dir: Any) -> Runtime:
    """A runtime, loaded where it is given by name."""
    return load_runtime(given, data_dir) if isinstance(given, str) else given
