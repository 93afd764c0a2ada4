"""Published checkpoints: weights in other formats, drafters of a model, and the meaning of an id."""

from __future__ import annotations

import re
from functools import cache
from typing import Any

from medusa_sim.data import shipped_dir
from medusa_sim.reading.documents import read_toml

_CHECKPOINTS = "served_checkpoints.toml"
_BLOCKS = ("qwen", "zai-org", "minimaxai", "deepseek-ai", "moonshotai", "xiaomimimo")
"""Who publishes fp8 with a scale for each block of 128 x 128 weights."""
_TENSORS = ("nvidia", "redhatai", "neuralmagic", "amd", "meta-llama")
"""Who publishes it with a scale a tensor or a row."""
_FORMS = (
    (r"-fp8(?:-dynamic|-kv)?", ""),
    (r"-(?:nv)?fp4", "nvfp4"),
    (r"-awq|-gptq-int4|-quantized\.w4a16|-int4", "int4"),
)
"""Ends of ids, and the format of the weights; fp8 is the publisher's."""


@cache
def _checkpoints() -> dict[str, dict[str, dict[str, Any]]]:
    return read_toml(shipped_dir() / "profiles" / _CHECKPOINTS)


def weights_id(model: str, form: str) -> str | None:
    """A published checkpoint of a named model in another format than its own; None where none is known."""
    return _checkpoints()["weights"].get(form, {}).get(model)


def drafter_id(drafter: str, model: str, engine: str) -> str | None:
    """A published checkpoint of a drafter for a named model and an engine; None where none is known."""
    known: dict[str, str] = _checkpoints()["drafters"].get(drafter, {}).get(model, {})
    return known.get(engine, known.get("any"))


def stored_as(given: str) -> tuple[str, str] | None:
    """(id or name without its end, format) of a checkpoint whose id says how it is stored; None for others.

    >>> stored_as("Qwen/Qwen3-32B-FP8"), stored_as("RedHatAI/Qwen3-8B-FP8-dynamic")
    (('Qwen/Qwen3-32B', 'fp8_block'), ('RedHatAI/Qwen3-8B', 'fp8'))
    """
    for form, ids in _checkpoints()["weights"].items():
        for name, known in ids.items():
            if known.lower() == given.lower():
                return name, form
    for end, form in _FORMS:
        if found := re.search(rf"(?:{end})$", given[:200], re.IGNORECASE):
            publisher = given.partition("/")[0].lower() if "/" in given else ""
            fp8 = "fp8_block" if publisher in _BLOCKS else "fp8" if publisher in _TENSORS else ""
            return (given[: found.start()], form or fp8) if form or fp8 else None
    return None
