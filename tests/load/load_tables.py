"""Tables of made-up step times, and short ways to requests and limits."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from medusa_sim.load.limits import Limits
from medusa_sim.load.requests import Requests, checked_requests
from medusa_sim.load.step_table import StepTable


def constant_table(
    constant_s: float, rates: Sequence[float] = (), requests_max: int = 256, **other: Any
) -> StepTable:
    """Every step takes as long, whatever it carries."""
    drafts, tokens = len(rates) + 1, 1 << 14
    given = {
        "lengths": np.array([1.0, 1e6]), "step_s": np.full((drafts, requests_max + 1, 2), constant_s),
        "linear_s": np.zeros(tokens), "chunk_tokens": np.array([1.0, 1e6]),
        "chunk_ends": np.array([1.0, 1e6]), "attention_s": np.zeros((2, 2)),
        "drafter_prompt_s": np.zeros(tokens), "rates": np.asarray(rates, dtype=np.float64),
        "drafting_share": np.zeros((drafts, requests_max + 1)), "idle_share": np.zeros(requests_max + 1),
    }  # fmt: skip
    return StepTable(**{**given, **other})


def limits(**given: Any) -> Limits:
    return Limits(**{"kv_blocks": 1 << 20, "positions": 1 << 20, **given})


def requests(arrival_s: Sequence[float], prompt: Sequence[int], output: Sequence[int]) -> Requests:
    return checked_requests(
        np.asarray(arrival_s, dtype=np.float64), np.asarray(prompt), np.asarray(output), "test"
    )
