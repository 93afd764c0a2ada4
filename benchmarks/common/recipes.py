"""How InferenceX had TensorRT-LLM split a mixture before its results said so.

Until UNSAID_BEFORE a result names neither the groups of experts nor whether attention was split over
requests: rows of that time say one group. Their recipes chose both by concurrency and lengths. What ran shows
in the times: 36 cells of gpt-oss-120b on two to eight H200 are within 3.5 % (28 within 1.1 %) of those of
December, which say that experts were spread, 14 of DeepSeek on eight H200 within 2.6 % of theirs.
"""

from __future__ import annotations

from typing import NamedTuple

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
