"""Plots of a sweep: speedup against candidates, where a step's time goes, batch x candidates."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from medusa_sim.report.figures.style import (
    FAINT,
    GOOD,
    HATCHES,
    INK,
    LINES,
    OTHER,
    PARTS,
    SMALLEST_SHARE,
    drawing,
    shades,
    spread_labels,
)
from medusa_sim.report.numbers import significant
from medusa_sim.report.sweep_views import LengthView, evenly
from medusa_sim.units import US_PER_MS

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from matplotlib.patheffects import AbstractPathEffect

_MOST_LINES = 8
_MOST_BARS = 8
_PAIR = 2.75
_MOST_CELL_TEXTS = 260
_NEAR, _APART = 0.03, 0.06
"""Shares of the plot's width and height that the number of a star takes."""
_CLIFFS_MATTER = 0.95
"""Cliffs of lines that lie below this speedup are not marked: nobody would go there."""


def speedup_figure(view: LengthView, title: str) -> Figure:
    """One line a batch with its 80 % band; stars mark a count of each, small bars the cliffs."""
    chosen = np.flatnonzero(np.isin(view.batch, evenly(view.batch, _MOST_LINES)))
    with drawing(8.2, 4.8) as (figure, axes):
        axis = axes[0]
        axis.axhline(1.0, color=INK, linewidth=0.9)
        axis.text(view.counts[-1], 1.0, " plain decoding", va="bottom", ha="right", fontsize=8, color=INK)
        labels: list[tuple[float, str, str]] = []
        stars: list[tuple[int, float]] = []
        apart = _APART * float(view.speedup_high[chosen].max())
        for line, colour in zip(chosen, shades(chosen.size), strict=True):
            _draw_line(axis, view, int(line), colour)
            best = int(view.best[line])
            star = int(view.counts[best]), float(view.speedup[line, best])
            # no number for a star beside another: the numbers would cover each other
            near = _NEAR * float(view.counts[-1])
            if not any(abs(star[0] - n) < near and abs(star[1] - gain) < apart for n, gain in stars):
                _name_star(axis, *star, colour)
                stars.append(star)
            labels.append((float(view.speedup[line, -1]), f"batch {view.batch[line]}", colour))
        spread_labels(axis, float(view.counts[-1]), labels)
        axis.set_xlabel("candidates of one verification step (tokens per sequence, root included)")
        axis.set_ylabel("speedup over plain decoding")
        axis.set_xlim(min(1, view.counts[0]) * 0.5, view.counts[-1] + 0.14 * (view.counts[-1] - 0.5))
        axis.locator_params(axis="x", integer=True)
        axis.set_ylim(bottom=0.0)
        axis.set_title(title)
    return figure


def _draw_line(axis: Axes, view: LengthView, line: int, colour: str) -> None:
    speedup, best = view.speedup[line], int(view.best[line])
    axis.fill_between(
        view.counts, view.speedup_low[line], view.speedup_high[line], color=colour, alpha=0.13, linewidth=0
    )
    axis.plot(view.counts, speedup, LINES[line % len(LINES)], color=colour)
    cliffs = view.cliffs[line][speedup[view.cliffs[line] - 1] >= _CLIFFS_MATTER]
    axis.plot(cliffs, speedup[cliffs - 1], "|", color=colour, markersize=11, markeredgewidth=1.4)
    axis.plot(view.counts[best], speedup[best], "*", color=colour, markersize=12, markeredgecolor="white")


def _name_star(axis: Axes, count: int, speedup: float, colour: str) -> None:
    axis.annotate(
        f"{count}",
        (count, speedup),
        xytext=(0, 6),
        textcoords="offset points",
        ha="center",
        fontsize=8,
        fontweight="bold",
        color=colour,
        path_effects=_halo(),
    )


def _halo() -> list[AbstractPathEffect]:
    """A white outline that keeps text readable across lines."""
    from matplotlib.patheffects import Normal, Stroke

    return [Stroke(linewidth=2.2, foreground="white"), Normal()]


