"""Figures as files: which formats there are, and the same bytes for the same figure."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from medusa_sim.errors import UsageError

if TYPE_CHECKING:
    from matplotlib.figure import Figure

PLOT_SUFFIXES = (".png", ".svg", ".pdf")
DPI = 160


def check_plot_path(path: Path) -> None:
    """Refuse at once a plot that could not be written. Raises UsageError or OutputError."""
    from medusa_sim.writing import check_writable

    if path.suffix.lower() not in PLOT_SUFFIXES:
        raise UsageError(f"cannot tell the format of plot {path}: allowed are {', '.join(PLOT_SUFFIXES)}")
    check_writable(path)


def render(figure: Figure, suffix: str) -> bytes:
    """The figure as PNG, SVG or PDF; the same figure gives the same bytes."""
    import io

    import matplotlib as mpl

    buffer = io.BytesIO()
    metadata = {".svg": {"Date": None}, ".pdf": {"CreationDate": None}, ".png": {"Software": None}}[suffix]
    with mpl.rc_context({"svg.hashsalt": "medusa-sim", "svg.fonttype": "none"}):
        figure.savefig(buffer, format=suffix[1:], dpi=DPI, metadata=metadata)
    return buffer.getvalue()


def save(figure: Figure, path: Path) -> None:
    """Write a figure in the format of the path's suffix, in one step. Raises OutputError."""
    from medusa_sim.writing import atomic

    with atomic(path) as file:
        file.write(render(figure, path.suffix.lower()))
