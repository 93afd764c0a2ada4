"""What recipes of published load tests ask of an engine, and which first tokens are those of a user."""

from types import SimpleNamespace
from typing import Any

import pytest
from first_tokens import as_served, is_steady

from medusa_sim.engines.runtime import load_runtime

DEEPSEEK = {"model": "deepseek-v3", "gpu": "b200", "tp": 8, "dp_attention": False}
WARM, COLD = "2026-02-03", "2025-11-02"


def row(**changed: Any) -> SimpleNamespace:
    """A row of TensorRT-LLM 1.2 with 64 requests of 1,024 + 1,024 tokens in blocks of fp8."""
    given = {
        "backend": "trtllm", "backend_version": "1.2.0rc6.post2", "precision": "fp8", "isl": 1024,
        "osl": 1024, "concurrency": 64, "ep": 1, "measured": WARM,
    }  # fmt: skip
    return SimpleNamespace(**given | changed)


@pytest.mark.parametrize(
    ("changed", "launched", "waits"),
    [
        ({}, 0.0, 40),
        ({"concurrency": 32}, 65.0, 0),
        ({"concurrency": 256}, 65.0, 0),
        ({"osl": 8192}, 65.0, 0),
        ({"osl": 8192, "concurrency": 128}, 0.0, 0),
        ({"isl": 8192}, 0.0, 0),
        ({"precision": "fp4"}, 65.0, 0),
        ({"precision": "fp4", "ep": 8}, 0.0, 0),
        ({"backend_version": "1.1.0rc2"}, 65.0, 0),
    ],
)
def test_recipes_of_deepseek_put_prompts_of_many_requests_into_graphs(changed, launched, waits):
    engine = as_served(load_runtime("tensorrt-llm-1.2"), row(**changed), DEEPSEEK).engine
    assert engine.prompt_us_per_launch.value == launched
    assert engine.prompt_wait_steps == waits


@pytest.mark.parametrize(
    ("changed", "splits", "steady"),
    [
        ({}, False, True),
        ({"measured": COLD}, False, True),
        ({}, True, False),
        ({"backend": "sglang"}, True, True),
        ({"backend": "sglang", "measured": COLD}, False, False),
    ],
)
def test_tests_that_compile_kernels_or_hold_prompts_for_every_gpu_tell_no_first_token(
    changed, splits, steady
):
    assert is_steady(row(**changed), DEEPSEEK | {"dp_attention": splits}) == steady
