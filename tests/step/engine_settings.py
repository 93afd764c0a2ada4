"""Engines and settings whose terms are made up."""

from dataclasses import replace

from medusa_sim.engines.engine import Engine
from medusa_sim.engines.runtime import load_runtime
from medusa_sim.engines.term import Term
from medusa_sim.gpus.gpu import load_gpu
from medusa_sim.latency.calibrated import CalibratedLatency
from medusa_sim.models.named import load_model
from medusa_sim.step.drafter.base import Drafter
from medusa_sim.step.setting import Setting

GPU = load_gpu("h100-sxm")


LATENCY = CalibratedLatency(GPU, "sglang")


def engine(name: str = "vllm-0.10", **values: float) -> Engine:
    """Its terms, some of another value."""
    terms = {term: Term(value=value, source="a test") for term, value in values.items()}
    return load_runtime(name).engine.with_terms(terms)


def setting(runtime: str = "vllm-0.10", drafter: Drafter | None = None, **other: object) -> Setting:
    given = {"latency": LATENCY, "model": load_model("llama-3.1-8b"), "runtime": load_runtime(runtime),
             "scope": "model", "drafter": drafter}  # fmt: skip
    return Setting(**(given | other))


def with_terms(of: Setting, terms: Engine) -> Setting:
    return replace(of, runtime=replace(of.runtime, engine=terms))
