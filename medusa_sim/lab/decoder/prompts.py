"""From what a user typed to the tokens that a model continues.

A chat model sees prompts as it was trained to: by the template in its tokenizer_config.json.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

import torch
from tokenizers import Tokenizer
from torch import Tensor

from medusa_sim.errors import SpecError
from medusa_sim.lab.decoder.tokenizer import decode, encode
from medusa_sim.outside.limits import SPEC_BYTES, TABLE_BYTES
from medusa_sim.reading.documents import read_json
from medusa_sim.reading.files import read_text

_WORD_STARTS = ("\u0120", "\u2581")
"""How byte-level and sentence-piece vocabularies write the space that begins a word."""


def chat_prompt(directory: Path, text: str) -> str:
    """`text` as the user's one message, with the opening of the answer; special tokens are in the string.

    Reads `chat_template.jinja`, or `chat_template` of tokenizer_config.json (the one named `default`
    where there are several). Raises SpecError (one line) where there is none or it cannot be rendered.
    """
    from jinja2 import TemplateError
    from jinja2.sandbox import ImmutableSandboxedEnvironment

    path = directory / "tokenizer_config.json"
    config = _object(path)
    template = config.get("chat_template")
    alone = directory / "chat_template.jinja"
    if alone.is_file():
        template = read_text(alone, SPEC_BYTES, "a template")
    if isinstance(template, list):
        named = [each for each in template if isinstance(each, dict)]
        template = next((each.get("template") for each in named if each.get("name") == "default"), None)
    if not isinstance(template, str):
        raise SpecError(f"{path}: no chat_template; leave --chat out, or give a checkpoint with one")

    def refuse(message: str) -> NoReturn:
        raise TemplateError(message)

    environment = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True)
    environment.globals["raise_exception"] = refuse
    special = {
        name: _token(config.get(name)) for name in ("bos_token", "eos_token", "unk_token", "pad_token")
    }
    messages = [{"role": "user", "content": text}]
    try:
        rendered: str = environment.from_string(template).render(
            messages=messages, add_generation_prompt=True, **special
        )
    except Exception as error:  # a template is a stranger's code, which may fail in any way
        raise SpecError(f"{path}: chat_template cannot be rendered ({_reason(error)})") from None
    return rendered


def _reason(error: Exception) -> str:
    """What an error says, on one line; its name where it says nothing."""
    return " ".join(str(error).split()) or type(error).__name__


def _token(value: object) -> str:
    content = value.get("content") if isinstance(value, dict) else value
    return content if isinstance(content, str) else ""


def _object(path: Path) -> dict[str, Any]:
    content = read_json(path, TABLE_BYTES, "a JSON file") if path.exists() else {}
    return content if isinstance(content, dict) else {}


@dataclass(frozen=True, slots=True)
class Prompt:
    """Tokens of one prompt. `lends_space`: its last space is left to the first new token, which has it."""

    tokens: list[int]
    lends_space: bool = False

    def continuation(self, tokenizer: Tokenizer, tokens: Sequence[int]) -> str:
        """Text of new tokens, to be read after the prompt as it was typed."""
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
