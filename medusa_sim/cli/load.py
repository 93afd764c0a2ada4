"""`medusa-sim load`: requests over time under policies of speculation."""

from __future__ import annotations

import re
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from medusa_sim.cli.group import examples
from medusa_sim.cli.names import DRAFTERS, GPUS, MODELS, Listed
from medusa_sim.cli.options import (
    DRAFTER_HELP,
    SCENARIO_NAMES,
    Command,
    PositiveFloat,
    output_options,
    report_option,
    scenario_options,
    tp_option,
)
from medusa_sim.cli.output import Output, ReportPlace, command_line
from medusa_sim.cli.parts import PartsPlace, parts_options, write_parts
from medusa_sim.cli.sections import Sectioned
from medusa_sim.errors import UsageError
from medusa_sim.plan.defaults import (
    DEFAULT_DRAFTER,
    DEFAULT_GPU,
    DEFAULT_MODEL,
    LOAD_LENGTH_CV,
    LOAD_OUTPUT_TOKENS,
    LOAD_PREFIXES,
    LOAD_PROMPT_TOKENS,
    LOAD_REQUESTS,
    LOAD_SEEDS,
    LOAD_SHARE,
)

if TYPE_CHECKING:
    from medusa_sim.load.question import LoadAnswer

_ENTRY = re.compile(r"[0-9]+:[0-9]+")
_MOST_RATES = 100


class Rates(click.ParamType[tuple[float, ...]]):
    """Requests a second, or a list of them."""

    name = "rates"

    def convert(
        self, value: object, param: click.Parameter | None, ctx: click.Context | None
    ) -> tuple[float, ...]:
        """Finite numbers above 0, each once, in their order."""
        if isinstance(value, tuple):
            return value
        parts = [part.strip() for part in str(value).split(",")]
        if len(parts) > _MOST_RATES:
            self.fail(f"{len(parts)} rates; at most {_MOST_RATES} are run at once", param, ctx)
        return tuple(dict.fromkeys(PositiveFloat().convert(part, param, ctx) for part in parts))


class Policies(click.ParamType[tuple[str, ...]]):
    """Names of policies; the entries of a schedule may have commas of their own."""

    name = "policies"

    def convert(
        self, value: object, param: click.Parameter | None, ctx: click.Context | None
    ) -> tuple[str, ...]:
        """Each name once; what it means is checked with the scenario."""
        if isinstance(value, tuple):
            return value
        names: list[str] = []
        for part in (part.strip() for part in str(value).split(",")):
            if not part:
                self.fail(f"{value!r} holds an empty name", param, ctx)
            if names and names[-1].startswith("schedule=") and _ENTRY.fullmatch(part):
                names[-1] += f",{part}"
            else:
                names.append(part)
        return tuple(dict.fromkeys(names))


def _drafters(command: Command) -> Command:
    """--drafter as a list; the command gets `drafters`."""
    return click.option(
        "--drafter", "drafters", cls=Listed, type=DRAFTERS, default=DEFAULT_DRAFTER, show_default=True,
        help=f"{DRAFTER_HELP} With --out also a list a,b.",
    )(command)  # fmt: skip


