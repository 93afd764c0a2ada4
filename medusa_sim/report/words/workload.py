"""What is served, in a few words that every answer begins with: requests, or steps without any."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from medusa_sim.arrays import IntArray, distinct
from medusa_sim.scenario.scenario import Scenario

_MOST_NAMED = 4
"""Lengths and batches that are listed; of more the ends are told."""


def workload_text(scenario: Scenario, lengths: Sequence[int] | IntArray, requests: str = "") -> str:
    """`512 in, 256 out, 1..64 requests at once`; `1,024 tokens of context, no prompts, 1 request at once`.

    lengths: of the steps that were priced; said beside requests where they are not those of the request.
    requests: how many are in flight (`several_text`); empty: it is not said.
    """
    asked, traffic = [int(length) for length in lengths], scenario.traffic
    context = f"{several_text(asked)} tokens of context"
    if traffic is None:
        parts = [context, "no prompts"]
    else:
        parts = [request_text(traffic.prompt_tokens, traffic.output_tokens)]
        parts += [] if asked == [scenario.length] else [f"at {context}"]
    return ", ".join([*parts, *([at_once(requests)] if requests else [])])


def request_text(prompt_tokens: float, output_tokens: float) -> str:
    """`512 in, 256 out`."""
    prompt, output = (
        f"{round(tokens):,}" if tokens >= 10.0 or tokens == round(tokens) else f"{tokens:.3g}"
        for tokens in (prompt_tokens, output_tokens)
    )
    return f"{prompt} in, {output} out"


def at_once(requests: str) -> str:
    """`1 request at once`, `1..64 requests at once`."""
    return f"{requests} request{'' if requests == '1' else 's'} at once"


def several_text(numbers: Sequence[int] | IntArray) -> str:
    """`64`, `1 and 8`, `1..64`."""
    every = [int(number) for number in distinct(np.asarray(numbers, dtype=np.int64))]
    if len(every) <= _MOST_NAMED:
        *before, last = (f"{number:,}" for number in every)
        return f"{', '.join(before)} and {last}" if before else last
    return f"{every[0]:,}..{every[-1]:,}"
