"""What recipes of InferenceX had TensorRT-LLM do that its results do not say.

**How a mixture is split.** Until UNSAID_BEFORE a result names neither the groups of experts nor whether
attention was split over requests: rows of that time say one group. Their recipes chose both by concurrency
and lengths. What ran shows in the times: 36 cells of gpt-oss-120b on two to eight H200 are within 3.5 % (28
within 1.1 %) of those of December, which say that experts were spread, 14 of DeepSeek on eight H200 within
2.6 % of theirs.

**Whether graphs hold steps that carry prompts** (`enable_piecewise_cuda_graph`, off by default). From version
1.2 on recipes of DeepSeek-R1 on B200 ask for it at some numbers of requests (GRAPHED; dsr1_fp4_b200_trt,
dsr1_fp8_b200_trt and both with _mtp, benchmarks/single_node of github.com/SemiAnalysisAI/InferenceX). Medians
to the first token show it: 70 ms on eight B200 in nvfp4 at 64 requests of 1,024 + 1,024 tokens, 149 at 1,024
+ 8,192; with MTP in fp8 157 at 4 requests, 115 at 32.
"""

from __future__ import annotations

from typing import NamedTuple

from msgspec.structs import replace

from medusa_sim.engines.engine import Engine

UNSAID_BEFORE = "2025-12-09"
ALWAYS, NEVER = 0, 10**9


class Recipe(NamedTuple):
    """Requests beyond which experts are spread over all GPUs, and attention is split over requests."""

    spread_above: int
    split_above: int


Traffic = tuple[int, int]
"""Tokens of a prompt and of an output, as named."""
_EVEN, _LONG_OUTPUT, _LONG_PROMPT = (1024, 1024), (1024, 8192), (8192, 1024)
RECIPES: dict[tuple[str, str, str, int], dict[Traffic, Recipe]] = {
    ("deepseek", "b200", "fp4", 4): {
        _EVEN: Recipe(32, 255),
        _LONG_OUTPUT: Recipe(32, 255),
        _LONG_PROMPT: Recipe(32, 32),
    },
    ("deepseek", "b200", "fp4", 8): {
        _EVEN: Recipe(8, 255),
        _LONG_OUTPUT: Recipe(16, 255),
        _LONG_PROMPT: Recipe(32, 32),
    },
    ("deepseek", "b200", "fp8", 8): {
        _EVEN: Recipe(ALWAYS, 32),
        _LONG_OUTPUT: Recipe(ALWAYS, 64),
        _LONG_PROMPT: Recipe(ALWAYS, 64),
    },
    ("deepseek", "h200-sxm", "fp8", 8): {
        _EVEN: Recipe(ALWAYS, 64),
        _LONG_OUTPUT: Recipe(ALWAYS, 64),
        _LONG_PROMPT: Recipe(ALWAYS, 32),
    },
    **{
        ("gpt-oss", "h200-sxm", "fp4", gpus): dict.fromkeys(
            (_EVEN, _LONG_OUTPUT, _LONG_PROMPT), Recipe(ALWAYS, NEVER)
        )
        for gpus in (1, 2, 4, 8)
    },
}
"""Model, GPU, precision and GPUs of the rows that need one -> traffic -> what its recipe does."""


def unsaid_split(
    model: str, gpu: str, precision: str, gpus: int, traffic: Traffic, requests: float
) -> tuple[int, bool]:
    """(groups of experts, whether attention is split over requests) of a row from before UNSAID_BEFORE.

    model: a name of models.toml; of one without experts neither.
    """
    family = next((known for known, *_ in RECIPES if model.startswith(known)), None)
    if family is None:
        return 1, False
    recipe = RECIPES[family, gpu, precision, gpus][traffic]
    return gpus if requests > recipe.spread_above else 1, requests > recipe.split_above


GRAPHED: dict[tuple[str, bool], dict[Traffic, tuple[int, int]]] = {
    ("fp8", False): {_EVEN: (64, 255), _LONG_OUTPUT: (128, 255), _LONG_PROMPT: (64, 255)},
    ("fp4", False): {_EVEN: (64, 255)},
    ("fp8", True): {_EVEN: (5, NEVER), _LONG_OUTPUT: (9, NEVER), _LONG_PROMPT: (17, NEVER)},
    ("fp4", True): {_EVEN: (32, 128), _LONG_OUTPUT: (64, 64)},
}
"""Precision, and whether it drafts -> traffic -> fewest and most requests whose prompts graphs hold; in fp4
only where experts are spread. Where attention is split over requests nothing is said here: GPUs wait for each
other's prompts there (`attention_dp_config`), which is priced as part of launches."""


def graphs_hold_prompts(
    precision: str, traffic: Traffic, requests: float, *, drafts: bool, is_spread: bool, splits: bool
) -> bool:
    """Whether the recipe of DeepSeek-R1 in TensorRT-LLM 1.2 has graphs for steps that carry prompts."""
    fewest, most = GRAPHED[precision, drafts].get(traffic, (NEVER, 0))
    return (is_spread or precision == "fp8") and not splits and fewest <= requests <= most


def with_graphed_prompts(engine: Engine) -> Engine:
    """An engine that launches no step that carries prompts kernel by kernel."""
    return replace(
        engine,
        prompt_us_per_launch=replace(engine.prompt_us_per_launch, value=0.0, deviations=(), elsewhere=()),
    )
