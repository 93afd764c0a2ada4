"""Checkpoints that launch commands name: a model's weights in another format, and a drafter's.

Ids are those that engines' own tests and documentation load: NVIDIA/Model-Optimizer (tests/examples/llm_ptq/
test_deploy.py), vLLM (tests/v1/spec_decode/test_acceptance_length.py, whose rates the profiles of EAGLE-3
hold), SafeAILab/EAGLE, sgl-project/SpecForge and sglang's cookbook.
"""

from __future__ import annotations

from collections.abc import Mapping

_NVIDIA = {
    "llama-3.1-8b": ("Llama-3.1-8B-Instruct-FP8", "Llama-3.1-8B-Instruct-FP4"),
    "llama-3.1-70b": ("Llama-3.1-70B-Instruct-FP8", None),
    "llama-3.1-405b": ("Llama-3.1-405B-Instruct-FP8", "Llama-3.1-405B-Instruct-FP4"),
    "llama-3.3-70b": ("Llama-3.3-70B-Instruct-FP8", "Llama-3.3-70B-Instruct-FP4"),
    "llama-4-scout": ("Llama-4-Scout-17B-16E-Instruct-FP8", "Llama-4-Scout-17B-16E-Instruct-FP4"),
    "llama-4-maverick": (
        "Llama-4-Maverick-17B-128E-Instruct-FP8",
        "Llama-4-Maverick-17B-128E-Instruct-FP4",
    ),
    "qwen3-8b": ("Qwen3-8B-FP8", "Qwen3-8B-FP4"),
    "qwen3-14b": ("Qwen3-14B-FP8", "Qwen3-14B-FP4"),
    "qwen3-32b": (None, "Qwen3-32B-FP4"),
    "qwen3-30b-a3b": (None, "Qwen3-30B-A3B-FP4"),
    "qwen3-235b-a22b": ("Qwen3-235B-A22B-FP8", "Qwen3-235B-A22B-FP4"),
    "mixtral-8x7b": ("Mixtral-8x7B-Instruct-v0.1-FP8", "Mixtral-8x7B-Instruct-v0.1-FP4"),
    "gemma-3-12b": ("gemma-3-12b-it-FP8", "gemma-3-12b-it-FP4"),
    "gemma-3-27b": ("gemma-3-27b-it-FP8", "gemma-3-27b-it-FP4"),
    "deepseek-v3": (None, "DeepSeek-V3-0324-FP4"),
    "deepseek-r1": (None, "DeepSeek-R1-0528-FP4-v2"),
    "kimi-k2": (None, "Kimi-K2-Instruct-FP4"),
    "kimi-k2.5": (None, "Kimi-K2.5-NVFP4"),
}
"""By model: its checkpoints in fp8 and in nvfp4, behind `nvidia/`."""
_ANY = ""
_DRAFTERS: dict[tuple[str, str], Mapping[str, str]] = {
    ("eagle3", "llama-3.1-8b"): {
        "vllm": "RedHatAI/Llama-3.1-8B-Instruct-speculator.eagle3",
        "sglang": "lmsys/sglang-EAGLE3-LLaMA3.1-Instruct-8B",
        _ANY: "yuhuili/EAGLE3-LLaMA3.1-Instruct-8B",
    },
    ("eagle3", "llama-3.3-70b"): {
        "vllm": "RedHatAI/Llama-3.3-70B-Instruct-speculator.eagle3",
        "sglang": "lmsys/sglang-EAGLE3-LLaMA3.3-Instruct-70B",
        _ANY: "yuhuili/EAGLE3-LLaMA3.3-Instruct-70B",
    },
    ("eagle3", "qwen3-8b"): {"vllm": "RedHatAI/Qwen3-8B-speculator.eagle3", _ANY: "Tengyunw/qwen3_8b_eagle3"},
    ("eagle3", "qwen3-14b"): {"vllm": "RedHatAI/Qwen3-14B-speculator.eagle3"},
    ("eagle3", "qwen3-32b"): {"vllm": "RedHatAI/Qwen3-32B-speculator.eagle3"},
    ("eagle3", "gpt-oss-20b"): {"vllm": "RedHatAI/gpt-oss-20b-speculator.eagle3"},
    ("eagle3", "gpt-oss-120b"): {_ANY: "nvidia/gpt-oss-120b-Eagle3"},
    ("eagle3", "qwen3-30b-a3b"): {_ANY: "nvidia/Qwen3-30B-A3B-Eagle3"},
    ("eagle3", "qwen3-235b-a22b"): {_ANY: "nvidia/Qwen3-235B-A22B-Eagle3"},
    ("eagle3", "llama-4-maverick"): {_ANY: "nvidia/Llama-4-Maverick-17B-128E-Eagle3"},
    ("eagle3", "kimi-k2.5"): {_ANY: "lightseekorg/kimi-k2.5-eagle3"},
    ("p-eagle", "gpt-oss-120b"): {"vllm": "amazon/gpt-oss-120b-p-eagle"},
    ("dflash", "qwen3-8b"): {_ANY: "z-lab/Qwen3-8B-DFlash-b16"},
    ("eagle", "vicuna-7b"): {_ANY: "yuhuili/EAGLE-Vicuna-7B-v1.3"},
    **{
        ("medusa", f"vicuna-{size}"): {_ANY: f"FasterDecoding/medusa-vicuna-{size}-v1.3"}
        for size in ("7b", "13b", "33b")
    },
}
"""By drafter and model: the engine that loads each, or any."""


def weights_id(model: str, form: str) -> str | None:
    """A published checkpoint of a named model in another format than its own; None where none is known."""
    fp8, nvfp4 = _NVIDIA.get(model, (None, None))
    name = {"fp8": fp8, "nvfp4": nvfp4}.get(form)
    return name and f"nvidia/{name}"


def drafter_id(drafter: str, model: str, engine: str) -> str | None:
    """A published checkpoint of a drafter for a named model and an engine; None where none is known."""
    known = _DRAFTERS.get((drafter, model), {})
    return known.get(engine, known.get(_ANY))
