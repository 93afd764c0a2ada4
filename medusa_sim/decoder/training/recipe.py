"""A whole training run from names and numbers: text, tokenizer, model, loop, checkpoint folder."""

from __future__ import annotations

import json
import time
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Literal

import torch
from tokenizers import Tokenizer
from torch import Tensor

from medusa_sim.decoder.checkpoint import DTYPES, load_checkpoint, save_checkpoint
from medusa_sim.decoder.config import DecoderConfig
from medusa_sim.decoder.heads import MedusaHeads, new_heads
from medusa_sim.decoder.model import Llama, random_llama
from medusa_sim.decoder.tokenizer import load_tokenizer, train_tokenizer
from medusa_sim.decoder.training import corpus, distill
from medusa_sim.decoder.training.evaluate import next_token_loss, text_counts
from medusa_sim.decoder.training.train import Batches, Report, train_backbone, train_medusa_1, train_medusa_2
from medusa_sim.decoder.training.trainer import TrainSettings
from medusa_sim.errors import OutputError, UsageError

Method = Literal["backbone", "medusa-1", "medusa-2"]
PEAK_RATES: dict[str, float] = {"backbone": 3e-3, "medusa-1": 2e-3, "medusa-2": 5e-4}
"""Peak learning rates of the backbone; medusa-1 (heads) and medusa-2 are the paper's (appendix B.3)."""
_WARMUP = {"backbone": 100, "medusa-1": 40, "medusa-2": 40}
_DECAY = {"backbone": 0.1, "medusa-1": 0.0, "medusa-2": 0.0}
_HELDOUT_WINDOWS, _HELDOUT_LENGTH = 64, 256
_PROMPT_TOKENS, _RESPONSE_TOKENS = 32, 128


@dataclass(frozen=True, slots=True, kw_only=True)
class Recipe:
    """What to train and how. Paths and switches are those of `medusa-sim train`.

    `data`: `text` (the standard library, or `text_folder`) or `self` (`responses` continuations that
    the model writes itself at `temperature`; Medusa-2 then learns by KL to itself without adapter).
    """

    method: Method
    save: Path
    checkpoint: Path | None = None
    text_folder: Path | None = None
    data: Literal["text", "self"] = "text"
    steps: int = 2000
    batch: int = 16
    length: int = 256
    learning_rate: float | None = None
    seed: int = 0
    vocab: int = 1024
    hidden: int = 128
    intermediate: int = 384
    layers: int = 5
    heads: int = 4
    kv_heads: int = 2
    medusa_heads: int = 5
    medusa_layers: int = 1
    own_output: bool = True
    lambda_0: float = 0.2
    schedule: Literal["constant", "sine"] = "constant"
    responses: int = 512
    temperature: float = 0.7
    dtype: str = "fp16"
    compiled: bool = False


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
    model: Llama
    heads: MedusaHeads | None
    tokenizer: Tokenizer


