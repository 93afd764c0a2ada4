"""Operators on the roof of a GPU, log-log."""

from __future__ import annotations

from typing import TYPE_CHECKING

from charts.style import NEUTRAL, Spec, base, category, quantity, shades
from medusa_sim.step.roofline import roof_of
from medusa_sim.units import GIGA, MEGA, TERA

if TYPE_CHECKING:
    import pyarrow as pa

    from medusa_sim.specs.gpu import Gpu

PHASES = {"prefill": "prefill", "decode": "decode", "verify": "parallel decode"}
_LOWEST = 0.25


def roofline_chart(points: pa.Table, gpu: Gpu, dtype: str) -> Spec:
    """FLOP/s over FLOP/byte under the roof; shape and shade by phase."""
    values = [
        {
            **{name: row[name] for name in ("op", "batch", "seq_len", "query_tokens", "bound", "source")},
            "phase": PHASES[row["phase"]],
            "intensity": row["operational_intensity"],
            "tflops": row["flops_per_s"] / TERA,
            "share": row["flops_per_s"] / row["roofline_flops_per_s"],
            "time_us": row["time_us"],
            "gflop": row["flops"] / GIGA,
            "mb": row["bytes"] / MEGA,
        }
        for row in points.to_pylist()
    ]
    highest = max(row["intensity"] for row in values) * 2
    roof = roof_of(gpu, dtype)
    line = [
        {"intensity": x, "tflops": roof.flops_per_s(x) / TERA}
        for x in (_LOWEST, roof.ridge, max(highest, 4 * roof.ridge))
    ]
    text = f"{gpu.name}: ridge at {roof.ridge:.0f} FLOP/byte"
    ridge = {"intensity": roof.ridge, "tflops": roof.peak_flops_per_s / TERA, "text": text}
    x = quantity("intensity", "operational intensity (FLOP/byte)", scale={"type": "log"})
    y = quantity("tflops", "speed (TFLOP/s)", scale={"type": "log"})
    phases = list(PHASES.values())
    tips = [
        category("op", "operator"),
        category("phase", "phase"),
        quantity("batch", "batch"),
        quantity("seq_len", "length"),
        quantity("query_tokens", "tokens a sequence"),
        quantity("time_us", "time (us)", format=".4~g"),
        quantity("gflop", "GFLOP", format=".3~g"),
        quantity("mb", "MB", format=".3~g"),
        quantity("tflops", "TFLOP/s", format=".3~g"),
        quantity("share", "of the roof", format=".0%"),
        category("bound", "bound by"),
        category("source", "source"),
    ]
    marks = {"domain": phases, "range": ["square", "circle", "triangle-up"]}
    return base(
        380,
        layer=[
            {
                "data": {"values": line},
                "mark": {"type": "line", "strokeWidth": 2, "color": NEUTRAL},
                "encoding": {"x": x, "y": y},
            },
            {
                "data": {"values": [ridge]},
                "mark": {"type": "text", "dy": -10, "align": "right", "fontSize": 11},
                "encoding": {"x": x, "y": y, "text": {"field": "text"}},
            },
            {
                "data": {"values": values},
                "mark": {"type": "point", "size": 75, "strokeWidth": 1.8, "filled": True},
                "encoding": {
                    "x": x,
                    "y": y,
                    "shape": category("phase", "phase", scale=marks, sort=phases),
                    "color": category(
                        "phase", "phase", scale={"domain": phases, "range": shades(3)}, sort=phases
                    ),
                    "tooltip": tips,
                },
            },
        ],
    )
