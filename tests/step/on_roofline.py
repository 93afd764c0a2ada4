"""A setting whose kernels are timed by the roofline, so that times can be worked out by hand."""

from medusa_sim.engines.runtime import load_runtime
from medusa_sim.gpus.gpu import load_gpu
from medusa_sim.latency.roofline import RooflineLatency
from medusa_sim.models.named import load_model
from medusa_sim.step.setting import Setting

GPU = load_gpu("h100-sxm")
LLAMA = load_model("llama-3.1-8b")
ROOF = RooflineLatency(GPU)


def setting(runtime: str = "cuda-graph", **other: object) -> Setting:
    given = {"latency": ROOF, "model": LLAMA, "scope": "model"} | other
    return Setting(runtime=load_runtime(runtime), **given)
