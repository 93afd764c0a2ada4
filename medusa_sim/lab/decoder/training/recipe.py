"""A whole training run from names and numbers: text, tokenizer, model, loop, checkpoint folder."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import torch
from tokenizers import Tokenizer
from torch import Tensor

from medusa_sim.errors import DataError, UsageError
from medusa_sim.lab.decoder.arguments import HEAD_LAYERS, HEADS, Recipe, Training
from medusa_sim.lab.decoder.checkpoint import DTYPES, load_checkpoint
from medusa_sim.lab.decoder.checkpoint_folder import check_replaceable, check_room, save_checkpoint
from medusa_sim.lab.decoder.config import DecoderConfig
from medusa_sim.lab.decoder.heads import MedusaHeads, new_heads
from medusa_sim.lab.decoder.model import Llama, random_llama
from medusa_sim.lab.decoder.tokenizer import load_tokenizer, train_tokenizer
from medusa_sim.lab.decoder.training import corpus
from medusa_sim.lab.decoder.training.evaluate import next_token_loss, text_counts
from medusa_sim.lab.decoder.training.train import Batches, train_backbone, train_medusa_1, train_medusa_2
from medusa_sim.lab.decoder.training.trainer import Report, Run, TrainSettings


class Pace(NamedTuple):
    """How fast a method learns: peak learning rate, steps of warm-up at most, weight decay."""

    learning_rate: float
    warmup_steps: int
    weight_decay: float


PACES: dict[Training, Pace] = {
    "backbone": Pace(3e-3, 100, 0.1),
    "medusa-1": Pace(2e-3, 40, 0.0),
    "medusa-2": Pace(5e-4, 40, 0.0),
}
"""Learning rates of medusa-1 (its heads') and medusa-2 (the backbone's) are the paper's (appendix B.3)."""
_HELDOUT_WINDOWS, _HELDOUT_LENGTH = 64, 256
_PROMPT_TOKENS, _RESPONSE_TOKENS = 32, 128
_NOT_OF_THE_RESULT = ("save", "checkpoint", "text_folder", "overwrite", "dtype")
"""Folders are compared by what they hold."""


@dataclass(frozen=True, slots=True)
class Trained:
    """How a run ended. `heldout_loss` is nats per token on held-out files, `heldout_top1` per head."""

    method: str
    steps: int
    parameters: int
    first_loss: float
    last_loss: float
    heldout_loss: float
    heldout_top1: list[float]
    train_s: float
    checkpoint: Path
    history: list[dict[str, float]]


@dataclass(frozen=True, slots=True)
class _Subject:
    """What a training starts from."""

    model: Llama
    heads: MedusaHeads | None
    """Those of the checkpoint, if it has any."""
    tokenizer: Tokenizer


def run_recipe(
    recipe: Recipe, report: Report | None = None, note: Callable[[str], None] | None = None
) -> Trained:
    """Train and write the checkpoint folder `Recipe.save`; a killed run goes on from where it was saved.

    The state lies beside the folder (`state_path`) until the end. `note` is told, once,
    which heads the training starts from. Raises UsageError, SpecError, DataError or OutputError before
    any work where something is wrong with the request.
    """
    _check(recipe)
    started = time.perf_counter()
    texts = corpus.read_corpus(recipe.text_folder)
    subject = _subject(recipe, texts)
    settings = _settings(recipe)
    heads = _heads(recipe, subject, note)
    windows = corpus.file_windows(
        texts.heldout, subject.tokenizer, count=_HELDOUT_WINDOWS, prompt_tokens=_HELDOUT_LENGTH
    )
    batches = _batches(recipe, subject, texts)
    run = Run(state_path=state_path(recipe.save), origin=_origin(recipe, texts), report=report)
    history = _train(recipe, subject.model, heads, batches, settings, run)
    top1: list[float] = []
    if heads is not None:
        top1 = text_counts(subject.model, heads, windows, first=0, ranks=1).accuracy().accuracy[:, 0].tolist()
    trained = Trained(
        method=recipe.method,
        steps=recipe.steps,
        parameters=sum(
            p.numel() for p in {*subject.model.parameters(), *(heads.parameters() if heads else ())}
        ),
        first_loss=history[0]["loss"],
        last_loss=sum(h["loss"] for h in history[-20:]) / len(history[-20:]),
        heldout_loss=next_token_loss(subject.model, windows),
        heldout_top1=top1,
        train_s=time.perf_counter() - started,
        checkpoint=recipe.save,
        history=history,
    )
    _write(recipe, trained, subject, heads)
    return trained


