"""`medusa-sim card`: the answer as a picture to send."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from medusa_sim.cli import options as take
from medusa_sim.cli import say
from medusa_sim.cli.recommend import EVERY_BATCH, users_machine
from medusa_sim.cli.values import Whole, grid
from medusa_sim.scenario.defaults import DEFAULT_BATCHES
from medusa_sim.scenario.question import QUESTION, Question


@take.command(
    "medusa-sim card --gpu h100-sxm --model llama-3.1-8b --drafter eagle3 -o card.png",
    "medusa-sim card --gpu h200-sxm --tp 8 --model deepseek-r1 --drafter mtp --at 16 --dark -o card.svg",
)
@take.scenario("given", "scope", "baseline")
@click.option(
    "--batch",
    default=f"{DEFAULT_BATCHES[0]}..{DEFAULT_BATCHES[1]}",
    show_default=True,
    type=grid(EVERY_BATCH),
    help="Range of batches that the curve shows.",
)
@click.option("--at", type=Whole(min=1), help="Batch that the card is about [the smallest].")
@take.lengths
@take.arguments("asked", QUESTION)
@click.option("--dark", is_flag=True, help="Light letters on a dark page.")
@click.option("-o", "--output", "path", required=True, type=take.FILE, help="FILE.png or FILE.svg.")
@take.overwrite
def card(
    *,
    given: dict[str, Any],
    batch: tuple[int, ...],
    at: int | None,
    seq_len: tuple[int, ...],
    asked: dict[str, Any],
    dark: bool,
    path: Path,
    overwrite: bool,
) -> None:
    """The answer as a picture to send: set-up, verdict, curve, what it rests on, version and date.

    1200 x 630 pixels. The numbers are those of `recommend` with the same options; a file that is there is
    replaced with --overwrite alone.
    """
    from medusa_sim.plan.recommend import recommend
    from medusa_sim.report.card import card_figure, check_card_path
    from medusa_sim.report.figures.files import save

    check_card_path(path, overwrite=overwrite)
    users_machine(given)
    (one,) = take.scenarios(given)
    question = Question(batch_min=min(batch), batch_max=max(batch), seq_len=seq_len, **asked)
    save(card_figure(recommend(one, question), at, dark=dark), path)
    say(f"wrote {path}")
