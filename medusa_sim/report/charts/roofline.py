"""Operators on the roofline of a GPU."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from medusa_sim.arrays import FloatArray
from medusa_sim.gpus.gpu import Gpu
from medusa_sim.grid.quantity import BY_NAME
from medusa_sim.grid.roofline import roof_of
from medusa_sim.report.charts.chart import Axis, LineChart, ReferenceLine, Series, Tip, point_series
from medusa_sim.report.words.numbers import with_prefix
from medusa_sim.step.workload import Phase
from medusa_sim.units import GIGA, MEGA, TERA

if TYPE_CHECKING:
    import pyarrow as pa


PHASE_TITLES: dict[Phase, str] = {
    "prefill": "reading prompts", "decode": "decoding", "verify": "verification"
}  # fmt: skip
"""Names of phases in charts and tables."""
GROUPS = ("linear layers", "attention")
_LOWEST = 0.25
_TIPS: tuple[Tip, ...] = (
    ("op", "operator", ""), ("phase", "phase", ""), ("batch", "batch", "d"), ("seq_len", "length", "d"),
    ("query_tokens", "tokens a sequence", "d"), ("time_us", "time (us)", ".4~g"), ("gflop", "GFLOP", ".3~g"),
    ("mb", "MB", ".3~g"), ("tflops", "TFLOP/s", ".3~g"), ("share", "of the roof", ".0%"),
    ("bound", BY_NAME["bound"].title, ""), ("source", "source", ""),
)  # fmt: skip


def roofline_chart(points: pa.Table, gpu: Gpu, dtype: str, group: str | None = None) -> LineChart:
    """FLOP/s over FLOP/byte under the roof, a look a phase. group: of `GROUPS`; None: all operators.

    points: as `medusa_sim.grid.roofline.roofline_points` gives them.
    """
    every = points.to_pylist()
    given = [row for row in every if group is None or (row["part"] == "attention") == (group == "attention")]
    series = []
    for place, (phase, name) in enumerate(PHASE_TITLES.items()):
        rows = [
            {
                **{key: row[key] for key in ("op", "batch", "seq_len", "query_tokens", "bound", "source")},
                "phase": name,
                "time_us": row["time_us"],
                "tflops": row["flops_per_s"] / TERA,
                "share": row["flops_per_s"] / row["roofline_flops_per_s"],
                "gflop": row["flops"] / GIGA,
                "mb": row["bytes"] / MEGA,
            }
            for row in given
            if row["phase"] == phase
        ]
        x = np.array([row["operational_intensity"] for row in given if row["phase"] == phase])
        y = np.array([row["tflops"] for row in rows])
        series.append(point_series(name, place, x, y, size=6.0, rows=rows))
    title = f"{group or 'operators'} of {every[0]['model']} on {gpu.name}, {dtype}"
    intensity = np.array([row["operational_intensity"] for row in given])
    return on_roof(title, gpu, dtype, intensity, series, _TIPS)


def on_roof(
    title: str, gpu: Gpu, dtype: str, intensity: FloatArray, series: list[Series], tips: tuple[Tip, ...] = ()
) -> LineChart:
    """Series of TFLOP/s under the datasheet's roof, over the range of these intensities."""
    roof = roof_of(gpu, dtype)
    x = np.array([min(_LOWEST, intensity.min() / 2), roof.ridge, max(4 * roof.ridge, intensity.max() * 2)])
    y = np.array([roof.flops_per_s(intensity) / TERA for intensity in x.tolist()])
    bandwidth = with_prefix(roof.bandwidth_bytes_per_s, "B/s", 4)
    peak = with_prefix(roof.peak_flops_per_s, "FLOP/s", 4)
    return LineChart(
        title=title,
        x=Axis(title=f"operational intensity (FLOP/byte); roof: {bandwidth}, {peak}", base=10),
        y=Axis(title="speed (TFLOP/s)", base=10),
        series=[Series(name="", x=x, y=y, line="-"), *series],
        limits=[ReferenceLine(x=roof.ridge, text=f"ridge {roof.ridge:.0f} FLOP/byte", line=":")],
        legend="phase" if tips else "",
        tips=tips,
    )
