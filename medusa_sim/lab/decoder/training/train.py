"""The three trainings: a backbone from scratch, Medusa-1 (heads only) and Medusa-2 (heads and adapter).

Medusa paper, sections 2.2.1, 2.2.2 and 2.3.2, appendix B. A batch is (tokens, loss_mask); where it
comes from is the caller's business (`corpus.window_batch`, `corpus.response_batch`).

Losses: the backbone's next token, the Medusa heads' later ones, and distillation from oneself.

`loss_mask` (batch, t) is True where a token may be a label: prompt tokens and padding are False.
Head k of the paper (k = 1..K, index k - 1 here) predicts y_{t + k + 1} from the hidden state at t.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeAlias, Unpack

import torch
from torch import Tensor, nn
from torch.nn import functional

from medusa_sim.lab.decoder.arguments import LAMBDA_0, SCHEDULE, Schedule
from medusa_sim.lab.decoder.heads import MedusaHeads
from medusa_sim.lab.decoder.model import Llama
from medusa_sim.lab.decoder.training.trainer import Run, Trainer, TrainSettings, trainable

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


Batches: TypeAlias = Callable[[int], tuple[Tensor, Tensor]]
LORA_RANK, LORA_ALPHA, LORA_DROPOUT = 32, 16, 0.05
LORA_TARGETS = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")
HEAD_RATE = 4.0
"""Head learning rate over the backbone's (appendix B.2)."""


def _compiled(function: Callable[..., Tensor], *, enabled: bool) -> Callable[..., Tensor]:
    return torch.compile(function) if enabled else function


def train_backbone(
    model: Llama, batches: Batches, settings: TrainSettings, *, compiled: bool = False, **run: Unpack[Run]
) -> list[dict[str, float]]:
    """Next-token training of every weight, in place. Returns the loss history."""
    model.train().requires_grad_(requires_grad=True)

    def loss(tokens: Tensor, mask: Tensor) -> Tensor:
        return language_model_loss(model.logits(model(tokens)), tokens, mask)

    loss_of = _compiled(loss, enabled=compiled)
    groups = [(trainable(model), 1.0)]
    history = Trainer(groups, lambda step: (loss_of(*batches(step)), {}), settings, **run).run()
    model.eval().requires_grad_(requires_grad=False)
    return history


def train_medusa_1(
    model: Llama,
    heads: MedusaHeads,
    batches: Batches,
    settings: TrainSettings,
    *,
    compiled: bool = False,
    **run: Unpack[Run],
) -> list[dict[str, float]]:
    """Medusa-1: the backbone stays frozen, the heads learn eq. 1. Returns the loss history."""
    model.eval().requires_grad_(requires_grad=False)
    heads.train().requires_grad_(requires_grad=True)

    def losses(tokens: Tensor, mask: Tensor) -> Tensor:
        with torch.no_grad():
            hidden = model(tokens)
        return head_losses(heads(hidden, model.lm_head), tokens, mask)

    losses_of = _compiled(losses, enabled=compiled)

    def loss_of_step(step: int) -> tuple[Tensor, dict[str, float]]:
        each = losses_of(*batches(step))
        return medusa_1_loss(each), _head_parts(each)

    history = Trainer([(trainable(heads, "heads."), 1.0)], loss_of_step, settings, **run).run()
    heads.eval().requires_grad_(requires_grad=False)
    return history


def train_medusa_2(
    model: Llama,
    heads: MedusaHeads,
    batches: Batches,
    settings: TrainSettings,
    *,
    lambda_0: float = LAMBDA_0,
    schedule: Schedule = SCHEDULE,
    distil: bool = False,
    compiled: bool = False,
    **run: Unpack[Run],
) -> list[dict[str, float]]:
    """Medusa-2: LoRA on every linear layer and the heads, L_LM + lambda_0 L_Medusa-1 (eq. 2).

    The two-stage warm-up is `train_medusa_1` before this with `schedule="constant"`; with
    `schedule="sine"` fresh heads may be trained at once. With `distil`, L_LM is the KL to the model
    with its adapter off (no second copy). `TrainSettings.learning_rate` is the backbone's; the heads
    learn 4 times faster. The adapter is merged into `model` at the end. Returns the loss history.
    """
    add_adapter(model)
    model.train()
    heads.train().requires_grad_(requires_grad=True)

    def losses(tokens: Tensor, mask: Tensor, teacher: Tensor | None) -> Tensor:
        hidden = model(tokens)
        logits = model.logits(hidden)
        if teacher is None:
            backbone = language_model_loss(logits, tokens, mask)
        else:
            backbone = distillation_loss(logits, teacher, tokens, mask)
        return torch.cat((backbone[None], head_losses(heads(hidden, model.lm_head), tokens, mask)))

    losses_of = _compiled(losses, enabled=compiled)

    def loss_of_step(step: int) -> tuple[Tensor, dict[str, float]]:
        tokens, mask = batches(step)
        teacher = None
        if distil:
            with torch.no_grad(), adapter_off(model):
                teacher = model.logits(model(tokens))
        each = losses_of(tokens, mask, teacher)
        weight = combined_weight(lambda_0, step, settings.steps, schedule)
        parts = {"lm_loss": float(each[0].detach())} | _head_parts(each[1:])
        return each[0] + weight * medusa_1_loss(each[1:]), parts

    groups = [(trainable(model, "model."), 1.0), (trainable(heads, "heads."), HEAD_RATE)]
    history = Trainer(groups, loss_of_step, settings, **run).run()
    merge_adapter(model)
    model.eval().requires_grad_(requires_grad=False)
    heads.eval().requires_grad_(requires_grad=False)
    return history


def _head_parts(losses: Tensor) -> dict[str, float]:
    return {f"head_{i}_loss": value for i, value in enumerate(losses.detach().tolist())}


def add_adapter(model: Llama) -> None:
    """Puts LoRA (rank 32, alpha 16, dropout 0.05) on every linear layer, in place, and freezes the rest.

    The language-model head is included unless it is tied to the embedding, which a merge would change.
    """
    from peft import LoraConfig, inject_adapter_in_model

    targets = list(LORA_TARGETS) if model.config.tie_word_embeddings else [*LORA_TARGETS, "lm_head"]
    torch.manual_seed(0)  # the adapter's own initialisation
    config = LoraConfig(r=LORA_RANK, lora_alpha=LORA_ALPHA, lora_dropout=LORA_DROPOUT, target_modules=targets)
    inject_adapter_in_model(config, model)
    for name, parameter in model.named_parameters():
        parameter.requires_grad_("lora_" in name)


def _lora_layers(model: nn.Module) -> list[tuple[str, Any]]:
    from peft.tuners.lora import LoraLayer

    return [(name, module) for name, module in model.named_modules() if isinstance(module, LoraLayer)]


@contextmanager
def adapter_off(model: Llama) -> Iterator[None]:
    """The model as it was before `add_adapter`, for the time of the `with` block."""
    layers = _lora_layers(model)
    training = model.training
    model.eval()
    for _, layer in layers:
        layer.enable_adapters(enabled=False)
    try:
        yield
    finally:
        for _, layer in layers:
            layer.enable_adapters(enabled=True)
        model.train(training)


def merge_adapter(model: Llama) -> None:
    """Adds the adapter to the weights it belongs to and removes it, in place."""
    for name, layer in _lora_layers(model):
        layer.merge()
        parent, _, child = name.rpartition(".")
        setattr(model.get_submodule(parent), child, layer.get_base_layer())