def run_recipe(recipe: Recipe, report: Report | None = None) -> Trained:
    """Trains and writes the checkpoint folder `recipe.save`; a killed run goes on from where it was saved.

    The state lies beside the folder (`<save>.state.safetensors`) until the end. Raises UsageError,
    SpecError, DataError or OutputError before any work where something is wrong with the request.
    """
    _check(recipe)
    started = time.perf_counter()
    texts = corpus.read_corpus(recipe.text_folder)
    subject = _subject(recipe, texts)
    settings = TrainSettings(
        steps=recipe.steps,
        batch=recipe.batch,
        length=recipe.length,
        learning_rate=recipe.learning_rate or PEAK_RATES[recipe.method],
        warmup_steps=min(_WARMUP[recipe.method], max(recipe.steps // 5, 1)),
        weight_decay=_DECAY[recipe.method],
        seed=recipe.seed,
    )
    batches = _batches(recipe, subject, texts)
    heads, history = _train(recipe, subject, batches, settings, report)
    windows = corpus.heldout_prompts(
        texts.heldout, subject.tokenizer, count=_HELDOUT_WINDOWS, prompt_tokens=_HELDOUT_LENGTH
    )
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


def _check(recipe: Recipe) -> None:
    if recipe.method != "backbone" and recipe.checkpoint is None:
        raise UsageError(f"--method {recipe.method} starts from a checkpoint; give --checkpoint DIR")
    if recipe.method == "backbone" and recipe.data == "self":
        raise UsageError("a backbone cannot learn from its own text; use --data text")
    if recipe.steps < 1 or recipe.batch < 1 or recipe.length < 8:
        raise UsageError(
            f"steps {recipe.steps}, batch {recipe.batch}, length {recipe.length}: "
            "at least 1, 1 and 8 are needed"
        )
    if recipe.save.exists() and not (recipe.save / "config.json").exists():
        raise OutputError(f"{recipe.save} exists and is no checkpoint folder; choose another --save")


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
        num_attention_heads=recipe.heads,
        num_key_value_heads=recipe.kv_heads,
        head_dim=recipe.hidden // recipe.heads,
        max_position_embeddings=1024,
        tie_word_embeddings=True,
        eos_token_ids=(0,),
    )
    return _Subject(random_llama(config, seed=recipe.seed), None, tokenizer)


def _batches(recipe: Recipe, subject: _Subject, texts: corpus.Corpus) -> Batches:
    if recipe.data == "self":
        prompts = corpus.heldout_prompts(
            texts.training,
            subject.tokenizer,
            count=recipe.responses,
            prompt_tokens=_PROMPT_TOKENS,
            seed=recipe.seed,
        )
        responses = distill.write_responses(
            subject.model,
            prompts,
            max_new_tokens=_RESPONSE_TOKENS,
            temperature=recipe.temperature,
            seed=recipe.seed,
        )
        length = min(recipe.length, _PROMPT_TOKENS + _RESPONSE_TOKENS)
        return lambda step: distill.response_batch(
            responses, batch=recipe.batch, length=length, seed=recipe.seed, step=step
        )
    stream = corpus.token_stream(texts.training, subject.tokenizer)

    def windows(step: int) -> tuple[Tensor, Tensor]:
        tokens = corpus.window_batch(
            stream, batch=recipe.batch, length=recipe.length, seed=recipe.seed, step=step
        )
        return tokens, torch.ones_like(tokens, dtype=torch.bool)

    return windows


def _train(
    recipe: Recipe, subject: _Subject, batches: Batches, settings: TrainSettings, report: Report | None
) -> tuple[MedusaHeads | None, list[dict[str, float]]]:
    state = recipe.save.with_name(recipe.save.name + ".state.safetensors")
    if recipe.method == "backbone":
        history = train_backbone(
            subject.model, batches, settings, state_path=state, compiled=recipe.compiled, report=report
        )
        return None, history
    fresh = subject.heads is None or recipe.method == "medusa-1"
    heads = subject.heads
    if heads is None or fresh:
        heads = new_heads(
            subject.model.lm_head,
            count=recipe.medusa_heads,
            layers=recipe.medusa_layers,
            own_output=recipe.own_output,
        )
    if recipe.method == "medusa-1":
        history = train_medusa_1(
            subject.model, heads, batches, settings, state_path=state, compiled=recipe.compiled, report=report
        )
        return heads, history
    history = train_medusa_2(
        subject.model,
        heads,
        batches,
        settings,
        lambda_0=recipe.lambda_0,
        schedule=recipe.schedule,
        distil=recipe.data == "self",
        state_path=state,
        compiled=recipe.compiled,
        report=report,
    )
    return heads, history


def _write(recipe: Recipe, trained: Trained, subject: _Subject, heads: MedusaHeads | None) -> None:
    save_checkpoint(
        recipe.save,
        subject.model,
        heads,
        dtype=DTYPES[recipe.dtype],
        tokenizer_json=subject.tokenizer.to_str(),
    )
    facts = {
        key: str(value) if isinstance(value, Path) else value
        for key, value in asdict(replace(recipe, save=Path(recipe.save.name))).items()
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
    (recipe.save / "training.json").write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
    recipe.save.with_name(recipe.save.name + ".state.safetensors").unlink(missing_ok=True)
