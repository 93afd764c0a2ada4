"""`medusa-sim reproduce`: the papers' tables and figures, predicted and published."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from medusa_sim.cli import options as take
from medusa_sim.cli import say
from medusa_sim.cli.output import Output
from medusa_sim.cli.values import NameType
from medusa_sim.errors import UsageError
from medusa_sim.scenario.defaults import DEFAULT_GPU

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from medusa_sim.lab.reproduce import Reproduction


@take.command(
    "medusa-sim reproduce",
    "medusa-sim reproduce table6 --format csv",
    "medusa-sim reproduce figure22 --plot figure22.png",
)
@click.argument("target", type=NameType("target"), required=False)
@click.option("--list", "list_targets", is_flag=True, help="List the tables and figures.")
@take.plot
@take.output
@take.data_dir
def reproduce(
    *, target: str | None, list_targets: bool, plot: Path | None, output: Output, data_dir: Path | None
) -> None:
    """A table or figure of the papers, predicted and published.

    Without a TARGET: the errors over every target that has published values. Published columns are
    empty where the paper prints no number or where its values are kept out of this project as a test.
    """
    from medusa_sim.lab.reproduce import TARGETS, reproduction, scores

    if plot is not None:
        from medusa_sim.report.figures.files import check_plot_path

        if target is None:
            raise UsageError("--plot needs a table or figure, such as `medusa-sim reproduce figure22`")
        check_plot_path(plot)
    if list_targets:
        import pyarrow as pa

        titles = [each.title for each in TARGETS.values()]
        output.rows(pa.table({"target": [*TARGETS], "title": titles}), "reproduce-targets")
        return
    if target is None:
        found = scores(data_dir)
        if output.form in ("table", "md") and not output.is_wide:
            from medusa_sim.lab.reproduce.screens import score_screen

            output.screen(score_screen(found, list(TARGETS)))
        else:
            output.rows(found, "reproduce-scores")
            say(f"targets: {' '.join(TARGETS)}")
        return
    result = reproduction(target, data_dir)
    figure = None if plot is None else _figure(result, data_dir)  # refused before anything is printed
    screen = None
    if output.form in ("table", "md") and not output.is_wide:
        from medusa_sim.lab.reproduce.screens import target_screen

        screen = target_screen(result)
    if screen is not None:
        output.screen(screen)
    else:
        # first, so that nobody reads a column against a baseline that is not the paper's
        say(f"{result.title}\nsource: {result.source}\nnote: {result.caveat}")
        output.rows(result.frame, "reproduce", target=result.name, title=result.title, source=result.source)
    if plot is not None and figure is not None:
        from medusa_sim.report.figures.files import save

        save(figure, plot)
        say(f"wrote {plot}")


def _figure(result: Reproduction, data_dir: Path | None) -> Figure:
    """The picture of a target. Raises UsageError where it has none."""
    from medusa_sim.gpus.gpu import load_gpu
    from medusa_sim.lab.reproduce.charts import reproduction_charts
    from medusa_sim.report.figures.draw import lines_figure

    names = result.frame.get("gpu", [DEFAULT_GPU])
    charts = reproduction_charts(result, load_gpu(str(next(iter(names))), data_dir))
    title = "" if len(charts) == 1 else result.title
    return lines_figure(*charts, columns=min(len(charts), 3), title=title)
