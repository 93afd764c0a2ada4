"""What the project's decoder accepts of a chain, in a run and as scored at every position of a text."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from medusa_sim.lab.decoder.candidates import Draft
from medusa_sim.lab.decoder.generation import Generation
from medusa_sim.lab.decoder.model import Llama
from medusa_sim.lab.decoder.ngram_drafter import NgramDrafter


def earliest_continuation(text: Sequence[int], length: int, sizes: Sequence[int]) -> list[int]:
    """Up to `length` tokens that followed the earliest copy of the last n tokens, largest n of `sizes` first.

    vLLM's rule (vllm/v1/spec_decode/ngram_proposer.py, 0.32); the decoder's own takes the latest copy.
    """
    tokens = list(text)
    for size in range(min(sizes[1], len(tokens) - 1), sizes[0] - 1, -1):
        pattern = tokens[-size:]
        for start in range(len(tokens) - size):
            if tokens[start : start + size] == pattern:
                return tokens[start + size : start + size + length]
    return []


class EarliestNgram(NgramDrafter):
    """Prompt lookup as vLLM does it."""

    def propose(self, roots: Tensor, hidden: Tensor, sequences: Sequence[Generation]) -> Draft:
        """A chain per sequence; unused nodes where nothing was found."""
        sizes = (1, self.ngram_max)
        found = [earliest_continuation(s.prompt + s.token_ids, self.length, sizes) for s in sequences]
        drafted = torch.tensor([f + [0] * (self.length - len(f)) for f in found])
        lengths = torch.tensor([len(f) for f in found])
        order = torch.arange(self.length + 1)
        parents = torch.where(order <= lengths[:, None], order - 1, torch.full_like(order, -1))
        mask = torch.from_numpy(self.tree.mask)
        return Draft(tokens=torch.cat((roots[:, None], drafted), 1), parents=parents, depths=order, mask=mask)


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
        share = reached.sum() / steps.sum()
        error = float(np.sqrt(np.sum((reached - share * steps) ** 2)) / steps.sum())
        counts = {"steps": int(steps.sum()), "accepted": int(reached.sum()), "share": share, "error": error}
        rows.append({"method": method, "source": source, "position": i, **counts})
    return rows


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
    texts: Sequence[Sequence[int]], prompt_tokens: int, length: int, sizes: Sequence[int]
) -> list[list[int]]:
    """The same for prompt lookup by the engine's rule; a step without a match accepts nothing."""
    found = []
    for text in texts:

        def ahead(end: int, text: Sequence[int] = text) -> list[bool]:
            drafted = earliest_continuation(text[:end], length, sizes)
            return [a == b for a, b in zip(drafted, text[end:], strict=False)]

        found.append(_walk(len(text), prompt_tokens, ahead))
    return found


def _walk(end: int, prompt_tokens: int, ahead: Callable[[int], list[bool]]) -> list[int]:
    """Steps along a text: each starts behind what the one before accepted, and its own token.

    ahead: whether each draft of a step is the text's token.
    """
    at, accepted = prompt_tokens + 1, []
    while at < end:
        right = ahead(at)
        accepted.append(right.index(False) if False in right else len(right))
        at += accepted[-1] + 1
    return accepted
