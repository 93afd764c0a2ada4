"""One request of `medusa-sim decode`, from names to records: load, choose a tree, run, compare."""

from __future__ import annotations

import platform
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer

from medusa_sim.data import find, shipped_dir
from medusa_sim.errors import SpecError, UsageError, shown
from medusa_sim.lab.decoder.arguments import Request
from medusa_sim.lab.decoder.checkpoint import DTYPES, Checkpoint, load_checkpoint
from medusa_sim.lab.decoder.config import read_config
from medusa_sim.lab.decoder.fixed_shapes import FORWARDS
from medusa_sim.lab.decoder.generation import GenerationRun, GenerationSettings
from medusa_sim.lab.decoder.methods import (
    AUTO,
    CHECKPOINTS,
    SHIPPED_CHECKPOINT,
    SHIPPED_DRAFT,
    Method,
    head_accuracy,
    make_method,
    profile_of,
)
from medusa_sim.lab.decoder.model import Llama
from medusa_sim.lab.decoder.packed import pack
from medusa_sim.lab.decoder.prompts import Prompt, first_allowed, read_prompt
from medusa_sim.lab.decoder.tokenizer import load_tokenizer
from medusa_sim.lab.decoder.trials import BesidePlain, Sizing, compare, sizing

SHARED_FROM_HIDDEN = 1024
"""Hidden size from which torch's threads share a product; below, waiting for each other costs more than
it saves (a hundredfold on a machine that is busy otherwise)."""
DRAFTING = ("sd", "specinfer", "spectr", "rsd-c", "rsd-s")
"""Methods with a draft model."""


@dataclass(slots=True)
class DecodeAnswer:
    """Records, one a sequence and method; what was gained and why in one line; notes for the user."""

    records: list[dict[str, Any]]
    headline: str
    gain: float | None
    notes: list[str] = field(default_factory=list)


def decoded(request: Request) -> DecodeAnswer:
    """Runs a request. Raises MedusaSimError, one line, for whatever is wrong with it."""
    threads = torch.get_num_threads()
    try:
        return _decoded(request)
    finally:
        torch.set_num_threads(threads)


def _decoded(request: Request) -> DecodeAnswer:
    device = _device(request.device)
    folder = folder_of(request.checkpoint or SHIPPED_CHECKPOINT, request.data_dir)
    dtype = DTYPES[request.dtype or _default_dtype(device, folder)]
    target = load_checkpoint(folder, heads_path=request.head_file, dtype=dtype, device=device)
    if request.packed:
        pack(target.model, target.heads)
    tokenizer = load_tokenizer(folder)
    if request.threads is not None or target.model.config.hidden_size < SHARED_FROM_HIDDEN:
        torch.set_num_threads(request.threads or 1)
    notes: list[str] = []
    typed = [
        read_prompt(text, tokenizer, folder, chat=request.chat, keep_space=request.keep_space)
        for text in request.texts
    ]
    prompts = [prompt.tokens for prompt in typed]
    draft = _draft(request, tokenizer, dtype, device) if request.method in DRAFTING else None
    settings = GenerationSettings(
        max_new_tokens=request.max_new_tokens,
        temperature=request.temperature,
        acceptance_rule=request.acceptance_rule,
        seed=request.seed,
        draw_typical=True,
    )
    method, sized = _method(request, target, draft, prompts, settings, notes)
    plain = make_method("ar", target, temperature=request.temperature)
    plain_settings = GenerationSettings(
        max_new_tokens=request.max_new_tokens, temperature=request.temperature, seed=request.seed
    )
    comparison = compare(
        target.model,
        prompts,
        settings,
        plain_settings,
        method.drafter,
        baseline=request.plain and method.name != "ar",
        make_forward=FORWARDS.get(request.launch),
        first_allowed=first_allowed(typed, tokenizer, target.model.config.vocab_size),
    )
    kept = [(method, comparison.run, settings)]
    if comparison.plain is not None:
        kept.append((plain, comparison.plain, plain_settings))
    if sized is not None and comparison.gain is not None and comparison.gain < 1.0:
        kept.reverse()  # the tree was chosen here, and did not keep its promise
    records = [
        record
        for which, run, given in kept
        for record in _records(request.texts, typed, which, run, given, tokenizer)
    ]
    headline = _headline(method, sized, comparison, device)
    return DecodeAnswer(records, headline, comparison.gain, notes)


def folder_of(name_or_path: str, data_dir: Path | None = None) -> Path:
    """A checkpoint folder, or the shipped one of that name. Raises SpecError where there is neither."""
    path = Path(name_or_path)
    if path.is_dir():
        return path
    folder = find(CHECKPOINTS, name_or_path, data_dir) if path.name == name_or_path else None
    if folder is None:
        shipped = ", ".join(sorted(path.name for path in (shipped_dir() / CHECKPOINTS).iterdir()))
        raise SpecError(
            f"checkpoint {shown(name_or_path)}: no such folder; give one that `train` wrote, or of {shipped}"
        )
    return folder


def _device(name: str) -> torch.device:
    try:
        device = torch.device(name)
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError) as error:
        raise UsageError(f"--device {name}: {str(error).splitlines()[0]}") from error
    return device


