"""Training losses: the backbone's next token, the Medusa heads' later ones, and distillation from oneself.

`loss_mask` (batch, t) is True where a token may be a label: prompt tokens and padding are False.
Head k of the paper (k = 1..K, index k - 1 here) predicts y_{t + k + 1} from the hidden state at t.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor
from torch.nn import functional

HEAD_DECAY = 0.8
"""lambda_k = 0.8^k (Medusa paper, below eq. 1 and appendix B.2)."""
_IGNORED = -100


def shifted_labels(tokens: Tensor, loss_mask: Tensor, shift: int) -> Tensor:
    """(batch, t) labels: at position t the token at t + shift, -100 where masked or past the end."""
    labels = torch.full_like(tokens, _IGNORED)
    if shift < tokens.shape[1]:
        target = torch.where(
            loss_mask[:, shift:], tokens[:, shift:], torch.full_like(tokens[:, shift:], _IGNORED)
        )
        labels[:, : tokens.shape[1] - shift] = target
    return labels


def cross_entropy(logits: Tensor, labels: Tensor) -> Tensor:
    """Mean -log p over the labels that count, in fp32; 0 where none does."""
    flat = logits.reshape(-1, logits.shape[-1])
    total = functional.cross_entropy(flat.float(), labels.reshape(-1), ignore_index=_IGNORED, reduction="sum")
    return total / (labels != _IGNORED).sum().clamp(min=1)


def language_model_loss(logits: Tensor, tokens: Tensor, loss_mask: Tensor) -> Tensor:
    """L_LM = -log p^(0)_t(y_{t+1}). logits: (batch, t, vocab)."""
    return cross_entropy(logits, shifted_labels(tokens, loss_mask, 1))


def head_losses(head_logits: Tensor, tokens: Tensor, loss_mask: Tensor) -> Tensor:
    """(heads,) unweighted losses of logits (heads, batch, t, vocab): head index i against y_{t + 2 + i}."""
    return torch.stack(
        [
            cross_entropy(logits, shifted_labels(tokens, loss_mask, i + 2))
            for i, logits in enumerate(head_logits.unbind(0))
        ]
    )


def medusa_1_loss(losses: Tensor) -> Tensor:
    """sum_k lambda_k L_k with lambda_k = 0.8^k, k from 1 (eq. 1)."""
    weights = HEAD_DECAY ** torch.arange(1, losses.shape[0] + 1, dtype=losses.dtype, device=losses.device)
    return (weights * losses).sum()


def combined_weight(lambda_0: float, step: int, steps: int, schedule: str) -> float:
    """lambda_0 of eq. 2 at a step: constant, or rising as a sine to its peak at the end (appendix B.4)."""
    if schedule == "constant":
        return lambda_0
    return lambda_0 * math.sin(math.pi / 2 * (step + 1) / steps)


def distillation_loss(logits: Tensor, teacher_logits: Tensor, tokens: Tensor, loss_mask: Tensor) -> Tensor:
    """Mean KL(teacher || student) over the positions whose next token counts (section 2.3.2)."""
    counts = shifted_labels(tokens, loss_mask, 1) != _IGNORED
    teacher = functional.log_softmax(teacher_logits.float(), -1)
    student = functional.log_softmax(logits.float(), -1)
    divergence = (teacher.exp() * (teacher - student)).sum(-1)
    return (divergence * counts).sum() / counts.sum().clamp(min=1)
