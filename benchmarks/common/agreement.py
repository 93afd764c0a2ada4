"""What the project's decoder accepts of a chain, in a run and as scored at every position of a text."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch

from medusa_sim.arrays import FloatArray
from medusa_sim.lab.decoder.model import Llama
from medusa_sim.lab.decoder.ngram_drafter import continuation


def chain_rows(
    method: str, source: str, accepted: Sequence[Sequence[int]], *, length: int
) -> list[dict[str, Any]]:
    """Share of steps that accepted at least i drafts, i = 1..length, from the accepted lengths of every text.

    A text's last step may be cut by its end: it is left out. `error` is the standard error between texts (of
    the ratio of sums), since steps of one text are alike.
    """
    steps = np.array([len(text) - 1 for text in accepted], dtype=float)
    rows = []
    for i in range(1, length + 1):
        reached = np.array([sum(count >= i for count in text[:-1]) for text in accepted], dtype=float)
        share, error = ratio_of_sums(reached, steps)
        counts = {"steps": int(steps.sum()), "accepted": int(reached.sum()), "share": share, "error": error}
        rows.append({"method": method, "source": source, "position": i, **counts})
    return rows


def ratio_of_sums(counted: FloatArray, steps: FloatArray) -> tuple[float, float]:
    """What is counted a step over all texts, and the standard error of that ratio between texts."""
    rate = counted.sum() / steps.sum()
    return float(rate), float(np.sqrt(((counted - rate * steps) ** 2).sum()) / steps.sum())


@torch.inference_mode()
def walked_draft(
    draft: Llama, texts: Sequence[Sequence[int]], prompt_tokens: int, length: int
) -> list[list[int]]:
    """Accepted lengths of greedy chains of a draft model along texts that the target wrote alone."""
    found = []
    for text in texts:
        tokens = torch.tensor(text)
        guesses = draft.logits(draft(tokens[None])[0]).argmax(-1)
        is_right = (guesses[:-1] == tokens[1:]).tolist()

        def ahead(end: int, is_right: list[bool] = is_right) -> list[bool]:
            return is_right[end - 1 : end - 1 + length]

        found.append(_walk(len(text), prompt_tokens, ahead))
    return found


def walked_lookup(
    texts: Sequence[Sequence[int]], prompt_tokens: int, length: int, ngram_max: int
) -> list[list[int]]:
    """The same for prompt lookup; a step without a match accepts nothing.

    The earliest copy counts, as in vLLM (vllm/v1/spec_decode/ngram_proposer.py, 0.32).
    """
    found = []
    for text in texts:

        def ahead(end: int, text: Sequence[int] = text) -> list[bool]:
            drafted = continuation(text[:end], length, ngram_max)
            return [a == b for a, b in zip(drafted, text[end:], strict=False)]

        found.append(_walk(len(text), prompt_tokens, ahead))
    return found


def _walk(end: int, prompt_tokens: int, ahead: Callable[[int], list[bool]]) -> list[int]:
    """Steps along a text: each starts behind what the one before accepted, and its own token.

    ahead: whether each draft of a step is the text's token.
    """
    place, accepted = prompt_tokens + 1, []
    while place < end:
        right = ahead(place)
        accepted.append(right.index(False) if False in right else len(right))
        place += accepted[-1] + 1
    return accepted