def _default_dtype(device: torch.device, folder: Path) -> str:
    """fp32 on a CPU; elsewhere the half precision of the checkpoint, or fp16."""
    if device.type == "cpu":
        return "fp32"
    return "bf16" if read_config(folder).torch_dtype == "bfloat16" else "fp16"


def _draft(request: Request, tokenizer: Tokenizer, dtype: torch.dtype, device: torch.device) -> Llama:
    """The draft model. Raises UsageError where its tokens are not the target's."""
    folder = folder_of(request.draft or SHIPPED_DRAFT, request.data_dir)
    draft = load_checkpoint(folder, dtype=dtype, device=device).model
    if request.packed:
        pack(draft)
    if load_tokenizer(folder).get_vocab() != tokenizer.get_vocab():
        raise UsageError(
            f"the draft model {folder.name} has other tokens than the target; both must share one tokenizer "
            "(give the fitting --draft DIR)"
        )
    return draft


def _method(
    request: Request,
    target: Checkpoint,
    draft: Llama | None,
    prompts: list[list[int]],
    settings: GenerationSettings,
    notes: list[str],
) -> tuple[Method, Sizing | None]:
    """The method with its tree, which `auto` takes from timing steps here."""
    tree, accuracy, sized = request.tree, None, None
    if request.method == "medusa":
        tree = tree if tree is not None else AUTO
        if tree == AUTO and settings.max_new_tokens == 1:  # prefill gives it: no step, and no tree to size
            return make_method("ar", target, temperature=request.temperature), None
        if tree == AUTO or tree.isdecimal():
            name, note = (
                (request.acceptance, None)
                if request.acceptance
                else profile_of(target.path, request.data_dir)
            )
            accuracy = head_accuracy(target, name, request.data_dir)
            notes += [note] if note else []
        if tree == AUTO and accuracy is not None:
            forward = FORWARDS.get(request.launch)
            sized = sizing(target, accuracy, prompts, settings, make_forward=forward)
            tree = str(sized.best)
            if sized.best == 1:
                return make_method("ar", target, temperature=request.temperature), sized
    method = make_method(
        request.method,
        target,
        draft=draft,
        tree=tree,
        temperature=request.temperature,
        accuracy=accuracy,
        ngram_max=request.ngram_max,
        match=request.match,
    )
    return method, sized


def _headline(method: Method, sized: Sizing | None, comparison: BesidePlain, device: torch.device) -> str:
    """What was gained over plain decoding, with which tree, and why."""
    where = (
        torch.cuda.get_device_name(device) if device.type == "cuda" else f"this CPU ({platform.machine()})"
    )
    if method.name == "ar":
        if sized is None:
            return f"plain decoding on {where}"
        best = sized.best_tree
        return (
            f"plain decoding: no tree gains on {where} (the best, {best} candidates, is expected at "
            f"{sized.gain(best):.2f}x: {sized.tokens_per_step[best]:.2f} tokens a step, a step costs "
            f"{sized.step_s[best] / sized.step_s[1]:.2f} plain ones)"
        )
    if method.name == "medusa" and method.drafter.nodes > 1:
        what = f"{method.drafter.nodes} candidates"
    else:
        what = f"{method.name} {method.tree}".strip()
    if not comparison.run.steps:
        return f"{what} on {where}: prefill gave every new token, so that no step was made"
    if comparison.gain is None or comparison.cost is None:
        return f"{what} on {where}: {comparison.tokens_per_step:.2f} tokens per step (--plain compares)"
    if sized is not None and comparison.gain < 1.0:
        return (
            f"plain decoding on {where}: {what} were expected to gain and ran at {comparison.gain:.2f}x "
            f"({comparison.tokens_per_step:.2f} tokens a step, a step costs {comparison.cost:.2f} plain ones)"
        )
    over = "over" if comparison.gain >= 1.0 else "of"
    return (
        f"{comparison.gain:.2f}x {over} plain decoding on {where} with {what}: "
        f"{comparison.tokens_per_step:.2f} tokens a step, a step costs {comparison.cost:.2f} plain ones"
    )


def _records(
    texts: list[str],
    typed: list[Prompt],
    method: Method,
    run: GenerationRun,
    settings: GenerationSettings,
    tokenizer: Tokenizer,
) -> list[dict[str, Any]]:
    return [
        {
            "sequence": i,
            "method": method.name,
            "rule": settings.applied_rule,
            "tree": method.tree,
            "prompt": text,
            "token_ids": sequence.token_ids,
            "text": prompt.continuation(tokenizer, sequence.token_ids),
            "new_tokens": len(sequence.token_ids),
            "steps": sequence.steps,
            "tokens_per_step": sequence.tokens_per_step,
            "accepted_lengths": sequence.accepted_lengths,
            "tokens_per_s": (len(sequence.token_ids) - 1) / run.decode_s if sequence.steps else None,
            "prefill_s": run.prefill_s,
            "setup_s": run.setup_s,
            "decode_s": run.decode_s if sequence.steps else 0.0,
        }
        for i, (text, prompt, sequence) in enumerate(zip(texts, typed, run.sequences, strict=True))
    ]
