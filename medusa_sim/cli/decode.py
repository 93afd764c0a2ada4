"""`medusa-sim decode`: run the ground-truth decoder and plain autoregressive decoding."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from medusa_sim.cli import options as take
from medusa_sim.cli import say
from medusa_sim.cli.output import Output
from medusa_sim.errors import DataError, UsageError
from medusa_sim.lab.decoder.arguments import Request
from medusa_sim.outside.limits import TABLE_BYTES
from medusa_sim.reading.files import read_text
from medusa_sim.scenario.declare import declared
from medusa_sim.units import US_PER_S

if TYPE_CHECKING:
    from medusa_sim.report.table import TextTable


@take.command(
    'medusa-sim decode --prompt "def "',
    'medusa-sim decode --prompt "class " --method rsd-s --tree 4x3 --temperature 0.7 --format json',
)
@click.option("--prompt", "prompts", multiple=True, help="Text to continue; give it again for a batch.")
@click.option(
    "--prompt-file",
    type=click.Path(path_type=Path, exists=True, dir_okay=False),
    help="File whose whole text is one more prompt.",
)
@take.arguments("values", declared(Request))
@take.output
@take.data_dir
def decode(
    *,
    prompts: tuple[str, ...],
    prompt_file: Path | None,
    values: dict[str, Any],
    output: Output,
    data_dir: Path | None,
) -> None:
    """Continue prompts with a real model, with and without drafts: what is gained here, and why.

    Without --tree, steps of 1 to 16 candidates are timed for a third of a second and divided into the tokens
    per step that the acceptance profile expects; where nothing gains, decoding is plain. Times are this
    machine's: the first prompt token to the first new token is prefill_s, all steps together decode_s
    (capture, setup_s, left out); tokens_per_s counts the tokens that steps emitted.
    """
    take.require_decoder_extra()
    import pandas as pd

    from medusa_sim.lab.decoder.session import decoded

    texts = [*prompts]
    if prompt_file is not None:
        texts.append(read_text(prompt_file, TABLE_BYTES, "a text file as --prompt-file", DataError))
    if not texts:
        raise UsageError('decode needs a prompt: --prompt "def " or --prompt-file FILE')
    answer = decoded(Request(texts=texts, data_dir=data_dir, **values))
    for note in answer.notes:
        say(f"note: {note}")
    records = answer.records
    if output.form == "csv":  # which has no lists
        records = [
            {name: json.dumps(value) if isinstance(value, list) else value for name, value in record.items()}
            for record in records
        ]
    if output.form != "table":
        output.rows(pd.DataFrame(records), "decode", headline=answer.headline, gain=answer.gain)
        return
    parts = [f"{answer.headline}\n"]
    for i, text in enumerate(texts):
        mine = [record for record in records if record["sequence"] == i]
        parts.append(f"{text}{mine[0]['text']}\n")
        parts.append(output.drawn(_table(mine)))
        for record in mine:
            if record["method"] != "ar":
                lengths = " ".join(map(str, record["accepted_lengths"]))
                parts.append(f"accepted draft tokens per step ({record['method']}): {lengths}\n")
    output.text("\n".join(parts))


def _table(records: Sequence[dict[str, Any]]) -> TextTable:
    """One row for each method and prompt."""
    from medusa_sim.report.table import TextTable, cell_text
    from medusa_sim.report.words.numbers import NOTHING, duration, significant

    def rate(value: float | None) -> str:
        """Nothing where prefill alone ended the text."""
        return NOTHING if value is None else significant(value, 3)

    return TextTable.by_column(
        {
            "method": [str(record["method"]) for record in records],
            "rule": [cell_text("rule", record["rule"]) for record in records],
            "tree": [cell_text("tree", record["tree"]) for record in records],
            "new tokens": [str(record["new_tokens"]) for record in records],
            "steps": [str(record["steps"]) for record in records],
            "tokens/step": [rate(record["tokens_per_step"]) for record in records],
            "tokens/s": [rate(record["tokens_per_s"]) for record in records],
            "prefill": [duration(record["prefill_s"] * US_PER_S) for record in records],
            "decode": [duration(record["decode_s"] * US_PER_S) for record in records],
        },
        words=("method", "rule", "tree"),
    )
