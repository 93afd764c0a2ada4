"""How often each guess of each head is right, counted on the target's own text or on given text.

Only the first is what a running decoder accepts (`agreement = "target"`); the second is the
teacher-forced figure of training logs. Each head is divided by its own number of labels: later heads
have fewer.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from medusa_sim.acceptance.heads import HeadAccuracy
from medusa_sim.errors import DataError
from medusa_sim.lab.decoder.generation import Generation
from medusa_sim.lab.decoder.heads import MedusaHeads
from medusa_sim.lab.decoder.model import Llama


@dataclass(frozen=True, slots=True)
class HeadCounts:
    """hits (heads, ranks): times exactly that rank of that head was right, of labels (heads,) tries."""

    hits: Tensor
    labels: Tensor

    def accuracy(self) -> HeadAccuracy:
        """As `acceptance` wants it. Raises DataError where a head was never scored."""
        if bool((self.labels == 0).any()):
            raise DataError("a head has no label to be scored on; use longer texts")
        accuracy = self.hits.double() / self.labels.double()[:, None]
        return HeadAccuracy.checked(accuracy.numpy(), self.labels.numpy())


@torch.inference_mode()
def head_counts(
    model: Llama, heads: MedusaHeads, tokens: Sequence[int], *, first: int, ranks: int
) -> HeadCounts:
    """Counts on one text, from the hidden state at `first` on (the last prompt token, for a continuation).

    Head i at position t guesses token t + 2 + i; token t + 1 is the root that a step would start from.
    """
    hidden = model(torch.tensor([list(tokens)], device=model.device))[0, first:]
    best = heads(hidden, model.lm_head).topk(ranks, dim=-1).indices  # (heads, positions, ranks)
    text = torch.tensor(list(tokens), device=model.device)
    hits = torch.zeros(heads.count, ranks, dtype=torch.long)
    labels = torch.zeros(heads.count, dtype=torch.long)
    for i in range(heads.count):
        label = text[first + 2 + i :]
        hits[i] = (best[i, : label.numel()] == label[:, None]).sum(0).cpu()
        labels[i] = label.numel()
    return HeadCounts(hits, labels)


def total_counts(each: Sequence[HeadCounts]) -> HeadCounts:
    """Counts of all texts together."""
    hits, labels = ([getattr(counts, name) for counts in each] for name in ("hits", "labels"))
    return HeadCounts(torch.stack(hits).sum(0), torch.stack(labels).sum(0))


def text_counts(
    model: Llama, heads: MedusaHeads, texts: Sequence[Sequence[int]], *, first: int, ranks: int
) -> HeadCounts:
    """Teacher-forced counts on given texts, their first `first` + 1 tokens being context only."""
    return total_counts([head_counts(model, heads, text, first=first, ranks=ranks) for text in texts])


def mean_tokens_per_step(sequences: Sequence[Generation]) -> float:
    """Tokens emitted by steps over steps, over all sequences together."""
    steps = sum(sequence.steps for sequence in sequences)
    emitted = sum(sum(sequence.accepted_lengths) for sequence in sequences) + steps
    if not steps:
        raise DataError("no decoding step was made; ask for more new tokens")
    return emitted / steps


@torch.inference_mode()
def next_token_loss(model: Llama, texts: Sequence[Sequence[int]]) -> float:
    """Mean -ln p of the next token over texts (nats per token)."""
    total, count = 0.0, 0
    for text in texts:
        tokens = torch.tensor([list(text)], device=model.device)
        log_p = torch.log_softmax(model.logits(model(tokens[:, :-1])).float(), -1)
        total -= float(log_p.gather(-1, tokens[:, 1:, None]).sum())
        count += tokens.shape[1] - 1
    return total / max(count, 1)
