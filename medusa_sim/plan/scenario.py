"""From names to a sweep: the one place where GPUs, models, runtimes and profiles are put together."""

from __future__ import annotations

from collections.abc import Sequence

from medusa_sim.acceptance.profile import load_acceptance
from medusa_sim.data import DataDir
from medusa_sim.errors import UsageError, unknown_name
from medusa_sim.latency.by_name import LatencyName, Outside, latency_model
from medusa_sim.plan.speedup import Baseline
from medusa_sim.plan.sweep import SweepSetting
from medusa_sim.specs.gpu import load_gpu
from medusa_sim.specs.model import with_dtypes
from medusa_sim.specs.models import load_model
from medusa_sim.specs.runtime import load_runtime
from medusa_sim.step.drafter import Drafter, MedusaHeads, NoDrafter
from medusa_sim.step.step import Setting
from medusa_sim.step.workload import Scope

DRAFTERS = ("medusa", "ngram")
DEFAULT_GPU = "a100-80gb-pcie"
DEFAULT_MODEL = "vicuna-7b"
DEFAULT_RUNTIME = "cuda-graph"
DEFAULT_ACCEPTANCE = "paper-fig4-sparse"
DEFAULT_HEADS = 5
MAX_HEADS = 64


def drafter_of(name: str, heads: int = DEFAULT_HEADS) -> Drafter:
    """The drafter of that name; `heads` counts Medusa heads. Raises UsageError."""
    if not 1 <= heads <= MAX_HEADS:
        raise UsageError(f"heads {heads}: whole numbers from 1 to {MAX_HEADS} are allowed")
    if name == "medusa":
        return MedusaHeads(heads=heads)
    if name == "ngram":
        return NoDrafter()
    raise UsageError(unknown_name("drafter", name, DRAFTERS))


def sweep_settings(
    gpus: Sequence[str] = (DEFAULT_GPU,),
    models: Sequence[str] = (DEFAULT_MODEL,),
    *,
    runtime: str = DEFAULT_RUNTIME,
    scope: Scope = "model",
    latency: LatencyName = "calibrated",
    kernels: str | None = None,
    acceptance: str = DEFAULT_ACCEPTANCE,
    baseline: Baseline = "same",
    drafter: str = "medusa",
    heads: int = DEFAULT_HEADS,
    dtype: str | None = None,
    weight_dtype: str | None = None,
    kv_dtype: str | None = None,
    outside: Outside = "refuse",
    data_dir: DataDir = None,
) -> tuple[SweepSetting, ...]:
    """One setting for each GPU and model, GPUs first; every name is looked up before anything is computed.

    kernels None: the runtime's set for the model's dtype. dtypes None: as the model is published.
    Raises SpecError or UsageError naming what is unknown and what is known.
    """
    launched = load_runtime(runtime, data_dir)
    profile = load_acceptance(acceptance, data_dir)
    drafting = drafter_of(drafter, heads)
    if drafter == "medusa":
        profile = profile.of_heads(heads)
    loaded = [with_dtypes(load_model(name), dtype, weight_dtype, kv_dtype) for name in models]
    settings = []
    for gpu_name in gpus:
        gpu = load_gpu(gpu_name, data_dir)
        for model in loaded:
            chosen = kernels or launched.kernel_set(model.dtype)
            setting = Setting(
                latency=latency_model(gpu, latency, chosen, outside=outside, data_dir=data_dir),
                model=model,
                runtime=launched,
                scope=scope,
                drafter=drafting,
                depth=heads,
            )
            settings.append(
                SweepSetting(
                    gpu=gpu,
                    kernels=chosen if latency != "roofline" else "none",
                    setting=setting,
                    acceptance=profile,
                    baseline=baseline,
                )
            )
    return tuple(settings)
