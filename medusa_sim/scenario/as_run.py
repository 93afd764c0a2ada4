"""A checkpoint as an engine runs it on a GPU: its formats, and what refuses it there."""

from __future__ import annotations

from medusa_sim.engines.engine import unversioned
from medusa_sim.engines.engine_formats import cache_format, computed_formats
from medusa_sim.engines.runtime import Runtime, local_runtime_names
from medusa_sim.errors import SpecError, UsageError
from medusa_sim.file_types import FILES, OF_MLX, read_by
from medusa_sim.gpus.gpu import Gpu
from medusa_sim.models.mixers import Latent
from medusa_sim.models.model import Model
from medusa_sim.models.state_rules import as_served
from medusa_sim.models.variants import in_other_forms, unpacked_where, with_dtypes
from medusa_sim.scenario.arguments import Arguments
from medusa_sim.units import FORMATS, FP8_ALONE, UNPACKED


def why_not_on_gpu(runtime: Runtime, gpu: Gpu) -> str:
    """Why an engine of a server does not run on a GPU at all; empty where it does."""
    if runtime.engine is None or not runtime.engine.nvidia_only or gpu.architecture != "cdna":
        return ""
    return (
        f"{unversioned(runtime.name)} runs on NVIDIA GPUs only, and {gpu.name} is AMD's; "
        "choose vllm or sglang"
    )


def why_no_such_files(runtime: Runtime, stored: str) -> str:
    """Why an engine reads no files of a type; empty where it does."""
    if stored not in FILES:
        return ""
    if not runtime.local:
        return (
            f"{stored.upper()} is a type of files of llama.cpp and MLX, {runtime.name} reads none; choose "
            f"--runtime {' or '.join(local_runtime_names())}, or --weight-dtype int4"
        )
    if stored.startswith(OF_MLX) != (runtime.local == "mlx"):
        return f"{runtime.name} reads no {stored.upper()} files; it has: {', '.join(read_by(runtime.name))}"
    return ""


def formats_asked(published: Model, runtime: Runtime, asked: Arguments) -> tuple[str | None, str | None]:
    """(dtype, weight dtype) to change a checkpoint to: none where it is asked for as it was published.

    A checkpoint whose experts alone are stored in a format is named by it (`Model.precision`: gpt-oss's
    mxfp4, Kimi-K2.5's int4), and an engine that is asked to serve it so leaves everything else in 16 bits.
    Local engines have a type of file of that name.
    """
    is_named_by_experts = published.precision != published.form
    is_stored_so = asked.weight_dtype == FORMATS[published.precision].weight_dtype
    is_computed_so = asked.dtype in (None, published.dtype)
    if is_named_by_experts and is_stored_so and is_computed_so and not runtime.local:
        return None, None
    return asked.dtype, asked.weight_dtype


def as_run(published: Model, runtime: Runtime, gpu: Gpu, asked: Arguments) -> tuple[Model, tuple[str, ...]]:
    """A checkpoint in the formats it runs in, and its formats that the GPU has no arithmetic for.

    Raises SpecError where the engine does not run on the GPU, or the GPU not in the format.
    """
    if reason := why_not_on_gpu(runtime, gpu):
        raise SpecError(reason)
    dtype, weight_dtype = formats_asked(published, runtime, asked)
    if dtype is not None and UNPACKED.get(dtype) == FP8_ALONE and gpu.lacks("fp8"):
        raise SpecError(
            f"{gpu.name} has no fp8 arithmetic, only {', '.join(gpu.peak_flops_per_s)}; engines unpack such "
            "weights to 16 bits: --weight-dtype fp8"
        )
    model = with_dtypes(as_served(published, runtime.library), dtype, weight_dtype, asked.kv_dtype)
    if reason := why_no_such_files(runtime, model.weight_dtype):
        raise SpecError(reason)
    if runtime.local:
        return model, ()
    if asked.kv_dtype is None and runtime.engine is not None:
        model = with_dtypes(model, kv_dtype=cache_format(model, runtime.library, gpu.architecture))
    if dtype is None and weight_dtype is None:
        if runtime.engine is not None:
            model = in_other_forms(model, computed_formats(model, runtime.library, gpu.architecture))
        return unpacked_where(model, gpu.lacks)
    return model, ()


def check_fit(shard: Model, runtime: Runtime, gpu: Gpu) -> None:
    """Refuse GPUs without a link, and a model that the runtime has no kernels for.

    shard: what one GPU holds. Raises UsageError.
    """
    if shard.parallel.tp > 1 and not gpu.link_bandwidth_bytes_per_s:
        raise UsageError(
            f"{gpu.name} has no link to another GPU, so --tp {shard.parallel.tp} cannot be priced; give "
            f"--tp 1, or add link_bandwidth_bytes_per_s with its source to {gpu.path or 'its file'}"
        )
    beyond = "experts" if shard.experts is not None else "latent attention" if shard.blocks(Latent) else ""
    if runtime.attention == "unfused" and beyond:
        raise UsageError(
            f"runtime {runtime.name} runs the kernels of a paper on dense models with plain attention; "
            f"{shard.name} has {beyond}: choose --runtime vllm, sglang or cuda-graph"
        )
