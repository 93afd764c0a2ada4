"""`medusa-sim decode`: run the ground-truth decoder beside plain autoregressive decoding."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from medusa_sim.cli.decoder_extra import require_decoder_extra
from medusa_sim.cli.group import examples
from medusa_sim.cli.options import output_options
from medusa_sim.cli.output import Output
from medusa_sim.errors import DataError, SpecError, UsageError

if TYPE_CHECKING:
    from medusa_sim.decoder.checkpoint import Checkpoint

METHODS = ("medusa", "ar", "sd", "specinfer", "spectr", "rsd-c", "rsd-s", "ngram")


SHARED_FROM_HIDDEN = 1024
"""Hidden size from which torch's threads share a product; below, waiting for each other costs more than
it saves (a hundredfold on a machine that is busy otherwise)."""


@click.command(
    epilog=examples(
        'medusa-sim decode --prompt "def "',
        'medusa-sim decode --prompt "class " --method rsd-s --tree 4x3 --temperature 0.7 --format json',
    )
)
@click.option("--prompt", "prompts", multiple=True, help="Text to continue; give it again for a batch.")
@click.option(
    "--prompt-file",
    type=click.Path(path_type=Path, exists=True, dir_okay=False),
    help="File whose whole text is one more prompt.",
)
@click.option(
    "--checkpoint", help="Folder or name of a shipped checkpoint [default: the shipped Medusa-1 model]."
)
@click.option("--heads", type=click.Path(path_type=Path), help="Medusa head file of a Medusa-1 repository.")
@click.option("--draft", help="Folder or name of the draft model [default: the shipped one].")
@click.option("--method", type=click.Choice(METHODS), default="medusa", show_default=True)
@click.option(
    "--tree",
    help="medusa: candidates (64), a branching (4-2-1) or a file of paths. sd, ngram: length (4). "
    "specinfer, rsd-c: branching (2-2-1). spectr, rsd-s: paths or beams x depth (4x3).",
)
@click.option(
    "--acceptance",
    type=click.Choice(("greedy", "typical", "rejection")),
    help="Above temperature 0 [default: typical for medusa, else rejection, which keeps the model's law].",
)
@click.option("--temperature", type=click.FloatRange(min=0), default=0.0, show_default=True)
@click.option("--max-new-tokens", type=click.IntRange(min=1), default=128, show_default=True)
@click.option("--seed", type=click.IntRange(min=0), default=0, show_default=True)
@click.option(
    "--dtype", type=click.Choice(("fp32", "bf16", "fp16", "fp64")), default="fp32", show_default=True
)
@click.option("--device", default="cpu", show_default=True, help="cpu, cuda, cuda:1, ...")
@click.option(
    "--threads",
    type=click.IntRange(1, 1024),
    default=None,
    help="CPU threads [default: 1 for a small model, whose products are too small to share; else all].",
)
@click.option(
    "--step",
    type=click.Choice(("eager", "static", "compiled", "cuda-graph")),
    default="eager",
    show_default=True,
    help="How a verification step is launched.",
)
@click.option(
    "--baseline/--no-baseline", default=True, show_default=True, help="Also decode autoregressively."
)
@output_options
def decode(
    prompts: tuple[str, ...],
    prompt_file: Path | None,
    baseline: bool,
    output: Output,
    data_dir: Path | None,
    **options: Any,
) -> None:
    """Continue prompts with a real model and show tokens per step, accepted lengths and tokens/s.

    Times are this machine's; the first prompt token to the first new token is prefill_s, all steps
    together decode_s, and tokens_per_s counts the tokens that steps emitted.
    """
    require_decoder_extra()
    import pandas as pd
    import pyarrow as pa

    from medusa_sim.report.text import TextTable

    texts = [*prompts, *([_text(prompt_file)] if prompt_file else [])]
    if not texts:
        raise UsageError('decode needs a prompt: --prompt "def " or --prompt-file FILE')
    records = _decoded(texts, options, data_dir, baseline=baseline)
    if output.form == "csv":  # which has no lists
        records = [
            {name: json.dumps(value) if isinstance(value, list) else value for name, value in record.items()}
            for record in records
        ]
    if output.form != "table":
        output.rows(pd.DataFrame(records), "decode")
        return
    shown = (
        "method",
        "acceptance",
        "tree",
        "new_tokens",
        "steps",
        "tokens_per_step",
        "tokens_per_s",
        "prefill_s",
        "decode_s",
    )
    parts = []
    for i, text in enumerate(texts):
        mine = [record for record in records if record["sequence"] == i]
        parts.append(f"{text}{mine[0]['text']}\n")
        frame = pd.DataFrame(mine)[list(shown)]
        parts.append(output.drawn(TextTable.of(pa.Table.from_pandas(frame, preserve_index=False))))
        lengths = " ".join(map(str, mine[0]["accepted_lengths"]))
        parts.append(f"accepted draft tokens per step ({mine[0]['method']}): {lengths}\n")
    output.text("\n".join(parts))


def _folder(name_or_path: str, data_dir: Path | None) -> Path:
    from medusa_sim.data import find
    from medusa_sim.decoder.methods import CHECKPOINTS

    path = Path(name_or_path)
    if path.is_dir():
        return path
    found = find(CHECKPOINTS, name_or_path, data_dir) if path.name == name_or_path else None
    if found is None:
        raise SpecError(
            f"checkpoint {name_or_path!r}: no such folder, and no shipped checkpoint of that name"
        )
    return found


def _text(path: Path) -> str:
    """A prompt file. Raises DataError where it is no text."""
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = "not a text file in UTF-8" if isinstance(error, UnicodeDecodeError) else error.strerror
        raise DataError(f"--prompt-file {path}: {reason}; give a text file") from None


def _decoded(
    texts: list[str], options: dict[str, Any], data_dir: Path | None, *, baseline: bool
) -> list[dict[str, Any]]:
    import torch

    from medusa_sim.decoder.checkpoint import DTYPES, load_checkpoint
    from medusa_sim.decoder.fast_step import FORWARDS
    from medusa_sim.decoder.generate import GenerationSettings, generate
    from medusa_sim.decoder.methods import SHIPPED_CHECKPOINT, SHIPPED_DRAFT, make_method
    from medusa_sim.decoder.tokenizer import decode as text_of
    from medusa_sim.decoder.tokenizer import encode, load_tokenizer

    try:
        device = torch.device(options["device"])
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError) as error:
        raise UsageError(f"--device {options['device']}: {str(error).splitlines()[0]}") from error
    dtype = DTYPES[options["dtype"]]
    folder = _folder(options["checkpoint"] or SHIPPED_CHECKPOINT, data_dir)
    target: Checkpoint = load_checkpoint(folder, heads_path=options["heads"], dtype=dtype, device=device)
    tokenizer = load_tokenizer(folder)
    if options["threads"] is not None or target.model.config.hidden_size < SHARED_FROM_HIDDEN:
        torch.set_num_threads(options["threads"] or 1)
    draft = None
    if options["method"] in ("sd", "specinfer", "spectr", "rsd-c", "rsd-s"):
        draft = load_checkpoint(
            _folder(options["draft"] or SHIPPED_DRAFT, data_dir), dtype=dtype, device=device
        ).model
    chosen = {"temperature": options["temperature"], "acceptance": options["acceptance"]}
    methods = [make_method(options["method"], target, draft=draft, tree=options["tree"], **chosen)]
    if baseline and options["method"] != "ar":
        methods.append(make_method("ar", target, temperature=options["temperature"]))
    prompts = [encode(tokenizer, text) for text in texts]
    make_forward = FORWARDS.get(options["step"])
    records = []
    for method in methods:
        settings = GenerationSettings(
            max_new_tokens=options["max_new_tokens"],
            temperature=options["temperature"],
            acceptance=method.acceptance,
            seed=options["seed"],
        )
        # A first short run pays for allocations and compilation, so that the times below are of steps alone.
        warm_up = replace(settings, max_new_tokens=min(3, settings.max_new_tokens))
        generate(target.model, prompts, warm_up, method.drafter, make_forward=make_forward)
        run = generate(target.model, prompts, settings, method.drafter, make_forward=make_forward)
        for i, (text, sequence) in enumerate(zip(texts, run.sequences, strict=True)):
            emitted = len(sequence.token_ids) - 1
            records.append(
                {
                    "sequence": i,
                    "method": method.name,
                    "acceptance": settings.rule,
                    "tree": method.tree,
                    "prompt": text,
                    "token_ids": sequence.token_ids,
                    "text": text_of(tokenizer, sequence.token_ids),
                    "new_tokens": len(sequence.token_ids),
                    "steps": sequence.steps,
                    "tokens_per_step": sequence.tokens_per_step,
                    "accepted_lengths": sequence.accepted_lengths,
                    "tokens_per_s": emitted / run.decode_s if sequence.steps else None,
                    "prefill_s": run.prefill_s,
                    "decode_s": run.decode_s if sequence.steps else 0.0,
                }
            )
    return records
