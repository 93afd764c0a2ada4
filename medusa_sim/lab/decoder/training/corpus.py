"""What is learnt from: the source of Python's own standard library, or what the model itself writes.

The first is real text without a download, split by whole files; the second is self-distillation (Medusa
paper, section 2.3.2).
"""

from __future__ import annotations

import hashlib
import sysconfig
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from tokenizers import Tokenizer
from torch import Tensor

from medusa_sim.errors import DataError
from medusa_sim.lab.decoder.arguments import SEED_MAX
from medusa_sim.lab.decoder.generate import generate
from medusa_sim.lab.decoder.generation import GenerationSettings
from medusa_sim.lab.decoder.model import Llama
from medusa_sim.outside.limits import SPEC_BYTES
from medusa_sim.reading.files import read_text

_SKIPPED_FOLDERS = {
    "site-packages",
    "dist-packages",
    "test",
    "tests",
    "idle_test",
    "__pycache__",
    "lib2to3",
    "pydoc_data",
    "encodings",
}
HELDOUT_SHARE = 0.05
"""Share of the files that are held out, by a hash of their names."""
_RESPONSE_SEEDS = 10_007
"""Stride between the seeds of two trainings; each text of a training has the next one."""


@dataclass(frozen=True, slots=True)
class Corpus:
    """Texts by file name (relative to the library): those to train on and those held out."""

    training: dict[str, str]
    heldout: dict[str, str]


def is_heldout(name: str) -> bool:
    """Whether a file is held out: by a hash of its name, the same on every machine."""
    digest = hashlib.sha256(name.encode()).digest()
    return int.from_bytes(digest[:8], "big") / 2**64 < HELDOUT_SHARE


def read_corpus(folder: Path | None = None) -> Corpus:
    """Every .py file under `folder` (default: this Python's standard library, its tests left out).

    Files that are not UTF-8, of more than SPEC_BYTES or fewer than 200 characters are skipped. Raises
    DataError if nothing is left.
    """
    root = folder if folder is not None else Path(sysconfig.get_paths()["stdlib"])
    training: dict[str, str] = {}
    heldout: dict[str, str] = {}
    for path in sorted(root.rglob("*.py")):
        relative = path.relative_to(root)
        if _SKIPPED_FOLDERS.intersection(relative.parts[:-1]):
            continue
        try:
            text = read_text(path, SPEC_BYTES, "a file of text", DataError)
            text = text.replace("\r\n", "\n").replace("\r", "\n")
        except DataError:
            continue
        if len(text) >= 200:
            name = relative.as_posix()
            (heldout if is_heldout(name) else training)[name] = text
    if not training or not heldout:
        raise DataError(
            f"{root}: {len(training)} training and {len(heldout)} held-out .py files of 200 characters; "
            "need at least one of each"
        )
    return Corpus(training, heldout)


def token_stream(texts: dict[str, str], tokenizer: Tokenizer) -> Tensor:
    """One (tokens,) tensor of all texts in order of their names, each closed by token 0, its end."""
    ids: list[int] = []
    names = sorted(texts)
    for encoding in tokenizer.encode_batch([texts[name] for name in names], add_special_tokens=False):
        ids.extend(encoding.ids)
        ids.append(0)
    return torch.tensor(ids, dtype=torch.long)


def window_batch(stream: Tensor, *, batch: int, length: int, seed: int, step: int) -> Tensor:
    """(batch, length) windows of the stream, by seed and step alone, so that a run resumes exactly.

    The stream, (tokens,), has at least `length` of them.
    """
    generator = torch.Generator().manual_seed(seed * 1_000_003 + step)
    starts = torch.randint(0, max(stream.numel() - length, 1), (batch,), generator=generator)
    return stream[starts[:, None] + torch.arange(length)]


def file_windows(
    texts: dict[str, str],
    tokenizer: Tokenizer,
    *,
    count: int,
    prompt_tokens: int,
    continuation_tokens: int = 0,
    seed: int = 0,
) -> list[list[int]]:
    """`count` windows of these files in turn, each of prompt_tokens + continuation_tokens tokens of one file.

    Raises DataError where no file is longer than that.
    """
    need = prompt_tokens + continuation_tokens
    encoded = [
        e.ids for e in tokenizer.encode_batch([texts[n] for n in sorted(texts)], add_special_tokens=False)
    ]
    long_enough = [ids for ids in encoded if len(ids) > need]
    if not long_enough:
        raise DataError(f"none of {len(encoded)} files has more than {need} tokens; give longer ones")
    generator = torch.Generator().manual_seed(seed)
    prompts = []
    for i in range(count):
        ids = long_enough[i % len(long_enough)]
        start = int(torch.randint(0, len(ids) - need, (1,), generator=generator))
        prompts.append(ids[start : start + need])
    return prompts


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
) -> list[Response]:
    """The model's own continuation of every prompt, drawn at `temperature` in batches."""
    responses: list[Response] = []
    for start in range(0, len(prompts), batch):
        batch_seed = (seed * _RESPONSE_SEEDS + start) % (SEED_MAX + 1)
        settings = GenerationSettings(max_new_tokens=max_new_tokens, temperature=temperature, seed=batch_seed)
        run = generate(model, prompts[start : start + batch], settings)
        responses += [Response(s.prompt, s.token_ids) for s in run.sequences]
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
