"""`medusa-sim load`: requests over time under policies of speculation."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import click

from medusa_sim.cli import options as take
from medusa_sim.cli import say, warn
from medusa_sim.cli.output import Output, ReportPlace, command_line
from medusa_sim.cli.parts import PartsPlace, write_parts
from medusa_sim.cli.values import DRAFTERS, GPUS, MODELS, Reading, numbers
from medusa_sim.errors import UsageError
from medusa_sim.load.arguments import DEFAULT_POLICIES, LOAD

if TYPE_CHECKING:
    from medusa_sim.load.answer import LoadAnswer

_ENTRY = re.compile(r"[0-9]+:[0-9]+")
_MOST_RATES = 100


def rates_of(text: str) -> tuple[float, ...]:
    """Requests a second, each once, in their order. Raises UsageError for many, or one out of range."""
    from medusa_sim.load.requests import check_rate

    if (count := 1 + text.count(",")) > _MOST_RATES:
        raise UsageError(f"{count} rates; at most {_MOST_RATES} are run at once")
    rates = tuple(dict.fromkeys(numbers(text, take.PositiveFloat())))
    for rate in rates:
        check_rate(rate)
    return rates


def policies_of(text: str) -> tuple[str, ...]:
    """Names of policies, each once; the entries of a schedule may have commas of their own.

    What they mean is checked with the scenario. Raises UsageError for an empty name.
    """
    names: list[str] = []
    for part in (part.strip() for part in text.split(",")):
        if not part:
            raise UsageError(f"{text!r} holds an empty name")
        if names and "=" in names[-1] and _ENTRY.fullmatch(part):
            names[-1] += f",{part}"
        else:
            names.append(part)
    return tuple(dict.fromkeys(names))


_POLICIES = {"type": Reading("policies", policies_of), "default": ",".join(DEFAULT_POLICIES)}


@take.command(
    "medusa-sim load --gpu h100-sxm --model llama-3.1-8b --drafter eagle3 --policy none,3 --tpot-ms 20",
    "medusa-sim load --gpu h100-sxm --model llama-3.1-8b --drafter eagle3 --rate 5,20,30 --report out",
    "medusa-sim load --gpu h100-sxm --model llama-3.1-8b --acceptance 0.7 --drafter eagle "
    "--trace azure_conv.csv",
)
@take.scenario(
    "given",
    "scope",
    "baseline",
    "prompt_tokens",
    "length_cv",
    "output_tokens",
    lists={"gpu": GPUS, "model": MODELS, "drafter": DRAFTERS},
    lists_say=" With --out also a list a,b.",
)
@take.arguments("asked", LOAD, changes={"policies": _POLICIES})
@click.option(
    "--rate",
    "rates",
    type=Reading("rates", rates_of),
    help="Requests a second, or a list 4,8,16; a trace is stretched to it [1/4 to 9/10 of what is carried; a "
    "trace: its own].",
)
@click.option("--target-rate", type=take.PositiveFloat(), help="Count the GPUs that carry this rate.")
@click.option("--search/--no-search", default=True, help="Find what each policy carries, and where it loses.")
@click.option("--timeline", is_flag=True, help="Rows over time instead, of the first seed.")
@take.record("report", ReportPlace)
@take.record("parts", PartsPlace)
@take.output
def load(
    *,
    given: dict[str, Any],
    asked: dict[str, Any],
    rates: tuple[float, ...] | None,
    target_rate: float | None,
    search: bool,
    timeline: bool,
    report: ReportPlace,
    parts: PartsPlace,
    output: Output,
) -> None:
    """Requests over time on an engine: latencies, throughput and goodput of policies of speculation.

    The table says first what speculation is worth under this load; --format csv, json and parquet carry every
    metric of every policy and rate, with confidence intervals over the seeds. --out writes these rows as
    parts of a data set, for lists of GPUs, models and drafters, by any number of processes.
    """
    from medusa_sim.cli.progress import progress
    from medusa_sim.load.answer import run_load
    from medusa_sim.load.load_test import load_test

    parts.check(output)
    several = take.scenarios(given)
    if parts.out is not None:
        of_one = {"--report": report.folder, "--timeline": timeline, "--target-rate": target_rate}
        for option, value in of_one.items():
            if value:
                raise UsageError(
                    f"{option} is about one scenario, and --out writes rows of many: leave one out"
                )
        from medusa_sim.doubts.of_scenario import scenario_doubts
        from medusa_sim.parts.works import LoadParts
        from medusa_sim.report.words.cost import price_lines

        warn(dict.fromkeys(line for item in several for line in scenario_doubts(item)))
        for line in price_lines(several):
            say(line)
        work = LoadParts.of(several, rates, asked)
        write_parts(work, parts, "requests")
        return
    if len(several) > 1:
        raise UsageError("several GPUs, models or drafters: say where their rows go with --out DIR")
    test = load_test(several[0], **asked)
    with progress("requests") as advance:
        answer = run_load(test, rates, search=search, target_rate=target_rate, advance=advance)
    _show(output, answer, timeline=timeline)
    if report.folder is not None:
        from medusa_sim.report.load.page import load_blocks

        report.write(load_blocks(answer, command_line()))


def _show(output: Output, answer: LoadAnswer, *, timeline: bool) -> None:
    from medusa_sim.report.load.python import LoadResult
    from medusa_sim.report.load.screen import load_screen
    from medusa_sim.report.load.values import load_arrow, timeline_arrow

    if not timeline and output.form in ("table", "md"):
        output.screen(load_screen(answer))
        return
    result = LoadResult(answer=answer)
    warn(result.warnings)
    if timeline:
        output.rows(timeline_arrow(answer), "load-timeline")
    else:
        output.rows(load_arrow(answer), "load", **result.values)
