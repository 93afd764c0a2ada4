"""Operators on the roof of one or two GPUs, log-log."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from charts.style import DASHES, NEUTRAL, Spec, base, category, quantity, shades
from medusa_sim.step.roofline import roof_of
from medusa_sim.units import GIGA, MEGA, TERA

if TYPE_CHECKING:
    import pyarrow as pa

    from medusa_sim.specs.gpu import Gpu

PHASES = {"prefill": "prefill", "decode": "decode", "verify": "parallel decode"}
_LOWEST = 0.25


def roofline_chart(points: pa.Table, gpus: Sequence[Gpu], dtype: str) -> Spec:
    """FLOP/s over FLOP/byte; shape and shade by phase, filled for the first GPU and open for the second."""
    values = [
        {
            **{
                name: row[name]
                for name in ("op", "gpu", "batch", "seq_len", "query_tokens", "bound", "source")
            },
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
    roofs: list[Spec] = []
    ridges: list[Spec] = []
    for gpu in gpus:
        roof = roof_of(gpu, dtype)
        roofs += [
            {"gpu": gpu.name, "intensity": x, "tflops": roof.flops_per_s(x) / TERA}
            for x in (_LOWEST, roof.ridge, max(highest, 4 * roof.ridge))
        ]
        ridges.append(
            {
                "gpu": gpu.name,
                "intensity": roof.ridge,
                "tflops": roof.peak_flops_per_s / TERA,
                "text": f"{gpu.name}: ridge {roof.ridge:.0f}",
            }
        )
    names = [gpu.name for gpu in gpus]
    x = quantity("intensity", "operational intensity (FLOP/byte)", scale={"type": "log"})
    y = quantity("tflops", "speed (TFLOP/s)", scale={"type": "log"})
    phases = list(PHASES.values())
    tips = [
        category("op", "operator"),
        category("gpu", "GPU"),
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
        420,
        layer=[
            {
                "data": {"values": roofs},
                "mark": {"type": "line", "strokeWidth": 2, "color": NEUTRAL},
                "encoding": {
                    "x": x,
                    "y": y,
                    "strokeDash": category(
                        "gpu", "roof", scale={"domain": names, "range": [DASHES[0], DASHES[1]][: len(names)]}
                    ),
                    "detail": {"field": "gpu"},
                },
            },
            *(
                {
                    "data": {"values": [ridge]},
                    "mark": {"type": "text", "dy": dy, "align": align, "fontSize": 11},
                    "encoding": {"x": x, "y": y, "text": {"field": "text"}},
                }
                for ridge, dy, align in zip(ridges, (-10, 14), ("right", "left"), strict=False)
            ),
            *(
                {
                    "data": {"values": [row for row in values if row["gpu"] == name]},
                    "mark": {"type": "point", "size": 75, "strokeWidth": 1.8, "filled": name == names[0]},
                    "encoding": {
                        "x": x,
                        "y": y,
                        "shape": category("phase", "phase", scale=marks, sort=phases),
                        "color": category(
                            "phase", "phase", scale={"domain": phases, "range": shades(3)}, sort=phases
                        ),
                        "tooltip": tips,
                    },
                }
                for name in reversed(names)
            ),
        ],
    )
