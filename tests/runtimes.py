"""Runtimes for tests that ask each: versions of an engine differ in numbers alone, so older ones wait."""

from typing import Any

import pytest

from medusa_sim.engines.engine import unversioned
from medusa_sim.engines.runtime import runtime_aliases, runtime_names

_UNLIKE = ("vllm-v0",)
"""Older ones that differ in more: it hides nothing of its host behind the device."""


def every_runtime(*but: str) -> list[Any]:
    """By day what is no engine and the version that an engine's name means, at night all others."""
    meant = runtime_aliases()
    return [
        pytest.param(name, marks=() if by_day else pytest.mark.nightly)
        for name in runtime_names()
        for by_day in [name in _UNLIKE or meant.get(unversioned(name), name) == name]
        if name not in but
    ]
