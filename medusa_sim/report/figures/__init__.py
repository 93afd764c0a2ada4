"""Plots. Readable in greyscale: every series differs in marker or hatch, not in colour alone."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from medusa_sim.errors import UsageError

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

MARKERS = ("o", "s", "^", "D", "v", "P", "X", "*", "<", ">")
LINES = ("-", "--", "-.", ":")
HATCHES = ("", "//", "..", "\\\\", "xx", "--", "++", "oo", "||", "**")
SHADES = (
    "#2f6fde", "#d77804", "#007264", "#a4359f", "#00a64c", "#c1291a", "#0098e0", "#985302", "#7e46c6",
    "#839a0f", "#f05a93", "#5d6d7e",
)  # fmt: skip
"""Of lines and points: each at least 3:1 on a white and on a black page."""
INK = "#1b1b1b"
FAINT = "#8a8a8a"


@dataclass(frozen=True, slots=True)
class Look:
    """What a part of a step is called, and its colour wherever it is drawn."""

    title: str
    colour: str


BESIDE, OTHER = "beside", "other"
"""Time of a step outside its kernels; parts too small to be told apart."""
PARTS = {
    "qkv": Look("QKV projections", "#4159d3"),
    "attention": Look("attention", "#d77804"),
    "o_proj": Look("output projection", "#007264"),
    "mlp": Look("MLP", "#aa74f8"),
    "experts": Look("experts", "#c1291a"),
    "exchange": Look("between GPUs", "#0098e0"),
    "norm_rope": Look("norms, rope, residuals", "#985302"),
    "embedding": Look("embedding", "#f05a93"),
    "lm_head": Look("LM head", "#a4359f"),
    "drafter": Look("drafting", "#00a64c"),
    "accept": Look("acceptance", "#5b6c00"),
    BESIDE: Look("launches, host", "#b18b00"),
    OTHER: Look("other", "#757984"),
}
"""In the order in which they stack; neighbours differ in brightness, all stand out on white and on black."""
SMALLEST_SHARE = 0.015
"""Parts below this share of every step drawn are `other`."""


def luminance(colour: str) -> float:
    """Relative luminance of `#rrggbb`, 0 to 1 (WCAG 2, from sRGB)."""
    shares = (int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5))
    linear = (share / 12.92 if share <= 0.04045 else ((share + 0.055) / 1.055) ** 2.4 for share in shares)
    return sum(weight * value for weight, value in zip((0.2126, 0.7152, 0.0722), linear, strict=True))


def contrast(one: str, other: str) -> float:
    """Ratio of two colours, 1 to 21 (WCAG 2); text wants 4.5."""
    dark, light = sorted((luminance(one), luminance(other)))
    return (light + 0.05) / (dark + 0.05)


def ink_on(colour: str) -> str:
    """Black or white, whichever reads better on a colour: never below 4.5."""
    return max(("#000000", "#ffffff"), key=lambda ink: contrast(ink, colour))


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
        bottom = max((legend.get_window_extent().ymax for legend in figure.legends), default=0.0)
        # an engine that the figure kept would have it drawn once more for each file, and one of the whole
        # figure (a rect) measures everything twice
        rect: Any = (0.0, bottom / figure.bbox.height, 1.0, 1.0) if bottom else None
        TightLayoutEngine(pad=0.5, rect=rect).execute(figure)


def label_end(axis: Axes, x: float, y: float, text: str, colour: str) -> None:
    """A label beside the end of a line, in place of a legend."""
    axis.annotate(
        text, (x, y), xytext=(9, 0), textcoords="offset points", color=colour, va="center", fontsize=8
    )


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
