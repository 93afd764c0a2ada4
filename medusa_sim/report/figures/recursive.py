"""Figures of the recursive speculative decoding paper: acceptance of draft-model methods."""

from __future__ import annotations

from typing import TYPE_CHECKING

from medusa_sim.report.figures.style import INK, LINES, MARKERS, drawing, label_end, shades
from medusa_sim.reproduce.target import Reproduction

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_SHORT = {
    "Recur. Rej. Samp.": "recursive rejection (RSD)",
    "OTM": "optimal transport",
    "K-SEQ": "K-SEQ (SpecTr)",
    "Multi-Round SD": "multi-round (SpecInfer)",
}
_COLUMNS = 4


def bernoulli_figure(target: Reproduction) -> Figure:
    """RSD Figure 1: acceptance by the target's probability, one panel for each draft."""
    drafts = sorted(set(target.frame["draft_p"]))
    with drawing(2.9 * len(drafts), 3.4, columns=len(drafts)) as (figure, axes):
        for axis, draft in zip(axes, drafts, strict=True):
            rows = target.frame[target.frame["draft_p"] == draft]
            for number, (method, name) in enumerate(_SHORT.items()):
                line = rows[rows["method"] == method]
                axis.plot(
                    line["target_q"],
                    line["predicted_acceptance"],
                    LINES[number],
                    marker=MARKERS[number],
                    markevery=4,
                    color=shades(len(_SHORT))[number],
                    label=name,
                )
            axis.set_ylim(0.0, 1.05)
            axis.set_title(f"draft Ber({draft:g})")
            axis.set_xlabel("target probability q")
        axes[0].set_ylabel("acceptance rate")
        handles, labels = axes[0].get_legend_handles_labels()
        figure.legend(handles, labels, loc="outside lower center", ncols=4)
        figure.suptitle(target.title, x=0.01, ha="left", fontweight="bold", fontsize=10)
    return figure


def block_efficiency_figure(target: Reproduction) -> Figure:
    """RSD Figures 4 and 5: block efficiency of each method, one panel for each target, draft and task."""
    frame = target.frame
    axis_name = "draft_length" if "draft_length" in frame else "budget"
    pairs = sorted(set(frame["pair"]))
    rows = -(-len(pairs) // _COLUMNS)
    with drawing(13.0, 3.1 * rows, columns=_COLUMNS, rows=rows) as (figure, axes):
        for axis, pair in zip(axes, pairs, strict=False):
            _panel(axis, frame[frame["pair"] == pair], axis_name)
            axis.set_title(pair.replace(" / 115M", ""))
        for axis in axes[len(pairs) :]:
            axis.set_visible(False)
        axes[0].set_ylabel("block efficiency (tokens per step)")
        figure.suptitle(
            f"{target.title}: lines predicted, open markers published",
            x=0.01,
            ha="left",
            fontweight="bold",
            fontsize=10,
        )
    return figure


def _panel(axis: Axes, rows: pd.DataFrame, axis_name: str) -> None:
    methods = sorted(set(rows["decoder"]))
    last = float(rows[axis_name].max())
    for number, method in enumerate(methods):
        line = rows[rows["decoder"] == method].sort_values(axis_name)
        colour = shades(len(methods))[number]
        axis.plot(line[axis_name], line["predicted_block_efficiency"], LINES[number], color=colour)
        axis.plot(
            line[axis_name],
            line["published_block_efficiency"],
            MARKERS[number],
            color=colour,
            markerfacecolor="white",
        )
        end = line.iloc[-1]
        label_end(axis, float(end[axis_name]), float(end["predicted_block_efficiency"]), method, colour)
    axis.set_xlim(float(rows[axis_name].min()) * 0.9, last * 1.22)
    axis.set_xlabel(axis_name.replace("_", " ").replace("budget", "draft tokens verified at once"), color=INK)
