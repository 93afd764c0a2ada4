"""`medusa-sim train`: a backbone, Medusa-1 or Medusa-2 heads, from text or from the model's own."""

from __future__ import annotations

import math
import sys
import time
from pathlib import Path
from typing import Any

import click

from medusa_sim.cli import examples
from medusa_sim.cli.options import (
    SEED_MAX,
    PositiveFloat,
    Sectioned,
    output_options,
    overwrite_option,
    require_decoder_extra,
)
from medusa_sim.cli.output import Output
from medusa_sim.errors import UsageError


@click.command(
    cls=Sectioned,
    epilog=examples(
        "medusa-sim train --method backbone --save run/base --steps 2000",
        "medusa-sim train --method medusa-1 --checkpoint run/base --save run/medusa-1 --steps 800",
        "medusa-sim train --method medusa-2 --checkpoint run/medusa-1 --save run/medusa-2 --steps 600",
        "medusa-sim train --method medusa-2 --data self --checkpoint run/medusa-1 --save run/self",
    ),
)
@click.option(
    "--method",
    type=click.Choice(("backbone", "medusa-1", "medusa-2")),
    required=True,
    help="backbone: a small Llama from scratch. medusa-1: heads only. medusa-2: heads and a LoRA adapter.",
)
@click.option(
    "--save",
    type=click.Path(path_type=Path),
    required=True,
    help="Folder of the checkpoint to write: a new one, an empty one, or with --overwrite one of its own.",
)
@overwrite_option
@click.option("--checkpoint", type=click.Path(path_type=Path), help="Checkpoint folder to start from.")
@click.option(
    "--data",
    type=click.Choice(("text", "self")),
    default="text",
    show_default=True,
    help="text: Python source. self: continuations that the model writes itself (self-distillation).",
)
@click.option(
    "--text",
    "text_folder",
    type=click.Path(path_type=Path, exists=True, file_okay=False),
    help="Folder of .py files [default: this Python's standard library without its tests].",
)
@click.option("--steps", type=click.IntRange(min=1), default=2000, show_default=True)
@click.option("--batch", type=click.IntRange(min=1), default=16, show_default=True, help="Texts per step.")
@click.option("--length", type=click.IntRange(min=8), default=256, show_default=True, help="Tokens per text.")
@click.option("--learning-rate", type=PositiveFloat(), help="Peak [default: by method].")
@click.option("--seed", type=click.IntRange(0, SEED_MAX), default=0, show_default=True)
@click.option(
    "--vocab", type=click.IntRange(min=257), default=1024, show_default=True, help="Of a new tokenizer."
)
@click.option(
    "--hidden", type=click.IntRange(min=8), default=128, show_default=True, help="Width of a new backbone."
)
@click.option("--intermediate", type=click.IntRange(min=8), default=384, show_default=True)
@click.option("--layers", type=click.IntRange(min=1), default=5, show_default=True)
@click.option("--attention-heads", type=click.IntRange(min=1), default=4, show_default=True)
@click.option("--kv-heads", type=click.IntRange(min=1), default=2, show_default=True)
@click.option(
    "--medusa-heads",
    type=click.IntRange(min=1),
    help="New heads, where the checkpoint has none [default: 5].",
)
@click.option(
    "--medusa-layers", type=click.IntRange(min=1), help="Residual blocks of a new head [default: 1]."
)
@click.option(
    "--own-output/--shared-output",
    default=None,
    help="An output layer per new head, or the LM head [default: own].",
)
@click.option(
    "--lambda-0", type=float, default=0.2, show_default=True, help="Weight of the heads' loss in medusa-2."
)
@click.option("--schedule", type=click.Choice(("constant", "sine")), default="constant", show_default=True)
@click.option(
    "--responses",
    type=click.IntRange(min=1),
    default=512,
    show_default=True,
    help="Own texts with --data self.",
)
@click.option(
    "--temperature", type=click.FloatRange(min=0), default=0.7, show_default=True, help="Of own texts."
)
@click.option(
    "--dtype",
    type=click.Choice(("fp32", "bf16", "fp16")),
    default="fp16",
    show_default=True,
    help="Of the saved weights.",
)
@click.option(
    "--compile/--no-compile", "compiled", default=False, help="torch.compile the loss (needs a C++ compiler)."
)
@click.option("--plot", type=click.Path(path_type=Path), help="Also draw the losses into this PNG file.")
@output_options
def train(plot: Path | None, output: Output, data_dir: Path | None, **values: Any) -> None:
    """Train a checkpoint that `decode` runs. A killed run goes on when the same command is given again."""
    del data_dir
    for name in ("lambda_0", "temperature"):
        if not math.isfinite(values[name]):
            raise UsageError(f"--{name.replace('_', '-')} {values[name]}: a finite number is needed")
    require_decoder_extra(*(["peft"] if values["method"] == "medusa-2" else []))
    import pandas as pd

    from medusa_sim.decoder.training.recipe import Recipe, run_recipe
    from medusa_sim.writing import check_writable

    if plot is not None:
        check_writable(plot)
    recipe = Recipe(**values)
    trained = run_recipe(recipe, _Progress(recipe.steps), lambda text: click.echo(f"note: {text}", err=True))
    if plot is not None:
        _plot(trained.history, plot)
    row = {
        "method": trained.method,
        "steps": trained.steps,
        "parameters": trained.parameters,
        "first_loss": trained.first_loss,
        "last_loss": trained.last_loss,
        "heldout_loss": trained.heldout_loss,
        **{f"heldout_top1_head_{i}": value for i, value in enumerate(trained.heldout_top1)},
        "train_s": trained.train_s,
        "checkpoint": str(trained.checkpoint),
    }
    output.rows(pd.DataFrame([row]), "train")


class _Progress:
    """One line on a terminal, a line every hundred steps elsewhere; both on stderr."""

    def __init__(self, steps: int) -> None:
        self.steps, self.start, self.first = steps, time.monotonic(), 0

    def __call__(self, step: int, record: dict[str, float]) -> None:
        if not self.first:
            self.first = step
        elapsed = time.monotonic() - self.start
        left = elapsed / max(step - self.first, 1) * (self.steps - step)
        text = f"step {step}/{self.steps}  loss {record['loss']:.3f}  {left / 60:.1f} min left"
        if sys.stderr.isatty():
            click.echo(f"\r{text}   ", err=True, nl=step == self.steps)
        elif step % 100 == 0 or step == self.steps:
            click.echo(text, err=True)


def _plot(history: list[dict[str, float]], path: Path) -> None:
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot as plt

    from medusa_sim.writing import atomic

    figure, axes = plt.subplots(figsize=(7, 4))
    steps = [record["step"] for record in history]
    for name in history[0]:
        if name != "step":
            axes.plot(steps, [record[name] for record in history], label=name, linewidth=0.8)
    axes.set_xlabel("step")
    axes.set_ylabel("loss (nats per token)")
    axes.legend()
    with atomic(path) as file:
        figure.savefig(file, format="png", dpi=120, bbox_inches="tight")
    plt.close(figure)
