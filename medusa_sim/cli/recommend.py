"""`medusa-sim recommend`: speculate or not, with how many candidates at which batch and context."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import click

from medusa_sim.cli import options as take
from medusa_sim.cli import say, warn
from medusa_sim.cli.output import Output, ReportPlace, command_line
from medusa_sim.cli.values import BATCH, Axis, grid
from medusa_sim.errors import UsageError
from medusa_sim.export import ENGINES
from medusa_sim.scenario.declare import FLAG, WORD, Declared, argument, declared
from medusa_sim.scenario.defaults import DEFAULT_BATCHES, KERNELS_ALONE
from medusa_sim.scenario.question import EVERY_BATCH_TO, QUESTION, Question

if TYPE_CHECKING:
    from collections.abc import Iterator

    from medusa_sim.plan.recommendation import Recommendation
    from medusa_sim.scenario.scenario import Scenario

EVERY_BATCH = Axis(powers_of_two=False, largest=BATCH.largest)


@dataclass(frozen=True, kw_only=True)
class Export(Declared):
    """Launch settings that are asked for; engine None: none are. Raises UsageError for what needs one."""

    engine: str | None = argument(
        None, WORD, "Write an engine's launch settings.", option="--export", choices=ENGINES
    )
    engine_version: str | None = argument(
        None, WORD, "Version of that engine [the one that the export names]."
    )
    ab: bool = argument(
        False,
        FLAG,
        "With --export: commands that check the answer on the engine, by synthetic acceptance.",
    )
    draft_path: str | None = argument(None, WORD, "Draft checkpoint to name in the engine's settings.")

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.engine is None and self.changed:
            option = declared(Export)[next(iter(self.changed))].option
            raise UsageError(f"{option} is for launch settings; say of which engine with --export vllm")


@take.command(
    "medusa-sim recommend --gpu a100-80gb-pcie --model vicuna-7b --batch 1..64 --seq 1024,4096",
    "medusa-sim recommend --gpu h100-sxm --model llama-3.1-8b --drafter eagle --draft-vocab 32000 "
    "--acceptance 0.7 --export vllm",
    "medusa-sim recommend --acceptance heads.csv --format json -o answer.json",
    "medusa-sim recommend --bench llama-bench.json --drafter mtp --acceptance 0.7 --batch 1",
)
@take.scenario("given", "scope", "baseline")
@click.option(
    "--batch",
    default=f"{DEFAULT_BATCHES[0]}..{DEFAULT_BATCHES[1]}",
    show_default=True,
    type=grid(EVERY_BATCH),
    help=f"Range of batches; every size to {EVERY_BATCH_TO} is searched, every 2 % beyond.",
)
@take.lengths
@take.arguments("asked", QUESTION)
@take.record("export", Export)
@click.option(
    "--by-count",
    is_flag=True,
    help="Instead a row for every batch and count of candidates: the curves behind the answer.",
)
@click.option(
    "--ask-bench",
    is_flag=True,
    help="Only print the command whose output --bench takes (llama.cpp, MLX).",
)
@take.record("report", ReportPlace)
@take.output
def recommend(
    *,
    given: dict[str, Any],
    batch: tuple[int, ...],
    seq_len: tuple[int, ...],
    asked: dict[str, Any],
    export: Export,
    by_count: bool,
    ask_bench: bool,
    report: ReportPlace,
    output: Output,
) -> None:
    """Whether speculation pays, and how many candidates to verify at which batch and context.

    The table gives the answer first, then a schedule by batch, then what follows from it; --format json
    carries everything, --format csv the schedule. --export writes launch settings instead.
    """
    from medusa_sim.doubts.of_scenario import scenario_doubts
    from medusa_sim.plan.recommend import recommend as answered
    from medusa_sim.report.recommend.screen import search_note

    if ask_bench:
        from medusa_sim.gpus.local import LLAMA_CPP
        from medusa_sim.scenario.local_rows import bench_command

        output.text(bench_command(str(given["runtime"] or LLAMA_CPP)) + "\n")
        return
    users_machine(given)
    question = Question(batch_min=min(batch), batch_max=max(batch), seq_len=seq_len, **asked)
    if export.engine is not None and not take.is_given("runtime") and given["bench"] is None:
        given["runtime"] = runtime_of(export.engine, given["drafter"])
    (one,) = take.scenarios(given)
    for line in narrowed(one):
        say(line)
    answer = answered(one, question)
    # tables and Markdown say them themselves
    if export.engine is not None or by_count or output.form not in ("table", "md"):
        warn(scenario_doubts(one))
        for line in search_note(answer):
            say(line)
    if report.folder is not None:
        from medusa_sim.report.recommend.page import recommend_blocks

        report.write(recommend_blocks(answer, command_line()))
    if by_count:
        from medusa_sim.grid.sweep import count_table

        output.rows(count_table(answer.cells.by_count), "recommend-by-count")
    elif export.engine is not None:
        _show_settings(output, answer, export, export.engine)
    else:
        _show(output, answer)


def users_machine(given: dict[str, Any]) -> None:
    """Fill arguments that were not given from rows of the user's machine; UsageError without a device."""
    if given["bench"] is None:
        return
    from medusa_sim.scenario.local_rows import read_rows

    found = read_rows(given["bench"])
    told: dict[str, Any] = {name: value for name, value in found.told.items() if not take.is_given(name)}
    if str(given["model"]).lower().endswith(".gguf"):  # which says the type of each tensor
        told.pop("weight_dtype", None)
    counted = found.acceptance(given["max_drafts"] if take.is_given("max_drafts") else None)
    if counted is not None and not take.is_given("acceptance"):
        told["acceptance"] = counted
    for name, value in told.items():
        say(f"{name.replace('_', ' ')} {value}, as {given['bench'].name} says")
    given |= told
    if "gpu" not in told and not take.is_given("gpu"):
        raise UsageError(f"{given['bench']} does not say on which device it ran: give --gpu")


