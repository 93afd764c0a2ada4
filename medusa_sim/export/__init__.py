"""A recommendation as launch settings of serving engines.

This list is all that help pages and options need; `export.engines` resolves it.
"""

from __future__ import annotations

RECORDS = {
    "vllm": "vllm:VLLM",
    "sglang": "sglang:SGLANG",
    "tensorrt-llm": "tensorrt_llm:TENSORRT_LLM",
    "tgi": "others:TGI",
    "llama-cpp": "others:LLAMA_CPP",
}
"""Engines by name, each the `module:record` of this folder that says all of it (`settings.EngineExport`)."""
ENGINES: tuple[str, ...] = (*RECORDS, "json")
"""What settings are written for."""