@click.command(
    cls=Sectioned,
    short_help="Requests over time: latency, goodput, policies of speculation.",
    epilog=examples(
        "medusa-sim load --gpu h100-sxm --model llama-3.1-8b --drafter eagle3 --policy none,3 --tpot-ms 20",
        "medusa-sim load --gpu h100-sxm --model llama-3.1-8b --drafter eagle3 --rate 5,20,30 --report out",
        "medusa-sim load --gpu h100-sxm --model llama-3.1-8b --acceptance 0.7 --drafter eagle "
        "--trace azure_conv.csv",
    ),
)
@click.option(
    "--gpu", "gpus", type=GPUS, default=DEFAULT_GPU, show_default=True,
    help="`medusa-sim specs` lists them; with --out also a list a,b.",
)  # fmt: skip
@click.option(
    "--model",
    "models",
    type=MODELS,
    default=DEFAULT_MODEL,
    show_default=True,
    help="Model, or the path of a Hugging Face config.json; with --out also a list a,b.",
)
@click.option(
    "--policy",
    "policies",
    type=Policies(),
    default="none,schedule",
    show_default=True,
    help="Policies to compare: none, a number of drafts (3), schedule (by requests, computed), "
    "schedule=1:5,32:3,96:0 (given), schedule-context, adaptive (by measured acceptance, as SGLang), budget "
    "(most tokens/s at every step).",
)
@click.option(
    "--rate",
    "rates",
    type=Rates(),
    default=None,
    help="Requests a second, or a list 4,8,16; of a trace: to stretch it to [a quarter to nine tenths of "
    "what the server carries; of a trace its own].",
)
@click.option(
    "--trace",
    type=click.Path(path_type=Path),
    default=None,
    help="CSV or Parquet with the arrival, prompt and output tokens of each request.",
)
@click.option(
    "--users", type=click.IntRange(1), default=None, help="A closed loop instead: so many always in flight."
)
@click.option("--think-s", type=click.FloatRange(0.0), default=0.0, help="Pause of a user between requests.")
@click.option(
    "--requests", type=click.IntRange(1), default=LOAD_REQUESTS, show_default=True, help="Requests to draw."
)
@click.option(
    "--burstiness",
    type=PositiveFloat(),
    default=1.0,
    show_default=True,
    help="Shape of gamma-distributed gaps: 1 is Poisson, below comes in bursts.",
)
@click.option(
    "--ramp", type=PositiveFloat(), default=1.0, help="The rate goes to so many times the first, linearly."
)
@click.option(
    "--prompt-tokens",
    type=PositiveFloat(),
    default=LOAD_PROMPT_TOKENS,
    show_default=True,
    help="Mean prompt.",
)
@click.option(
    "--output-tokens",
    type=PositiveFloat(),
    default=LOAD_OUTPUT_TOKENS,
    show_default=True,
    help="Mean output.",
)
@click.option(
    "--length-cv",
    type=click.FloatRange(0.0, 10.0),
    default=LOAD_LENGTH_CV,
    show_default=True,
    help="Coefficient of variation of both lengths (log-normal; 0: all equal).",
)
@click.option("--ttft-ms", type=PositiveFloat(), default=None, help="Limit of the time to the first token.")
@click.option(
    "--tpot-ms", type=PositiveFloat(), default=None, help="Limit of a request's mean time per token."
)
@click.option("--e2e-ms", type=PositiveFloat(), default=None, help="Limit of a request's whole time.")
@click.option(
    "--share",
    type=click.FloatRange(0.0, 1.0, min_open=True),
    default=LOAD_SHARE,
    show_default=True,
    help="Of the requests that must keep the limits for a rate to count as carried.",
)
@click.option("--max-num-seqs", type=click.IntRange(1), default=None,
              help="Requests of one step [the engine's on the card].")  # fmt: skip
@click.option("--max-num-batched-tokens", type=click.IntRange(1), default=None,
              help="Tokens of one step, prompts among them [the engine's on the card].")  # fmt: skip
@click.option("--block-size", type=click.IntRange(1), default=16, show_default=True,
              help="Tokens of a KV block.")  # fmt: skip
@click.option("--prefix-hit-rate", type=click.FloatRange(0.0, 1.0, max_open=True), default=0.0,
              show_default=True, help="Share of a prompt's tokens found in the cache.")  # fmt: skip
