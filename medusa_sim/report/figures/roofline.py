"""Operators on a GPU's roofline, as in the Medusa paper's Figures 9 to 20."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from medusa_sim.arrays import FloatArray
from medusa_sim.report.figures.style import FAINT, INK, MARKERS, drawing, shades
from medusa_sim.report.numbers import with_prefix
from medusa_sim.specs.gpu import Gpu

if TYPE_CHECKING:
    import pyarrow as pa
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_PHASES = ("prefill", "decode", "verify")
_ATTENTION = "attention"
_GROUPS = ("linear layers", _ATTENTION)


def roofline_figure(points: pa.Table, gpu: Gpu, dtype: str) -> Figure:
    """Two panels, linear layers and attention; phases differ in marker and shade.

    points: as `medusa_sim.step.roofline.roofline_points` gives them.
    """
    columns = {
        name: np.asarray(points.column(name).to_pylist())
        for name in ("part", "phase", "operational_intensity", "flops_per_s", "query_tokens")
    }
    model = points.column("model")[0].as_py()
    with drawing(10.5, 4.6, columns=2) as (figure, axes):
        for axis, title in zip(axes, _GROUPS, strict=True):
            here = (columns["part"] == _ATTENTION) == (title == _ATTENTION)
            draw_roof(axis, gpu, dtype, columns["operational_intensity"])
            _draw_points(axis, {name: values[here] for name, values in columns.items()})
            axis.set_title(f"{title} of {model} on {gpu.name}, {dtype}")
        axes[0].legend(loc="lower right", title="phase", fontsize=8)
    return figure


def draw_roof(axis: Axes, gpu: Gpu, dtype: str, intensity: FloatArray) -> None:
    """The datasheet's roof over the range of the points' intensities, with its two limits named."""
    peak, bandwidth = gpu.peak(dtype), gpu.bandwidth_bytes_per_s
    ridge = peak / bandwidth
    x = np.array([min(0.5, intensity.min() / 2), ridge, max(4 * ridge, intensity.max() * 2)])
    axis.loglog(x, np.minimum(peak, x * bandwidth), color=INK, linewidth=1.2)
    axis.axvline(ridge, color=FAINT, linewidth=0.8, linestyle=":")
    axis.text(x[-1], peak * 1.12, with_prefix(peak, "FLOP/s", 4), ha="right", va="bottom", fontsize=8)
    axis.annotate(
        with_prefix(bandwidth, "B/s", 4),
        (x[0] * 3, x[0] * 3 * bandwidth),
        xytext=(-6, 6),
        textcoords="offset points",
        fontsize=8,
        ha="right",
    )
    axis.text(
        ridge,
        0.015,
        f"ridge {ridge:.0f} FLOP/byte ",
        transform=axis.get_xaxis_transform(),
        fontsize=8,
        color=FAINT,
        ha="right",
    )
    axis.set_xlabel("operational intensity (FLOP/byte)")
    axis.set_ylabel("FLOP/s")


def _draw_points(axis: Axes, columns: dict[str, npt.NDArray[np.generic]]) -> None:
    for phase, marker, colour in zip(_PHASES, MARKERS, shades(3), strict=False):
        here = columns["phase"] == phase
        axis.plot(
            columns["operational_intensity"][here],
            columns["flops_per_s"][here],
            marker,
            color=colour,
            markeredgecolor="white",
            markeredgewidth=0.4,
            markersize=6,
            label=phase,
        )
    here = columns["phase"] == "verify"
    counts = np.unique(columns["query_tokens"][here])
    for count in counts[[0, len(counts) // 2, -1]] if len(counts) > 2 else counts:
        at = here & (columns["query_tokens"] == count)
        if at.any():
            top = int(np.argmax(np.where(at, columns["flops_per_s"], -1.0)))
            axis.annotate(
                str(count),
                (columns["operational_intensity"][top], columns["flops_per_s"][top]),
                xytext=(5, -9),
                textcoords="offset points",
                fontsize=7,
            )
