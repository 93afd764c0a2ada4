"""Charts of the page Choose: the curve, the map, and where the time of a step goes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from charts.style import NEUTRAL, Spec, base, category, quantity, series, shades
from medusa_sim.plan.insights import cliffs
from medusa_sim.step.workload import PARTS
from medusa_sim.units import US_PER_MS

if TYPE_CHECKING:
    import pyarrow as pa

    from medusa_sim.step.step import StepTime

PART_TITLES = {
    "qkv": "QKV projections",
    "attention": "attention",
    "o_proj": "output projection",
    "mlp": "MLP",
    "norm_rope": "norms, rope, residuals",
    "embedding": "embedding",
    "lm_head": "LM head",
    "drafter": "drafting",
    "accept": "acceptance",
}
_FEW = 5
"""Too few counts to call a step a cliff."""
_MAP_SCALE = {"scheme": "cividis", "domain": [0.25, 3.0], "clamp": True}
TICKS = [1, 2, 4, 8, 16, 32, 64, 128, 256]
_MAP_COUNTS = (1, 2, 4, 6, 8, 12, 16, 24, 32, 48, 64, 65, 80, 96, 112, 128)


def speedup_chart(counts: pa.Table, batches: Sequence[int]) -> Spec:
    """Speedup against candidates, a line a batch; the best count is a ring, cliffs are ticks.

    The legend tells the best count of each line: labels beside the rings would collide.
    """
    values: list[Spec] = []
    best: list[Spec] = []
    steps: list[Spec] = []
    names = []
    for batch in batches:
        line = _rows_of(counts, batch)
        top = int(np.argmax(line["speedup"]))
        names.append(f"batch {batch}: {line['candidates'][top]} ({line['speedup'][top]:.2f}x)")
        points = [
            {
                "batch": names[-1],
                "candidates": int(line["candidates"][i]),
                **{name: _rounded(line[name][i]) for name in ("speedup", "tokens_per_step", "overhead")},
            }
            for i in range(line["candidates"].size)
        ]
        values += points
        best.append(points[top])
        if len(points) > _FEW:
            steps += [points[place] for place in cliffs(line["verify_step_us"]) - 1]
    x = quantity(
        "candidates",
        "candidates verified in one step (root included)",
        scale={"type": "log", "base": 2, "nice": False},
        axis={"values": TICKS, "format": "d"},
    )
    y = quantity("speedup", "speedup over plain decoding", scale={"zero": False})
    colour, dash = series("batch", names, "best count (its speedup)", columns=2, labelLimit=300)
    tips = [
        category("batch", "batch"),
        quantity("candidates", "candidates"),
        quantity("speedup", "speedup"),
        quantity("tokens_per_step", "tokens per step"),
        quantity("overhead", "step over plain step"),
    ]
    return base(
        360,
        layer=[
            {
                "data": {"values": [{"one": 1.0}]},
                "mark": {"type": "rule", "color": NEUTRAL, "strokeWidth": 1},
                "encoding": {"y": quantity("one", "speedup over plain decoding")},
            },
            {
                "data": {"values": values},
                "mark": {"type": "line", "interpolate": "linear", "strokeWidth": 2},
                "encoding": {"x": x, "y": y, "color": colour, "strokeDash": dash, "tooltip": tips},
            },
            {
                "data": {"values": values},
                "mark": {"type": "point", "opacity": 0, "size": 80},
                "encoding": {"x": x, "y": y, "tooltip": tips},
            },
            {
                "data": {"values": steps},
                "mark": {"type": "tick", "orient": "vertical", "thickness": 2, "size": 14},
                "encoding": {"x": x, "y": y, "color": colour},
            },
            {
                "data": {"values": best},
                "mark": {"type": "point", "size": 110, "strokeWidth": 2.5},
                "encoding": {"x": x, "y": y, "color": colour},
            },
        ],
    )


def speedup_map(counts: pa.Table, largest: int) -> Spec:
    """Batch x candidates, the speedup written into every cell."""
    batches = [batch for batch in (1, 2, 4, 8, 16, 32, 64, 128, 256) if batch <= largest]
    if largest not in batches:
        batches.append(largest)
    values = []
    lines = {batch: _rows_of(counts, batch) for batch in batches}
    best_of = {batch: int(line["candidates"][np.argmax(line["speedup"])]) for batch, line in lines.items()}
    for batch, line in lines.items():
        best = best_of[batch]
        for count in sorted({*_MAP_COUNTS, *best_of.values()} & set(line["candidates"].tolist())):
            place = int(np.flatnonzero(line["candidates"] == count)[0])
            values.append(
                {
                    "batch": batch,
                    "candidates": count,
                    "speedup": _rounded(line["speedup"][place]),
                    "text": f"{line['speedup'][place]:.2f}" + ("*" if count == best else ""),
                    "fits": "yes" if line["fits_memory"][place] else "no",
                }
            )
    x = {"field": "candidates", "type": "ordinal", "title": "candidates (* the best of the batch)"}
    y = {"field": "batch", "type": "ordinal", "title": "batch", "sort": "descending"}
    middle = {"condition": {"test": "datum.speedup > 1.75", "value": "black"}, "value": "white"}
    return base(
        30 * len(batches),
        data={"values": values},
        encoding={"x": {**x, "axis": {"labelAngle": 0, "labelOverlap": True}}, "y": y},
        layer=[
            {
                "mark": {"type": "rect", "stroke": NEUTRAL, "strokeWidth": 0.4},
                "encoding": {
                    "color": quantity(
                        "speedup",
                        "speedup",
                        scale=_MAP_SCALE,
                    ),
                    "tooltip": [
                        quantity("batch", "batch"),
                        quantity("candidates", "candidates"),
                        quantity("speedup", "speedup"),
                        category("fits", "fits in memory"),
                    ],
                },
            },
            {
                "mark": {"type": "text", "fontSize": 10},
                "encoding": {"text": {"field": "text"}, "color": middle},
            },
        ],
    )


def breakdown_rows(plain: StepTime, speculative: StepTime) -> pa.Table:
    """Microseconds of every part of both steps, kernels and the gaps between them."""
    import pyarrow as pa

    rows = []
    for step, time in (("plain step", plain), ("speculative step", speculative)):
        whole = float(time.time_us)
        parts = [(PART_TITLES[part], float(time.parts_us[part])) for part in PARTS if part in time.parts_us]
        beside = whole - sum(us for _, us in parts)
        rows += [
            {"step": step, "part": part, "time_us": us, "share": us / whole}
            for part, us in [*parts, ("launches and host", beside)]
            if us > 0.0
        ]
    return pa.Table.from_pylist(rows)


def breakdown_chart(rows: pa.Table) -> Spec:
    """Two stacked bars, the parts in the order in which a step runs them."""
    names = [*PART_TITLES.values(), "launches and host"]
    values = []
    ends: dict[str, float] = {}
    for row in sorted(rows.to_pylist(), key=lambda row: names.index(row["part"])):
        start = ends.get(row["step"], 0.0)
        ends[row["step"]] = end = start + row["time_us"] / US_PER_MS
        text = f"{row['share']:.0%}" if row["share"] > 0.06 else ""
        values.append(
            {**row, "from": start, "to": end, "ms": end - start, "middle": (start + end) / 2, "text": text}
        )
    present = [name for name in names if any(row["part"] == name for row in values)]
    colour = category(
        "part",
        None,
        scale={"domain": present, "range": shades(len(present))},
        sort=present,
        legend={"columns": 4, "symbolType": "square"},
    )
    y = {"field": "step", "type": "nominal", "title": None, "axis": {"labelOverlap": False}}
    title = "time of one step (ms)"
    return base(
        110,
        data={"values": values},
        layer=[
            {
                "mark": {"type": "bar", "stroke": "white", "strokeWidth": 1.5},
                "encoding": {
                    "x": quantity("from", title),
                    "x2": {"field": "to"},
                    "y": y,
                    "color": colour,
                    "tooltip": [
                        category("step", "step"),
                        category("part", "part"),
                        quantity("ms", "ms", format=".3f"),
                        quantity("share", "share", format=".1%"),
                    ],
                },
            },
            {
                "mark": {"type": "text", "fontSize": 11, "color": "white", "fontWeight": "bold"},
                "encoding": {"x": quantity("middle", title), "y": y, "text": {"field": "text"}},
            },
        ],
    )


def _rows_of(counts: pa.Table, batch: int) -> dict[str, npt.NDArray[Any]]:
    keep = np.asarray(counts.column("batch")) == batch
    return {name: np.asarray(counts.column(name))[keep] for name in counts.column_names}


def _rounded(value: float) -> float:
    return round(float(value), 4)
