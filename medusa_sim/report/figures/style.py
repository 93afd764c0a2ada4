"""One look for all plots."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

MARKERS = ("o", "s", "^", "D", "v", "P", "X", "*", "<", ">")
LINES = ("-", "--", "-.", ":")
HATCHES = ("", "//", "..", "\\\\", "xx", "--", "++", "oo", "||", "**")
INK = "#1b1b1b"
FAINT = "#8a8a8a"
GOOD = "#00429d"
_RC: dict[Any, Any] = {
    "font.family": "DejaVu Sans",
    "font.size": 9.0,
    "axes.titlesize": 10.0,
    "axes.titleweight": "bold",
    "axes.titlelocation": "left",
    "axes.labelsize": 9.0,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.edgecolor": FAINT,
    "axes.grid": True,
    "grid.color": "#e3e3e3",
    "grid.linewidth": 0.6,
    "axes.axisbelow": True,
    "xtick.color": INK,
    "ytick.color": INK,
    "legend.frameon": False,
    "lines.linewidth": 1.6,
    "lines.markersize": 4.5,
    "figure.facecolor": "white",
    "hatch.linewidth": 0.5,
}


def shades(count: int) -> list[str]:
    """Colours from dark to light that differ in brightness (cividis, without its lightest end)."""
    import matplotlib as mpl
    from matplotlib.colors import to_hex

    scale = mpl.colormaps["cividis"]
    return [to_hex(scale(0.85 * i / max(count - 1, 1))) for i in range(count)]


@contextmanager
def drawing(
    width: float, height: float, columns: int = 1, rows: int = 1
) -> Iterator[tuple[Figure, list[Axes]]]:
    """A figure of `width` x `height` inches and its axes, row by row, in the common look."""
    import matplotlib as mpl
    from matplotlib.figure import Figure

    with mpl.rc_context(_RC):
        figure = Figure(figsize=(width, height), layout="constrained")
        axes = figure.subplots(rows, columns, squeeze=False)
        yield figure, [axis for line in axes for axis in line]


def label_end(axis: Axes, x: float, y: float, text: str, colour: str) -> None:
    """A label beside the end of a line, in place of a legend."""
    axis.annotate(
        text, (x, y), xytext=(5, 0), textcoords="offset points", color=colour, va="center", fontsize=8
    )


def spread_labels(axis: Axes, x: float, labels: list[tuple[float, str, str]]) -> None:
    """Labels (y, text, colour) beside the ends of lines at x, pushed apart where they would touch."""
    top = max(y for y, _, _ in labels)
    gap = 0.045 * max(top, 1.0)
    height = float("-inf")
    for y, text, colour in sorted(labels):
        height = max(y, height + gap)
        label_end(axis, x, height, text, colour)
