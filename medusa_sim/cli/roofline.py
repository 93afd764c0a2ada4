"""`medusa-sim roofline`: the operators of a model on the roofline of a GPU."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from medusa_sim.cli import options as take
from medusa_sim.cli import say
from medusa_sim.cli.output import Output
from medusa_sim.cli.values import BATCH, CANDIDATES, RUNTIME, SEQ_LEN, echo_grid, grid
from medusa_sim.scenario.arguments import ARGUMENTS
from medusa_sim.scenario.defaults import ALONE, DEFAULT_SEQ_LEN


@take.command(
    "medusa-sim roofline --model llama-33b --runtime paper --batch 16 --plot roofline.png",
    "medusa-sim roofline --gpu h100-sxm --model llama-3-8b --batch 1..64 --format csv",
)
@take.arguments(
    "names",
    ARGUMENTS,
    "gpu",
    "model",
    "tp",
    "ep",
    "dtype",
    "weight_dtype",
    "kv_dtype",
    "latency",
    "fallback",
    "kernels",
    "data_dir",
)
@click.option("--batch", default="1,16", show_default=True, type=grid(BATCH))
@click.option("--seq", "seq_len", default=str(DEFAULT_SEQ_LEN), show_default=True, type=grid(SEQ_LEN))
@click.option("--candidates", default="1,16..112:16", show_default=True, type=grid(CANDIDATES))
@click.option(
    "--runtime",
    default=ALONE,
    show_default=True,
    type=RUNTIME,
    help="What is fused; paper has the separate operators of the Medusa paper's Table 5.",
)
@take.plot
@take.output
def roofline(
    *,
    names: dict[str, Any],
    batch: tuple[int, ...],
    seq_len: tuple[int, ...],
    candidates: tuple[int, ...],
    runtime: str,
    plot: Path | None,
    output: Output,
) -> None:
    """FLOP/s and operational intensity of each operator in prefill, decode and verification.

    flops_per_s is what the latency model predicts, roofline_flops_per_s what the datasheet allows. With --tp
    the operators are those of one GPU. An engine's --runtime times its own kernels of experts and attention.
    """
    from medusa_sim.grid.axes import Grid
    from medusa_sim.grid.roofline import roofline_points
    from medusa_sim.scenario.scenario import Scenario
    from medusa_sim.setups.pricing import any_drafter

    if plot is not None:
        from medusa_sim.report.figures.files import check_plot_path

        check_plot_path(plot)
    scenario = Scenario(**names, runtime=runtime, drafter=any_drafter(runtime, names["data_dir"]))
    points = roofline_points(
        scenario.latency, scenario.gpu, scenario.shard, scenario.runtime, Grid.of(batch, seq_len, candidates)
    )
    if output.form in ("table", "md") and not output.is_wide:
        from medusa_sim.report.roofline_screen import roofline_screen
        from medusa_sim.report.words.scenario import at_once, several_text

        asked = (
            f"{several_text(seq_len)} tokens of context, {at_once(several_text(batch))}, "
            f"{several_text(candidates)} candidates"
        )
        output.screen(roofline_screen(points, scenario, asked))
    else:
        echo_grid(batch=batch, seq_len=seq_len, candidates=candidates)
        output.rows(points, "roofline")
    if plot is not None:
        from medusa_sim.report.charts.roofline import GROUPS, roofline_chart
        from medusa_sim.report.figures.draw import lines_figure
        from medusa_sim.report.figures.files import save

        charts = (roofline_chart(points, scenario.gpu, scenario.shard.dtype, group) for group in GROUPS)
        save(lines_figure(*charts, columns=2), plot)
        say(f"wrote {plot}")
