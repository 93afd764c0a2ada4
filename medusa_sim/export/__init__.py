"""A recommendation as launch settings of serving engines; `export.engines` writes them."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Literal, TypeAlias, get_args

if TYPE_CHECKING:
    from medusa_sim.export.settings import EngineExport

EngineName: TypeAlias = Literal["vllm", "sglang", "tensorrt-llm", "llama-cpp"]
ENGINES: tuple[str, ...] = (*get_args(EngineName), "json")
"""Engines for which settings are written; help pages list them without importing the records."""


@cache
def exports() -> dict[str, EngineExport]:
    """Record of each engine, by name."""
    from medusa_sim.export.llama_cpp import LLAMA_CPP
    from medusa_sim.export.sglang import SGLANG
    from medusa_sim.export.tensorrt_llm import TENSORRT_LLM
    from medusa_sim.export.vllm import VLLM

    return {engine.name: engine for engine in (VLLM, SGLANG, TENSORRT_LLM, LLAMA_CPP)}
