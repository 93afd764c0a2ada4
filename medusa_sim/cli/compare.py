"""`medusa-sim compare`: which GPUs, how many, split how, in which precision, with which drafter."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from medusa_sim.cli import options as take
from medusa_sim.cli import say, warn
from medusa_sim.cli.output import Output, ReportPlace, command_line
from medusa_sim.scenario.arguments import ARGUMENTS
from medusa_sim.scenario.declare import declared
from medusa_sim.scenario.defaults import DEFAULT_MODEL
from medusa_sim.setups.question import SetupChoices, SetupQuestion, prices_of

if TYPE_CHECKING:
    from medusa_sim.setups.loaded import Router

_UNTOLD = {"show_default": False}
SAID_OTHERWISE = (
    # what a set-up chooses
    *("gpu", "tp", "ep", "dp_attention", "dtype", "weight_dtype", "kv_dtype", "runtime", "drafter"),
    # the question's own
    *(name for name in ARGUMENTS if name in declared(SetupQuestion)),
    # one for each GPU, by --price
    "price",
    # the same in every set-up
    *("chain_only", "scope", "baseline"),
    # of one drafter or one machine
    *("heads", "match_rate", "draft_vocab", "bench"),
)
"""Arguments of a scenario that `compare` does not take as they are; every other holds for each set-up."""


@take.command(
    "medusa-sim compare --model llama-3.1-8b --tokens-per-s-per-user 50",
    "medusa-sim compare --gpu h200-sxm,b200 --model deepseek-r1 --gpus 4,8 --drafter none,mtp "
    "--prompt-tokens 1000 --output-tokens 1000 --tokens-per-s-per-user 50 --format csv",
    "medusa-sim compare --model llama-3.1-8b --rate 40 --tpot-ms 15 --price h100-sxm=2.5,b200=5",
)
@take.record("choices", SetupChoices)
@take.record("question", SetupQuestion, batches=_UNTOLD, drafts=_UNTOLD)
@click.option("--price", "prices", help="Dollars per GPU-hour: 2.5, or by GPU h100-sxm=2.5,b200=5.")
@click.option("--draft-path", help="Draft checkpoint to name in the launch command.")
@click.option(
    "--under-load",
    is_flag=True,
    help="Also simulate the best set-ups, with and without speculation, under --rate or --users.",
)
@click.option(
    "--router",
    default="least-load",
    type=click.Choice(("least-load", "round-robin")),
    help="How --under-load spreads requests over copies.",
)
@take.scenario("given", *SAID_OTHERWISE)
@take.record("report", ReportPlace)
@take.output
def compare(
    *,
    choices: SetupChoices,
    question: SetupQuestion,
    prices: str | None,
    draft_path: str | None,
    under_load: bool,
    router: Router,
    given: dict[str, Any],
    report: ReportPlace,
    output: Output,
) -> None:
    """Which set-up: every one that the model, the GPUs and the engines allow, priced at steady batches.

    The table says first which set-up meets the limits at the least cost, then what nothing beats, the
    runners-up within the interval, what was refused, and the command that starts the chosen one; --format
    csv and json carry every row.
    """
    from medusa_sim.cli.progress import progress
    from medusa_sim.report.compare.python import CompareResult, compare_values, with_warnings
    from medusa_sim.report.compare.screen import compare_screen, price_notes
    from medusa_sim.setups.search import compare as compared

    with progress("set-ups") as advance:
        given = {name: value for name, value in given.items() if not ARGUMENTS[name].is_default(value)}
        answer = compared(
            given.pop("model", DEFAULT_MODEL),
            question,
            choices,
            prices=prices_of(prices),
            advance=advance,
            load_tests=output.form != "table" or report.folder is not None,
            **given,
        )
    if report.folder is not None:
        from medusa_sim.report.compare.page import compare_blocks

        report.write(compare_blocks(answer, command_line()))
    fleets = CompareResult(answer=answer).under_load(router=router) if under_load else []
    if output.form == "table":
        output.screen(compare_screen(answer, fleets, draft_path))
        return
    warn(f"({number}) {line}" for number, line in enumerate(answer.warnings, start=1))
    for line in price_notes(answer):
        say(line)
    output.rows(with_warnings(answer), "compare", **compare_values(answer, fleets, draft_path))
