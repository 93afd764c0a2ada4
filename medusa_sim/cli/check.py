"""`medusa-sim check`: a running engine beside its prediction."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from medusa_sim.cli import options as take
from medusa_sim.cli import say
from medusa_sim.cli.output import Output
from medusa_sim.errors import ThresholdError, UsageError
from medusa_sim.plan.question import Measured


@take.command(
    "medusa-sim check --gpu h100-sxm --model llama-3.1-8b --drafter eagle3 --bench spec.json plain.json",
    "medusa-sim check --gpu h100-sxm --model llama-3.1-8b --drafter eagle3 --seq 600 "
    "--counters http://127.0.0.1:8000/metrics --wait 60",
    "medusa-sim check --gpu h100-sxm --model llama-3.1-8b --drafter eagle3 --batch 8 --seq 600 "
    "--measured-tpot-ms 5.1 --accepted-by-position 0.70,0.42,0.21",
)
def check(
    *,
    more: tuple[Path, ...] = take.arg(**take.FILES),
    given: dict[str, Any] = take.scenario("scope", "baseline"),
    files: tuple[Path, ...] = take.opt(
        "Result of a load generator (as `calibrate engine`); beside the run with drafts also one without.",
        None,
        take.FILE,
        "--bench",
        multiple=True,
    ),
    counters: str | None = take.opt(
        "Acceptance as the engine counted it (as `acceptance from-engine`): a file, or the URL of its "
        "/metrics page, which in vLLM also tells speed and batch."
    ),
    how: take.Counters = take.record(take.Counters),
    asked: Measured = take.record(Measured),
    output: Output = take.OUTPUT,
) -> None:
    """Whether a running engine is as fast as predicted, or which part is off and by how much.

    Acceptance by position, the time of a round and, where it was measured, of plain decoding are compared
    with their 80 % bands; the sentence names what is off, its milliseconds, and what to look at next. Exit 3
    where a part is outside of its band.
    """
    from medusa_sim.acceptance.engine_counters import combined
    from medusa_sim.calibrate.engine_run import engine_run
    from medusa_sim.plan.check import check as checked
    from medusa_sim.report.check_text import Checked

    if more and not files:
        raise UsageError(f"{more[0]}: say what it is: --bench FILE..., or --counters FILE")
    if how.before is not None and not counters:
        raise UsageError("--before belongs to the page after it; give --counters FILE")
    counts = None if counters is None else combined(how.read(counters))
    (one,) = take.scenarios(given)
    answer = Checked(check=checked(*engine_run(one, (*files, *more), counts, asked)))
    for line in answer.check.scenario.warnings:
        say(line)
    if output.form == "table":
        import pyarrow as pa

        from medusa_sim.report.text import TextTable

        table = TextTable.of(pa.Table.from_pandas(answer.frame, preserve_index=False).to_pydict())
        output.text(f"{answer.sentence}\n\n{output.drawn(table).rstrip()}\n")
    else:
        say(answer.sentence)
        output.rows(answer.frame, "check", **answer.values)
    if not answer.is_inside:
        raise ThresholdError(f"{' and '.join(answer.off)} outside of the 80 % band")
