"""`medusa-sim train`: a backbone, Medusa-1 or Medusa-2 heads, from text or from the model's own."""

from __future__ import annotations

import dataclasses
import sys
import time
from pathlib import Path
from typing import Any

import click

from medusa_sim.cli import options as take
from medusa_sim.cli import say
from medusa_sim.cli.output import Output
from medusa_sim.lab.decoder.arguments import Recipe
from medusa_sim.scenario.declare import declared


@take.command(
    "medusa-sim train --method backbone --save run/base --steps 2000",
    "medusa-sim train --method medusa-1 --checkpoint run/base --save run/medusa-1 --steps 800",
    "medusa-sim train --method medusa-2 --checkpoint run/medusa-1 --save run/medusa-2 --steps 600",
    "medusa-sim train --method medusa-2 --data self --checkpoint run/medusa-1 --save run/self",
)
@take.arguments(
    "given",
    declared(Recipe),
    changes={"text_folder": {"type": click.Path(path_type=Path, exists=True, file_okay=False)}},
)
@click.option("--plot", type=take.FILE, help="Also draw the losses into this PNG, SVG or PDF file.")
@take.output
def train(*, given: dict[str, Any], plot: Path | None, output: Output) -> None:
    """Train a checkpoint that `decode` runs. A killed run goes on when the same command is given again."""
    recipe = Recipe(**given)
    take.require_decoder_extra(*(["peft"] if recipe.method == "medusa-2" else []))
    import pandas as pd

    from medusa_sim.lab.decoder.training.recipe import run_recipe

    if plot is not None:
        from medusa_sim.report.figures.files import check_plot_path

        check_plot_path(plot)
    trained = run_recipe(recipe, _Progress(recipe.steps), lambda text: say(f"note: {text}"))
    if plot is not None:
        from medusa_sim.report.charts.losses import losses_chart
        from medusa_sim.report.figures.draw import lines_figure
        from medusa_sim.report.figures.files import save

        save(lines_figure(losses_chart(trained.history)), plot)
        say(f"wrote {plot}")
    row: dict[str, Any] = {}
    for name, value in dataclasses.asdict(trained).items():
        if name == "heldout_top1":
            row |= {f"heldout_top1_head_{i}": top1 for i, top1 in enumerate(value)}
        elif name != "history":
            row[name] = str(value) if name == "checkpoint" else value
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
            say(text)
