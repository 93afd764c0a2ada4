"""In which format an engine keeps K and V unless it is told."""

from __future__ import annotations

import pytest

from medusa_sim.scenario.scenario import Scenario

_PLAIN = {"drafter": "ngram", "acceptance": "0.5", "tp": 8}


@pytest.mark.parametrize(
    ("runtime", "gpu", "model", "dtype", "kv"),
    [
        ("tensorrt-llm", "h200-sxm", "llama-3.1-70b", "fp8", "fp8"),
        ("tensorrt-llm", "b200", "llama-3.1-70b", "nvfp4", "fp8"),
        ("tensorrt-llm", "h200-sxm", "gpt-oss-120b", None, "fp8"),
        ("tensorrt-llm", "h200-sxm", "llama-3.1-70b", None, "bf16"),
        ("vllm-0.15", "b200", "llama-3.1-70b", "fp8", "fp8"),
        ("vllm-0.15", "h200-sxm", "llama-3.1-70b", "fp8", "bf16"),
        ("sglang", "b200", "deepseek-v3", None, "fp8"),
        ("sglang", "b200", "llama-3.1-70b", "fp8", "bf16"),
        ("sglang", "h200-sxm", "deepseek-v3", None, "bf16"),
        ("kernel", "b200", "llama-3.1-70b", "fp8", "bf16"),
    ],
)
def test_an_engine_keeps_k_and_v_as_its_checkpoints_and_recipes_say(
    runtime: str, gpu: str, model: str, dtype: str | None, kv: str
) -> None:
    assert Scenario(runtime=runtime, gpu=gpu, model=model, dtype=dtype, **_PLAIN).model.kv_dtype == kv


def test_a_cache_format_that_is_asked_for_is_taken() -> None:
    made = Scenario(
        runtime="tensorrt-llm", gpu="b200", model="llama-3.1-70b", dtype="fp8", kv_dtype="bf16", **_PLAIN
    )
    assert made.model.kv_dtype == "bf16"