def narrowed(one: Scenario) -> Iterator[str]:
    """How much better a machine is known by its own rows."""
    if one.arguments.bench is None:
        return
    from medusa_sim.latency.local import LocalLatency
    from medusa_sim.report.words.numbers import percent
    from medusa_sim.scenario.local_correction import band_without_rows

    if isinstance(one.latency, LocalLatency):
        before, after = band_without_rows(one.latency), one.latency.law.band
        yield (
            f"80 % of steps lie within {percent(after, 0)} of what is predicted for your {one.gpu.name}, "
            f"without its rows within {percent(before, 0)}"
        )


def runtime_of(engine: str, drafter: str | None) -> str | None:
    """The runtime that settings of an engine are computed for: its own, else kernels alone.

    None for settings of no engine: the default of the drafter. An engine that does not run the drafter says
    so itself, when the settings are written.
    """
    from medusa_sim.engines.runtime import load_runtime, runtime_aliases

    if engine == "json":
        return None
    if engine not in runtime_aliases():
        return KERNELS_ALONE
    terms = load_runtime(engine).engine
    runs = terms is not None and (drafter is None or drafter in terms.drafters)
    return engine if runs else KERNELS_ALONE


def _show_settings(output: Output, answer: Recommendation, export: Export, engine: str) -> None:
    from medusa_sim.export.ab import ab_script
    from medusa_sim.export.engines import engine_settings

    settings = engine_settings(answer, engine, version=export.engine_version, draft_path=export.draft_path)
    for note in settings.notes:
        say(f"note: {note}")
    output.text(ab_script(answer, settings) if export.ab else settings.text)


def _show(output: Output, answer: Recommendation) -> None:
    if output.form == "json":
        from medusa_sim.report.recommend.python import recommendation_json

        output.text(recommendation_json(answer, command_line()))
    elif output.form in ("csv", "parquet"):
        from medusa_sim.report.recommend.python import schedule_arrow
        from medusa_sim.report.words.cost import price_lines

        for line in price_lines([answer.scenario]):
            say(line)
        output.rows(schedule_arrow(answer), "recommend")
    else:
        from medusa_sim.report.recommend.screen import recommend_screen

        output.screen(recommend_screen(answer))