@click.option(
    "--prefix",
    type=click.Choice(LOAD_PREFIXES),
    default=LOAD_PREFIXES[0],
    show_default=True,
    help="Whose that share is: one text of all requests, held once, or what each session said before.",
)
@click.option(
    "--acceptance-spread",
    type=click.FloatRange(0.0, 10.0),
    default=0.0,
    show_default=True,
    help="Standard deviation among requests on the logit of their acceptance; the mean stays the profile's.",
)
@click.option(
    "--seeds",
    type=click.IntRange(1, 100),
    default=None,
    help=f"Runs of each policy and rate; the same for every policy [{LOAD_SEEDS}; of a trace 1].",
)
@click.option(
    "--target-rate", type=PositiveFloat(), default=None, help="Count the GPUs that carry this rate."
)
@click.option("--drop-long", is_flag=True, help="Leave out requests that model or KV cache cannot hold.")
@click.option("--search/--no-search", default=True, help="Find what each policy carries, and where it loses.")
@click.option("--timeline", is_flag=True, help="Rows over time instead, of the first seed.")
@report_option
@tp_option
@partial(scenario_options, drafter=_drafters)
@parts_options
@output_options
def load(
    output: Output,
    parts: PartsPlace,
    gpus: tuple[str, ...],
    models: tuple[str, ...],
    drafters: tuple[str, ...],
    policies: tuple[str, ...],
    rates: tuple[float, ...] | None,
    target_rate: float | None,
    report: ReportPlace,
    *,
    search: bool,
    timeline: bool,
    **names: Any,
) -> None:
    """Requests over time on an engine: latencies, throughput and goodput of policies of speculation.

    The table says first what speculation is worth under this load; --format csv, json and parquet carry every
    metric of every policy and rate, with confidence intervals over the seeds. --out writes these rows as
    parts of a data set, for lists of GPUs, models and drafters, by any number of processes.
    """
    from medusa_sim.cli.progress import progress
    from medusa_sim.load.question import answered, load_test
    from medusa_sim.plan.scenario import Scenario

    parts.check(output)
    common = {key: names[key] for key in ("tp", *SCENARIO_NAMES) if key in names}
    scenarios = [
        Scenario(gpu=gpu, model=model, drafter=drafter, **common)
        for gpu in gpus
        for model in models
        for drafter in drafters
    ]
    asked = {key: value for key, value in names.items() if key not in common}
    if parts.folder is not None:
        of_one = {"--report": report.folder, "--timeline": timeline, "--target-rate": target_rate}
        for option, value in of_one.items():
            if value:
                raise UsageError(
                    f"{option} is about one scenario, and --out writes rows of many: leave one out"
                )
        from medusa_sim.parts.load_parts import LoadParts
        from medusa_sim.report.cost_text import price_lines

        told = (line for item in scenarios for line in item.warnings)
        for line in dict.fromkeys((*told, *price_lines(scenarios))):
            click.echo(line, err=True)
        work = LoadParts.of(scenarios, rates, {"policies": policies, **asked})
        write_parts(work, parts, "requests")
        return
    if len(scenarios) > 1:
        raise UsageError("several GPUs, models or drafters: say where their rows go with --out DIR")
    scenario = scenarios[0]
    test = load_test(scenario, policies=policies, **asked)
    with progress("requests") as tell:
        answer = answered(
            test,
            rates,
            search=search,
            target_rate=target_rate,
            advance=lambda done, total: tell(done, total, None),
        )
    _show(output, answer, timeline=timeline)
    if report.folder is not None:
        from medusa_sim.report.load_report import write_load_report

        report.write(write_load_report, answer, command=command_line())


def _show(output: Output, answer: LoadAnswer, *, timeline: bool) -> None:
    from medusa_sim.report import load_text
    from medusa_sim.report.load_rows import carried_values, load_arrow, timeline_arrow

    warned = load_text.warnings(answer)
    for line in warned if timeline or output.form not in ("table", "md") else ():
        click.echo(line, err=True)
    if timeline:
        output.rows(timeline_arrow(answer), "load-timeline")
        return
    if output.form in ("csv", "parquet", "json"):
        more = {
            "answer": load_text.sentence(answer),
            "carried": carried_values(answer),
            "warnings": warned,
        }
        output.rows(load_arrow(answer), "load", **more)
        return
    bullet = "- " if output.form == "md" else ""
    parts = [load_text.headline(answer.test), "", load_text.sentence(answer), ""]
    parts += [output.drawn(load_text.load_table(answer)).strip("\n"), ""]
    if answer.carried:
        parts += [output.drawn(load_text.carried_table(answer)).strip("\n"), ""]
    parts += [f"{bullet}{line}" for line in load_text.findings(answer)]
    if warned:
        parts += ["", *(f"warning: {line}" for line in warned)]
    output.text("\n".join(parts) + "\n")