def state_path(save: Path) -> Path:
    """Where the state of a training lies until the checkpoint folder `save` is written."""
    return save.with_name(save.name + ".state.safetensors")


def _check(recipe: Recipe) -> None:
    if recipe.method != "backbone" and recipe.checkpoint is None:
        raise UsageError(f"--method {recipe.method} starts from a checkpoint; give --checkpoint DIR")
    if recipe.method == "backbone" and recipe.data == "self":
        raise UsageError("a backbone cannot learn from its own text; use --data text")
    if recipe.method == "backbone":
        _check_attention(recipe)
    check_replaceable(recipe.save, overwrite=recipe.overwrite)
    check_room(recipe.save)


def _check_attention(recipe: Recipe) -> None:
    """Raises UsageError where heads of a new backbone do not share K/V heads evenly, or cannot be rotated."""
    heads, kv_heads = recipe.attention_heads, recipe.kv_heads
    if heads % kv_heads:
        raise UsageError(f"--attention-heads {heads} is no multiple of --kv-heads {kv_heads}; change one")
    width = recipe.hidden // heads
    if width < 2 or width % 2:
        raise UsageError(
            f"--hidden {recipe.hidden} over --attention-heads {heads} makes heads {width} wide; rotary "
            "embedding takes pairs: an even width from 2 is needed"
        )
    if recipe.hidden % heads:
        raise UsageError(f"--hidden {recipe.hidden} is no multiple of --attention-heads {heads}; change one")


def _subject(recipe: Recipe, texts: corpus.Corpus) -> _Subject:
    if recipe.method != "backbone":
        assert recipe.checkpoint is not None  # noqa: S101  # _check refused it
        loaded = load_checkpoint(recipe.checkpoint)
        return _Subject(loaded.model, loaded.heads, load_tokenizer(recipe.checkpoint))
    tokenizer = train_tokenizer([texts.training[name] for name in sorted(texts.training)], vocab=recipe.vocab)
    config = DecoderConfig(
        vocab_size=recipe.vocab,
        hidden_size=recipe.hidden,
        intermediate_size=recipe.intermediate,
        num_hidden_layers=recipe.layers,
        num_attention_heads=recipe.attention_heads,
        num_key_value_heads=recipe.kv_heads,
        head_dim=recipe.hidden // recipe.attention_heads,
        max_position_embeddings=1024,
        tie_word_embeddings=True,
        eos_token_ids=(0,),
    )
    return _Subject(random_llama(config, seed=recipe.seed), None, tokenizer)


def _batches(recipe: Recipe, subject: _Subject, texts: corpus.Corpus) -> Batches:
    if recipe.data == "self":
        prompts = corpus.file_windows(
            texts.training,
            subject.tokenizer,
            count=recipe.responses,
            prompt_tokens=_PROMPT_TOKENS,
            seed=recipe.seed,
        )
        responses = corpus.write_responses(
            subject.model,
            prompts,
            max_new_tokens=_RESPONSE_TOKENS,
            temperature=recipe.temperature,
            seed=recipe.seed,
        )
        length = min(recipe.length, _PROMPT_TOKENS + _RESPONSE_TOKENS)
        return lambda step: corpus.response_batch(
            responses, batch=recipe.batch, length=length, seed=recipe.seed, step=step
        )
    stream = corpus.token_stream(texts.training, subject.tokenizer)
    if stream.numel() < recipe.length:
        raise DataError(
            f"the training text has {stream.numel()} tokens, one text of a batch {recipe.length}; give more "
            "text (--text), or shorter ones (--length)"
        )

    def windows(step: int) -> tuple[Tensor, Tensor]:
        tokens = corpus.window_batch(
            stream, batch=recipe.batch, length=recipe.length, seed=recipe.seed, step=step
        )
        return tokens, torch.ones_like(tokens, dtype=torch.bool)

    return windows


