"""`medusa-sim check`: a running engine beside its prediction."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from medusa_sim.cli import examples
from medusa_sim.cli.options import (
    PositiveFloat,
    Sectioned,
    output_options,
    scenario_options,
    scenarios,
)
from medusa_sim.cli.output import Output
from medusa_sim.cli.values import BATCH
from medusa_sim.errors import ThresholdError, UsageError

_MEASURED = {
    "batch": "batch",
    "seq_len": "seq_len",
    "drafts": "drafts",
    "measured_tpot_ms": "tpot_ms",
    "measured_itl_ms": "itl_ms",
    "measured_tokens_per_s": "tokens_per_s",
    "plain_tpot_ms": "plain_tpot_ms",
    "accepted_by_position": "accepted_by_position",
    "tokens_per_step": "tokens_per_step",
}
"""Options that say by hand what was measured -> arguments of `plan.check.EngineRun.of`."""


class Shares(click.ParamType[tuple[float, ...]]):
    """Shares of the steps, by position."""

    name = "shares"

    def convert(
        self, value: object, param: click.Parameter | None, ctx: click.Context | None
    ) -> tuple[float, ...]:
        """Numbers in their order; what they may be is checked with the run."""
        if isinstance(value, tuple):
            return value
        parts: list[Any] = str(value).split(",")
        return tuple(float(click.FLOAT.convert(part, param, ctx)) for part in parts)


@click.command(
    cls=Sectioned,
    epilog=examples(
        "medusa-sim check --gpu h100-sxm --model llama-3.1-8b --drafter eagle3 --bench spec.json plain.json",
        "medusa-sim check --gpu h100-sxm --model llama-3.1-8b --drafter eagle3 --seq 600 "
        "--counters http://127.0.0.1:8000/metrics --wait 60",
        "medusa-sim check --gpu h100-sxm --model llama-3.1-8b --drafter eagle3 --batch 8 --seq 600 "
        "--measured-tpot-ms 5.1 --accepted-by-position 0.70,0.42,0.21",
    ),
)
@click.argument("more", nargs=-1, type=click.Path(path_type=Path), metavar="[FILE]...")
@scenario_options("scope", "baseline")
@click.option(
    "--bench",
    "files",
    multiple=True,
    type=click.Path(path_type=Path),
    help="Result of a load generator (as `calibrate engine`); beside the run with drafts also one without.",
)
@click.option(
    "--counters",
    default=None,
    help="Acceptance as the engine counted it (as `acceptance from-engine`): a file, or the URL of its "
    "/metrics page, which in vLLM also tells speed and batch.",
)
@click.option(
    "--before",
    type=click.Path(path_type=Path),
    default=None,
    help="The /metrics page from before the run, where --counters is the file of the one after it.",
)
@click.option(
    "--wait",
    "wait_s",
    type=click.FloatRange(0.0, 86_400.0),
    default=0.0,
    show_default=True,
    help="With a URL: seconds between two looks; 0 takes what was counted since the server started.",
)
@click.option("--batch", type=click.IntRange(1, BATCH.largest), default=None, help="Requests in flight.")
@click.option(
    "--seq",
    "seq_len",
    type=click.IntRange(1),
    default=None,
    help="Mean committed tokens of a request [prompt and half the output, else 1024].",
)
@click.option("--drafts", type=click.IntRange(0, 64), default=None, help="Draft tokens of a step; 0: none.")
@click.option("--measured-tpot-ms", type=PositiveFloat(), default=None, help="Time per token of a request.")
@click.option("--measured-tokens-per-s", type=PositiveFloat(), default=None, help="Of all requests together.")
@click.option(
    "--measured-itl-ms", type=PositiveFloat(), default=None, help="Median gap between two chunks: a round."
)
@click.option(
    "--plain-tpot-ms", type=PositiveFloat(), default=None, help="Time per token without speculation."
)
@click.option(
    "--accepted-by-position",
    type=Shares(),
    default=None,
    help="Share of the steps in which draft 1, 2, ... was accepted, as engines log it.",
)
@click.option(
    "--tokens-per-step",
    type=click.FloatRange(1.0),
    default=None,
    help="Mean acceptance length, the target's own token included.",
)
@output_options
def check(
    more: tuple[Path, ...],
    files: tuple[Path, ...],
    counters: str | None,
    before: Path | None,
    wait_s: float,
    output: Output,
    **names: Any,
) -> None:
    """Whether a running engine is as fast as predicted, or which part is off and by how much.

    Acceptance by position, the time of a round and, where it was measured, of plain decoding are compared
    with their 80 % bands; the sentence names what is off, its milliseconds, and what to look at next. Exit 3
    where a part is outside of its band.
    """
    from medusa_sim.acceptance.engine_counters import combined
    from medusa_sim.calibrate.engine_run import engine_run
    from medusa_sim.cli.acceptance import engine_counts
    from medusa_sim.plan.check import check as checked
    from medusa_sim.report.check_text import Checked

    if more and not files:
        raise UsageError(f"{more[0]}: say what it is: --bench FILE..., or --counters FILE")
    if before is not None and counters is None:
        raise UsageError("--before belongs to the page after it; give --counters FILE")
    counts = None
    if counters is not None:
        counts = combined(engine_counts(counters, before, wait_s=wait_s, timeout_s=5.0))
    (scenario,) = scenarios(names)
    asked = {ours: names[option] for option, ours in _MEASURED.items()}
    answer = Checked(check=checked(*engine_run(scenario, (*files, *more), counts, **asked)))
    for line in answer.check.scenario.warnings:
        click.echo(line, err=True)
    if output.form == "table":
        import pyarrow as pa

        from medusa_sim.report.text import TextTable

        table = TextTable.of(pa.Table.from_pandas(answer.frame, preserve_index=False))
        output.text(f"{answer.sentence}\n\n{output.drawn(table).rstrip()}\n")
    else:
        click.echo(answer.sentence, err=True)
        output.rows(answer.frame, "check", **answer.values)
    if not answer.is_inside:
        raise ThresholdError(f"{' and '.join(answer.off)} outside of the 80 % band")
