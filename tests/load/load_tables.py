"""Tables of made-up step times, and short ways to requests and limits."""

from collections.abc import Sequence
from dataclasses import fields
from typing import Any

import numpy as np

from medusa_sim.arrays import Halves
from medusa_sim.load.accepted import Accepted
from medusa_sim.load.limits import SchedulerLimits
from medusa_sim.load.prompt_table import PromptTable
from medusa_sim.load.requests import Requests, checked_requests
from medusa_sim.load.server_host import ServerHost
from medusa_sim.load.step_table import StepTable

MOST_TOKENS = 1 << 14
"""Tokens of prompts in a step of these tables."""


def constant_table(
    constant_s: float, rates: Sequence[float] = (), requests_max: int = 256, **other: Any
) -> StepTable:
    """Every step takes as long, whatever it carries. other: of the table, of `ServerHost` or `Accepted`."""
    host, accepted = (
        {field.name: other.pop(field.name) for field in fields(record) if field.name in other}
        for record in (ServerHost, Accepted)
    )
    shape = len(rates) + 1, requests_max + 1
    nothing, prompts = np.zeros(shape), other.get("prompts", prompt_times())
    drafted = np.arange(shape[0])[:, None] * np.arange(shape[1]) * accepted.get("match_rate", 1.0)
    tokens = np.arange(shape[1]) + np.rint(drafted).astype(np.int64)
    given = {
        "lengths": np.array([1.0, 1e6]), "step_s": np.full((*shape, 2), constant_s), "prompts": prompts,
        "accepted": Accepted(np.asarray(rates, dtype=np.float64), **accepted), "drafting_share": nothing,
        "idle_share": nothing[0], "sharing_s": nothing, "halves": Halves(nothing, nothing),
        "decode_linear_s": prompts.linear_s[np.minimum(tokens, prompts.linear_s.size - 1)],
    }  # fmt: skip
    return StepTable(
        **{
            **given,
            "host": ServerHost(**host),
            "plain_host": ServerHost(**{**host, "steps_ahead": 0}),
            **other,
        }
    )


def prompt_times(**other: Any) -> PromptTable:
    """Prompts take no time but what is given."""
    given = {
        "linear_s": np.zeros(MOST_TOKENS), "chunk_tokens": np.array([1.0, 1e6]),
        "chunk_ends": np.array([1.0, 1e6]), "attention_s": np.zeros((2, 2)),
        "drafter_s": np.zeros(MOST_TOKENS), "drafter_attention_s": np.zeros((2, 2)),
        "inactive_share": np.zeros(MOST_TOKENS), "imbalance_s": np.zeros(MOST_TOKENS),
    }  # fmt: skip
    return PromptTable(**{**given, **other})


def limits(**given: Any) -> SchedulerLimits:
    return SchedulerLimits(**{"kv_blocks": 1 << 20, "positions": 1 << 20, **given})


def requests(arrival_s: Sequence[float], prompt: Sequence[int], output: Sequence[int]) -> Requests:
    return checked_requests(
        np.asarray(arrival_s, dtype=np.float64), np.asarray(prompt), np.asarray(output), "test"
    )
