"""Self-distillation (Medusa paper, section 2.3.2): the model writes the data that its heads learn from."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from medusa_sim.decoder.generate import GenerationSettings, generate
from medusa_sim.decoder.model import Llama


@dataclass(frozen=True, slots=True)
class Response:
    """A prompt and what the model made of it; only the response is learned from."""

    prompt: list[int]
    tokens: list[int]


def write_responses(
    model: Llama,
    prompts: Sequence[Sequence[int]],
    *,
    max_new_tokens: int,
    temperature: float,
    seed: int,
    batch: int = 32,
    report: Callable[[int], None] | None = None,
) -> list[Response]:
    """The model's own continuation of every prompt, drawn at `temperature` in batches."""
    responses: list[Response] = []
    for start in range(0, len(prompts), batch):
        settings = GenerationSettings(
            max_new_tokens=max_new_tokens, temperature=temperature, seed=seed * 10_007 + start
        )
        run = generate(model, prompts[start : start + batch], settings)
        responses += [Response(s.prompt, s.token_ids) for s in run.sequences]
        if report is not None:
            report(len(responses))
    return responses


def response_batch(
    responses: Sequence[Response], *, batch: int, length: int, seed: int, step: int
) -> tuple[Tensor, Tensor]:
    """(tokens, loss_mask), each (batch, length): random responses with their prompts, padded on the right.

    The mask is True on response tokens only: prompts and padding are no labels. A text longer than
    `length` loses the start of its prompt.
    """
    generator = torch.Generator().manual_seed(seed * 1_000_003 + step)
    chosen = torch.randint(0, len(responses), (batch,), generator=generator).tolist()
    tokens = torch.zeros(batch, length, dtype=torch.long)
    mask = torch.zeros(batch, length, dtype=torch.bool)
    for row, index in enumerate(chosen):
        response = responses[index]
        text = (response.prompt + response.tokens)[-length:]
        first = max(0, len(text) - len(response.tokens))
        tokens[row, : len(text)] = torch.tensor(text)
        mask[row, first : len(text)] = True
    return tokens, mask
