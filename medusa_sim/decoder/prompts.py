"""From what a user typed to the tokens that a model continues."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from tokenizers import Tokenizer
from torch import Tensor

from medusa_sim.decoder.chat import chat_prompt
from medusa_sim.decoder.tokenizer import decode, encode

_WORD_STARTS = ("\u0120", "\u2581")
"""How byte-level and sentence-piece vocabularies write the space that begins a word."""


@dataclass(frozen=True, slots=True)
class Prompt:
    """Tokens of one prompt. `lends_space`: its last space is left to the first new token, which has it."""

    tokens: list[int]
    lends_space: bool = False

    def continuation(self, tokenizer: Tokenizer, tokens: Sequence[int]) -> str:
        """Text of new tokens, to be read behind the prompt as it was typed."""
        text = decode(tokenizer, tokens)
        return text.removeprefix(" ") if self.lends_space else text


def read_prompt(
    text: str, tokenizer: Tokenizer, folder: Path, *, chat: bool = False, keep_space: bool = False
) -> Prompt:
    """A typed text as tokens, with what the tokenizer puts around it; `chat`: in the folder's template.

    Tokens of words begin with their space. After a prompt that ends with one, a model is where it never
    was in training; so that space is left to the first new token, unless `keep_space`.
    """
    if chat:  # special tokens are in the template
        return Prompt(encode(tokenizer, chat_prompt(folder, text), special_tokens=False))
    tokens = encode(tokenizer, text)
    if keep_space or not text.endswith(" ") or not text[:-1] or text[-2].isspace():
        return Prompt(tokens)
    shorter = encode(tokenizer, text[:-1])
    lends = len(shorter) == len(tokens) - 1 and shorter == tokens[:-1]
    return Prompt(shorter, lends_space=True) if lends and shorter else Prompt(tokens)


def first_allowed(prompts: Sequence[Prompt], tokenizer: Tokenizer, vocab: int) -> Tensor | None:
    """(batch, vocab) bool: after a prompt that lends its space, the tokens that begin with one."""
    if not any(prompt.lends_space for prompt in prompts):
        return None
    starts = [token for text, token in tokenizer.get_vocab().items() if text.startswith(_WORD_STARTS)]
    allowed = torch.ones(len(prompts), vocab, dtype=torch.bool)
    for row, prompt in zip(allowed, prompts, strict=True):
        if prompt.lends_space:
            row[:] = False
            row[[token for token in starts if token < vocab]] = True
    return allowed
