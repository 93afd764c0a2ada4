"""`medusa-sim decode`: run the ground-truth decoder beside plain autoregressive decoding."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import click

from medusa_sim.cli import examples
from medusa_sim.cli.options import SEED_MAX, Sectioned, output_options, require_decoder_extra
from medusa_sim.cli.output import Output
from medusa_sim.cli.values import Threads
from medusa_sim.errors import DataError, UsageError
from medusa_sim.reading import TABLE_BYTES, read_text

METHODS = ("medusa", "ar", "sd", "specinfer", "spectr", "rsd-c", "rsd-s", "ngram")


@click.command(
    cls=Sectioned,
    epilog=examples(
        'medusa-sim decode --prompt "def "',
        'medusa-sim decode --prompt "class " --method rsd-s --tree 4x3 --temperature 0.7 --format json',
    ),
)
@click.option("--prompt", "prompts", multiple=True, help="Text to continue; give it again for a batch.")
@click.option(
    "--prompt-file",
    type=click.Path(path_type=Path, exists=True, dir_okay=False),
    help="File whose whole text is one more prompt.",
)
@click.option(
    "--checkpoint", help="Folder or name of a shipped checkpoint [default: the shipped Medusa-2 model]."
)
@click.option("--head-file", type=click.Path(path_type=Path), help="Medusa heads of a Medusa-1 repository.")
@click.option("--draft", help="Folder or name of the draft model [default: the shipped one].")
@click.option("--method", type=click.Choice(METHODS), default="medusa", show_default=True)
@click.option(
    "--tree",
    help="medusa: auto (what pays on this device; the default), candidates (64), a branching (4-2-1) or a "
    "file of paths. sd, ngram: length (4). specinfer, rsd-c: branching (2-2-1). spectr, rsd-s: paths or "
    "beams x depth (4x3).",
)
@click.option(
    "--rule",
    type=click.Choice(("greedy", "typical", "rejection")),
    help="Which drafts are accepted above temperature 0 [default: rejection, which keeps the model's "
    "distribution].",
)
@click.option(
    "--acceptance",
    help="Acceptance profile (name or file) whose head accuracies shape medusa's trees "
    "[default: the checkpoint's own].",
)
@click.option(
    "--ngram-max",
    type=click.IntRange(1, 64),
    default=3,
    show_default=True,
    help="ngram: longest n looked up.",
)
@click.option(
    "--match",
    type=click.Choice(("earliest", "latest")),
    default="earliest",
    show_default=True,
    help="ngram: which earlier copy is continued.",
)
@click.option("--chat", is_flag=True, help="Put each prompt into the checkpoint's chat template.")
@click.option(
    "--keep-space", is_flag=True, help="Keep a prompt's last space, which words of the model bring along."
)
@click.option("--temperature", type=click.FloatRange(min=0), default=0.6, show_default=True)
@click.option("--max-new-tokens", type=click.IntRange(min=1), default=128, show_default=True)
@click.option("--seed", type=click.IntRange(0, SEED_MAX), default=0, show_default=True)
@click.option(
    "--dtype",
    type=click.Choice(("fp32", "bf16", "fp16", "fp64")),
    help="[default: fp32 on a CPU, else the half precision of the checkpoint]",
)
@click.option("--device", default="cpu", show_default=True, help="cpu, cuda, cuda:1, ...")
@click.option(
    "--threads",
    type=Threads(),
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
    "--plain/--no-plain", default=True, show_default=True, help="Also decode plainly, for comparison."
)
@output_options
def decode(
    prompts: tuple[str, ...],
    prompt_file: Path | None,
    output: Output,
    data_dir: Path | None,
    **options: Any,
) -> None:
    """Continue prompts with a real model, beside plain decoding: what is gained here, and why.

    Without --tree, steps of 1 to 16 candidates are timed for a third of a second and divided into the tokens
    per step that the acceptance profile expects; where nothing gains, decoding is plain. Times are this
    machine's: the first prompt token to the first new token is prefill_s, all steps together decode_s
    (compilation and capture, setup_s, left out); tokens_per_s counts the tokens that steps emitted.
    """
    require_decoder_extra()
    import pandas as pd
    import pyarrow as pa

    from medusa_sim.decoder.session import Request, decoded
    from medusa_sim.report.text import TextTable

    texts = [
        *prompts,
        *(
            [read_text(prompt_file, TABLE_BYTES, "a text file as --prompt-file", DataError)]
            if prompt_file
            else []
        ),
    ]
    if not texts:
        raise UsageError('decode needs a prompt: --prompt "def " or --prompt-file FILE')
    answer = decoded(Request(texts=texts, data_dir=data_dir, **options))
    for note in answer.notes:
        click.echo(f"note: {note}", err=True)
    records = answer.records
    if output.form == "csv":  # which has no lists
        records = [
            {name: json.dumps(value) if isinstance(value, list) else value for name, value in record.items()}
            for record in records
        ]
    if output.form != "table":
        output.rows(pd.DataFrame(records), "decode", headline=answer.headline, gain=answer.gain)
        return
    shown = (
        "method",
        "rule",
        "tree",
        "new_tokens",
        "steps",
        "tokens_per_step",
        "tokens_per_s",
        "prefill_s",
        "decode_s",
    )
    parts = [f"{answer.headline}\n"]
    for i, text in enumerate(texts):
        mine = [record for record in records if record["sequence"] == i]
        parts.append(f"{text}{mine[0]['text']}\n")
        frame = pd.DataFrame(mine)[list(shown)]
        parts.append(output.drawn(TextTable.of(pa.Table.from_pandas(frame, preserve_index=False))))
        for record in mine:
            if record["method"] != "ar":
                lengths = " ".join(map(str, record["accepted_lengths"]))
                parts.append(f"accepted draft tokens per step ({record['method']}): {lengths}\n")
    output.text("\n".join(parts))