def _settings(recipe: Recipe) -> TrainSettings:
    """How its method trains; a short run warms up for a fifth of its steps."""
    pace = PACES[recipe.method]
    return TrainSettings(
        steps=recipe.steps,
        learning_rate=recipe.learning_rate or pace.learning_rate,
        warmup_steps=min(pace.warmup_steps, max(recipe.steps // 5, 1)),
        weight_decay=pace.weight_decay,
        seed=recipe.seed,
    )


def _heads(recipe: Recipe, subject: _Subject, note: Callable[[str], None] | None) -> MedusaHeads | None:
    """Heads to train: those of the checkpoint, else new ones; None for a backbone."""
    if recipe.method == "backbone":
        return None
    heads = subject.heads
    if heads is None:
        return new_heads(
            subject.model.lm_head,
            count=recipe.medusa_heads or HEADS,
            layers=recipe.medusa_layers or HEAD_LAYERS,
            own_output=recipe.own_output is not False,
        )
    for name, given, has in (
        ("--medusa-heads", recipe.medusa_heads, heads.count),
        ("--medusa-layers", recipe.medusa_layers, heads.layers),
        ("--own-output", recipe.own_output, heads.own_output),
    ):
        if given is not None and given != has:
            raise UsageError(
                f"{name} is {given}, but training goes on from the heads of {recipe.checkpoint}, which have "
                f"{has}; leave it out, or start from a checkpoint without heads"
            )
    if note is not None:
        note(f"training goes on from the {heads.count} heads of {recipe.checkpoint}")
    return heads


def _origin(recipe: Recipe, texts: corpus.Corpus) -> dict[str, Any]:
    """All that decides a run's result beside its TrainSettings: a run with another is another run."""
    given = {key: value for key, value in asdict(recipe).items() if key not in _NOT_OF_THE_RESULT}
    digest = hashlib.sha256()
    for name, text in sorted((texts.training | texts.heldout).items()):
        digest.update(f"{name}\0{text}\0".encode())
    start = hashlib.sha256()
    if recipe.checkpoint is not None:
        for path in sorted(p for p in recipe.checkpoint.iterdir() if p.suffix in (".safetensors", ".pt")):
            with path.open("rb") as file:
                start.update(hashlib.file_digest(file, "sha256").digest())
    return given | {"text": digest.hexdigest(), "weights of the checkpoint": start.hexdigest()}


def _train(
    recipe: Recipe,
    model: Llama,
    heads: MedusaHeads | None,
    batches: Batches,
    settings: TrainSettings,
    run: Run,
) -> list[dict[str, float]]:
    if heads is None:
        return train_backbone(model, batches, settings, compiled=recipe.compiled, **run)
    if recipe.method == "medusa-1":
        return train_medusa_1(model, heads, batches, settings, compiled=recipe.compiled, **run)
    return train_medusa_2(
        model,
        heads,
        batches,
        settings,
        lambda_0=recipe.lambda_0,
        schedule=recipe.schedule,
        distil=recipe.data == "self",
        compiled=recipe.compiled,
        **run,
    )


def _write(recipe: Recipe, trained: Trained, subject: _Subject, heads: MedusaHeads | None) -> None:
    facts = {
        key: str(value) if isinstance(value, Path) else value
        for key, value in asdict(replace(recipe, save=Path(recipe.save.name))).items()
        if key != "overwrite"
    }
    if recipe.checkpoint is not None:
        facts["checkpoint"] = recipe.checkpoint.name
    record = {
        "recipe": facts,
        "torch": torch.__version__,
        "heldout_loss": trained.heldout_loss,
        "heldout_top1": trained.heldout_top1,
        "loss": [
            [int(h["step"]), round(h["loss"], 4)]
            for h in trained.history[:: max(len(trained.history) // 100, 1)]
        ],
    }
    save_checkpoint(
        recipe.save,
        subject.model,
        heads,
        dtype=DTYPES[recipe.dtype],
        tokenizer_json=subject.tokenizer.to_str(),
        record=record,
        overwrite=recipe.overwrite,
    )
    state_path(recipe.save).unlink(missing_ok=True)
