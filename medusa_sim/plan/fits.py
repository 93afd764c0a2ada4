"""What a scenario rests on: fits of the kernels that its steps call, and whether its model fits at all."""

from __future__ import annotations

from collections.abc import Mapping

from medusa_sim.latency.base import LatencyModel, known_time
from medusa_sim.latency.calibrated import NAME_MARK
from medusa_sim.operators.kinds import KIND_OF, KINDS
from medusa_sim.specs.engine import Engine
from medusa_sim.specs.fitted import Fit
from medusa_sim.specs.formats import HALVES, Format
from medusa_sim.specs.gpu import Gpu
from medusa_sim.specs.kernels import KernelSet
from medusa_sim.specs.mixers import Latent
from medusa_sim.specs.model import Model
from medusa_sim.specs.runtime import Runtime
from medusa_sim.step.kernels import priced
from medusa_sim.step.memory import fewest_gpus, step_memory_bytes, usable_memory_bytes
from medusa_sim.step.network import model_launches
from medusa_sim.step.workload import Launch, decode, verify

_DENSE = ("gemm", "attention", "elementwise")
"""Sections of the kernels of a dense model on one GPU."""


def dense_fits(held: KernelSet, model: Model) -> dict[str, Fit]:
    """`gemm.fp16`, `attention.decode_attention`, ... -> fit, of a kernel set in the model's format."""
    form = Format(model.dtype, model.weight_dtype).key
    forms = {form if form in held.linear else model.dtype, model.activation_dtype}
    return {
        f"{kind.section}.{key}": kernel.fit
        for kind in KINDS
        if kind.section in _DENSE
        for key, kernel in kind.table(held).items()
        if kind.section != "gemm" or key in forms
    }


def linear_fit(fits: Mapping[str, Fit], model: Model) -> Fit | None:
    """How well the linear layers of the model's format were fitted; None where nobody fitted them."""
    form = Format(model.dtype, model.weight_dtype).key
    return fits.get(f"gemm.{form}", fits.get(f"gemm.{model.dtype}"))


def fits_beside(latency: LatencyModel, shard: Model, runtime: Runtime) -> dict[str, Fit]:
    """`moe.sglang:bf16` -> fit, of the experts, latent attention and exchange of a step.

    Any set of the GPU may serve these: the one that the latency model takes. Raises SpecError where there is
    none.
    """
    found: dict[str, Fit] = {}
    for launch in priced(latency, _launches(shard, runtime)):
        kind = KIND_OF[launch.operator.kind]
        if kind.is_chosen and kind.section != "gemm":
            place = latency.time(launch.operator).kernels
            set_name, _, key = place.partition(":")
            found[f"{kind.section}.{place}"] = kind.table(latency.gpu.kernels[set_name])[key].fit
    return found


def unpacked(model: Model, held: KernelSet) -> tuple[str, ...]:
    """What is stored narrower than its kernel was measured with: `int4 weights`, `a KV cache in fp8`."""
    form = Format(model.dtype, model.weight_dtype).key
    weights = form != model.dtype and form not in held.linear
    cache = not model.blocks(Latent) and model.kv_dtype != model.activation_dtype
    return (
        *([f"{model.weight_dtype} weights"] if weights else []),
        *([f"a KV cache in {model.kv_dtype}"] if cache else []),
    )


def other_form(model: Model, fits: Mapping[str, Fit]) -> tuple[str, str] | None:
    """Format of the model's experts and that of the kernel which serves them, where they are not one."""
    served = next((key.partition(":")[2] for key in fits if key.startswith("moe.")), None)
    if served is None or model.experts is None:
        return None
    stored = model.in_form(model.experts.form)
    form = Format(stored.dtype, stored.weight_dtype).key
    held = served.partition(NAME_MARK)[0]
    return None if form == held or {form, held} <= set(HALVES) else (form, held)


def unfitted_kinds(latency: LatencyModel, shard: Model, runtime: Runtime) -> tuple[str, ...]:
    """What of a model is priced without a fitted kernel: `linear attention`, `sparse attention`, ..."""
    found = [
        KIND_OF[launch.operator.kind].title
        for launch in _launches(shard, runtime)
        if launch.composed and known_time(latency, launch.operator) is None
    ]
    return tuple(dict.fromkeys(found))


def _launches(shard: Model, runtime: Runtime) -> tuple[Launch, ...]:
    """Kernels of a plain step, and those of several tokens a request that such a step has not."""
    verified = model_launches(shard, verify(1, 1, 2), runtime)
    return (
        *model_launches(shard, decode(1, 1), runtime),
        *(launch for launch in verified if launch.composed),
    )


def too_large(model: Model, shard: Model, gpu: Gpu, engine: Engine | None) -> str:
    """What to do where not even one sequence fits on the GPUs of `shard`; empty where one does."""
    if float(step_memory_bytes(shard, None, 1, 1, 1)) <= usable_memory_bytes(gpu, engine, shard):
        return ""
    enough = fewest_gpus(model, gpu, shard.parallel, engine)
    hint = f"--tp {enough} would" if enough else "no number of GPUs up to 128 would"
    return f"{model.name} ({model.weight_dtype}) does not fit on {shard.parallel} of {gpu.name}: {hint}"
