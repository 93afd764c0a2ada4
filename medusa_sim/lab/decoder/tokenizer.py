"""The tokenizer of a checkpoint: its tokenizer.json, or a byte-level BPE trained on given text."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

from medusa_sim.errors import SpecError, UsageError, shown

END_OF_TEXT = "<|endoftext|>"


def train_tokenizer(texts: Iterable[str], *, vocab: int) -> Tokenizer:
    """Byte-level BPE of `vocab` tokens; token 0 is the end of text. Any text can be encoded."""
    tokenizer = Tokenizer(models.BPE())
    # Runs of spaces stay whole: indentation is most of what Python source repeats.
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab,
        special_tokens=[END_OF_TEXT],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    return tokenizer


def load_tokenizer(directory: Path | str) -> Tokenizer:
    """The tokenizer.json of a checkpoint folder. Raises SpecError if it is missing or malformed."""
    path = Path(directory) / "tokenizer.json"
    if not path.is_file():
        raise SpecError(f"{path}: no such file; the checkpoint has no tokenizer")
    try:
        return Tokenizer.from_file(str(path))
    except Exception as error:  # tokenizers raises bare Exception
        raise SpecError(f"{path}: not a tokenizer file ({str(error).splitlines()[0]})") from None


def encode(tokenizer: Tokenizer, text: str, *, special_tokens: bool = True) -> list[int]:
    """Token ids of `text`, with what the tokenizer puts around a text (a begin-of-text token, say).

    Raises UsageError for bytes that are no text, which arrive as lone surrogates.
    """
    try:
        text.encode()
    except UnicodeEncodeError:
        raise UsageError(f"prompt {shown(text)} is not UTF-8 text; give it as UTF-8") from None
    ids: list[int] = tokenizer.encode(text, add_special_tokens=special_tokens).ids
    return ids


def decode(tokenizer: Tokenizer, tokens: Sequence[int]) -> str:
    """Text of token ids; the end-of-text token is left out."""
    text: str = tokenizer.decode(list(tokens), skip_special_tokens=True)
    return text