def breakdown_figure(view: LengthView, title: str) -> Figure:
    """Plain step and marked verification step of each batch, stacked by slice, in its plain steps."""
    chosen = np.flatnonzero(np.isin(view.batch, evenly(view.batch, _MOST_BARS)))
    parts = [name for name in view.parts_us if _share(view, name, chosen) >= SMALLEST_SHARE]
    with drawing(8.2, 4.6) as (figure, axes):
        axis = axes[0]
        ticks, names, groups = [], [], []
        for place, line in enumerate(chosen):
            best = int(view.best[line])
            plain = {name: part[line] for name, part in view.decode_parts_us.items()}
            bars = [(place * _PAIR, plain, float(view.decode_us[line]), "1")]
            if view.counts[best] > 1:
                slices = {name: part[line, best] for name, part in view.parts_us.items()}
                bars.append(
                    (place * _PAIR + 1.0, slices, float(view.verify_us[line, best]), str(view.counts[best]))
                )
            for x, slices, total_us, count in bars:
                _draw_bar(axis, x, slices, total_us, float(view.decode_us[line]), parts)
                ticks.append(x)
                names.append(count)
            # A minor tick on top of a major one would be dropped.
            groups.append((place * _PAIR + 0.5 * (len(bars) - 1) + 0.01, f"\nbatch {view.batch[line]}"))
        axis.set_xticks(ticks, names)
        axis.set_xticks([x for x, _ in groups], [text for _, text in groups], minor=True, fontweight="bold")
        axis.tick_params(axis="x", which="both", length=0)
        axis.grid(visible=False, axis="x")
        axis.set_ylabel("step / plain step of that batch (on top: ms)")
        axis.set_xlabel(f"candidates: plain decoding, and {view.marked}")
        axis.set_title(title)
        handles, texts = axis.get_legend_handles_labels()
        drawn = dict(zip(texts, handles, strict=True))
        order = [text for text in (PARTS[name].title for name in (*parts, OTHER)) if text in drawn]
        axis.legend(
            [drawn[text] for text in reversed(order)],
            order[::-1],
            loc="center left",
            bbox_to_anchor=(1.0, 0.5),
            fontsize=8,
        )
    return figure


def _share(view: LengthView, name: str, lines: np.ndarray) -> float:
    best = view.best[lines]
    return float(np.max(view.parts_us[name][lines, best] / view.verify_us[lines, best]))


def _draw_bar(
    axis: Axes, x: float, slices: dict[str, float], total_us: float, unit_us: float, parts: list[str]
) -> None:
    """One stacked bar; slices too small for `parts` are summed as `other`, waiting included."""
    bottom = 0.0
    known = {name: slices.get(name, 0.0) for name in parts}
    known[OTHER] = max(total_us - sum(known.values()), 0.0)
    for number, (name, value) in enumerate(known.items()):
        height = value / unit_us
        if height <= 0.0:
            continue
        axis.bar(
            x,
            height,
            0.9,
            bottom=bottom,
            color=PARTS[name].colour,
            hatch=HATCHES[number % len(HATCHES)],
            edgecolor="white",
            linewidth=0.5,
            label=PARTS[name].title,
        )
        bottom += height
    axis.text(x, bottom, significant(total_us / US_PER_MS, 3), ha="center", va="bottom", fontsize=7)


def heat_figure(view: LengthView, title: str) -> Figure:
    """Speedup of every batch and count of the grid; the marked ones are framed, losses are hatched."""
    from matplotlib.patches import Rectangle

    columns = np.searchsorted(view.counts, view.grid_counts)
    cells = view.speedup[:, columns]
    rows, width = cells.shape
    with drawing(max(4.5, min(0.55 * width + 2.2, 11.0)), max(2.6, min(0.36 * rows + 1.5, 9.0))) as (
        figure,
        axes,
    ):
        axis = axes[0]
        image = axis.imshow(cells, cmap="cividis", aspect="auto", vmin=0.0, vmax=max(float(cells.max()), 1.0))
        axis.grid(visible=False)
        if cells.size <= _MOST_CELL_TEXTS:
            middle = 0.5 * float(cells.max())
            for (row, column), value in np.ndenumerate(cells):
                colour = "black" if value > middle else "white"
                axis.text(column, row, f"{value:.2f}", ha="center", va="center", fontsize=7.5, color=colour)
        for row, column in zip(*np.nonzero(cells < 1.0), strict=True):
            axis.add_patch(
                Rectangle(
                    (column - 0.5, row - 0.5), 1, 1, fill=False, hatch="////", edgecolor=FAINT, linewidth=0
                )
            )
        for row in range(rows):
            best = int(np.searchsorted(view.grid_counts, view.counts[view.best[row]]))
            axis.add_patch(
                Rectangle((best - 0.46, row - 0.46), 0.92, 0.92, fill=False, edgecolor="white", linewidth=2.4)
            )
            axis.add_patch(
                Rectangle((best - 0.46, row - 0.46), 0.92, 0.92, fill=False, edgecolor=GOOD, linewidth=1.1)
            )
        _ticks(axis, view.grid_counts, view.batch)
        axis.set_xlabel("candidates")
        axis.set_ylabel("batch")
        axis.set_title(title)
        figure.colorbar(image, ax=axis, label="speedup", fraction=0.04, pad=0.02)
    return figure


def _ticks(axis: Axes, counts: np.ndarray, batch: np.ndarray) -> None:
    columns = np.unique(np.linspace(0, counts.size - 1, min(counts.size, 16)).round().astype(int))
    rows = np.unique(np.linspace(0, batch.size - 1, min(batch.size, 16)).round().astype(int))
    axis.set_xticks(columns, [str(counts[i]) for i in columns])
    axis.set_yticks(rows, [str(batch[i]) for i in rows])
    axis.tick_params(length=0)
