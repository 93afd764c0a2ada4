"""An empty figure in the common look, which takes the room that its labels leave."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_LOOK = Path(__file__).with_name("look.mplstyle")


@contextmanager
def look() -> Iterator[None]:
    """Fonts, lines and colours of every figure."""
    import matplotlib as mpl

    with mpl.rc_context(mpl.rc_params_from_file(_LOOK, use_default_template=False)):
        yield


@contextmanager
def drawing(
    width: float, height: float, columns: int = 1, rows: int = 1
) -> Iterator[tuple[Figure, list[Axes]]]:
    """A figure of `width` x `height` inches and its axes, row by row, in the common look.

    Once it is drawn on, the axes take the room that labels and legends leave.
    """
    from matplotlib.figure import Figure
    from matplotlib.layout_engine import TightLayoutEngine

    with look():
        figure = Figure(figsize=(width, height))
        axes = figure.subplots(rows, columns, squeeze=False)
        yield figure, [axis for line in axes for axis in line]
        # an engine that the figure kept would have it drawn once more for each file
        TightLayoutEngine(pad=0.5).execute(figure)
