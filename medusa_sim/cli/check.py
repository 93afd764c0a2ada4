"""`medusa-sim check`: a running engine compared with its prediction."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from medusa_sim.cli import options as take
from medusa_sim.cli import say, warn
from medusa_sim.cli.output import Output
from medusa_sim.errors import ThresholdError, UsageError
from medusa_sim.scenario.question import Measured


@take.command(
    "medusa-sim check --gpu h100-sxm --model llama-3.1-8b --drafter eagle3 --bench spec.json plain.json",
    "medusa-sim check --gpu h100-sxm --model llama-3.1-8b --drafter eagle3 --seq 600 "
    "--counters http://127.0.0.1:8000/metrics --wait 60",
    "medusa-sim check --gpu h100-sxm --model llama-3.1-8b --drafter eagle3 --batch 8 --seq 600 "
    "--measured-tpot-ms 5.1 --accepted-by-position 0.70,0.42,0.21",
)
@click.argument("more", **take.FILES)
@take.scenario("given", "scope", "baseline", "bench")
@click.option(
    "--bench",
    "files",
    type=take.FILE,
    multiple=True,
    help="Result of a load generator (as `calibrate engine`), with drafts and, if there is one, without.",
)
@click.option(
    "--counters",
    help="What the engine counted: a file, or the URL of its /metrics page (vLLM's has speed and batch too).",
)
@take.record("how", take.Counters)
@take.record("asked", Measured)
@take.output
def check(
    *,
    more: tuple[Path, ...],
    given: dict[str, Any],
    files: tuple[Path, ...],
    counters: str | None,
    how: take.Counters,
    asked: Measured,
    output: Output,
) -> None:
    """Whether a running engine is as fast as predicted, or which part is off and by how much.

    A result of a load generator, a page of counters or a log needs no option: it says what it is. Model and
    engine are those of the result where you give none; a result of another model than you give is refused.

    Acceptance by position, the time of a round and, where it was measured, of plain decoding are compared
    with their 80 % bands; the sentence names what is off, its milliseconds, and what to look at next. Exit 3
    where a part is outside its band.
    """
    from medusa_sim.acceptance.engine_counters import combined
    from medusa_sim.engine_runs.run import engine_run, told_by
    from medusa_sim.plan.check import check as checked
    from medusa_sim.report.check.python import CheckResult
    from medusa_sim.report.check.screen import check_screen

    files, counters = sorted_out(files, counters, more)
    if not files and not counters and not asked.changed:
        raise UsageError(
            "check needs what the engine gave: a benchmark's result, its log or counters as FILE, or "
            "--measured-tpot-ms with --batch and --drafts"
        )
    if how.before is not None and not counters:
        raise UsageError("--before belongs to the page after it; give --counters FILE")
    if files:
        told = {name: value for name, value in told_by(files, asked).items() if not take.is_given(name)}
        given |= told
        for name in told.keys() - {"drafter"}:
            say(f"{name} {told[name]}, as {files[0].name} says")
        if "gpu" not in told and not take.is_given("gpu"):
            raise UsageError(f"{files[0]} does not say on which GPU it ran: give --gpu")
    counts = None if counters is None else combined(how.read(counters))
    (one,) = take.scenarios(given)
    result = CheckResult(answer=checked(*engine_run(one, files, counts, asked)))
    if output.form in ("table", "md"):
        output.screen(check_screen(result.answer))
    else:
        warn(result.answer.warnings)
        say(result.sentence)
        output.rows(result.frame, "check", **result.values)
    if not result.is_inside:
        raise ThresholdError(f"{' and '.join(result.off)} outside the 80 % band")


def sorted_out(
    files: tuple[Path, ...], counters: str | None, more: tuple[Path, ...]
) -> tuple[tuple[Path, ...], str | None]:
    """Files that came without an option, among results of load generators and what an engine counted.

    Raises UsageError where counters would come from two places.
    """
    from medusa_sim.engine_runs.bench import is_bench

    for path in more:
        if is_bench(path):
            files += (path,)
        elif counters is None:
            counters = str(path)
        else:
            raise UsageError(f"{path}: counters are read from {counters}; give one of them")
    return files, counters
