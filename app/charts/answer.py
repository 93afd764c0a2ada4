"""Charts of the page Answer: by batch, by count, the map, and where the time of a step goes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from charts.style import NEUTRAL, Spec, base, category, columns, on_phone, quantity, series
from medusa_sim.plan.curve import cliffs
from medusa_sim.report.figures.style import BESIDE, OTHER, PARTS, SHADES, SMALLEST_SHARE, ink_on
from medusa_sim.units import US_PER_MS

if TYPE_CHECKING:
    import pyarrow as pa

    from medusa_sim.step.step import StepTime

Rows = Sequence[Mapping[str, Any]]
_FEW_TICKS = 18
_FEW = 5
"""Too few counts to call a step a cliff."""
_MAP_SCALE: Spec = {
    "type": "log",
    "domain": [0.3, 0.97, 1.03, 3.0],
    "range": ["#9a4a12", "#efe3d8", "#dbe7f6", "#1d4fa8"],
    "interpolate": "rgb",
    "clamp": True,
}
"""Browns lose, blues gain; both are told apart without red and green, and on light and dark pages."""
_CROSSING = "#c2185b"
_MAP_BATCHES = (1, 2, 4, 8, 16, 32, 64, 128, 256)
TICKS = [1, 2, 4, 8, 16, 32, 64, 128, 256]
_MAP_COUNTS = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 65, 96, 128)


def batch_chart(rows: Rows, batch: int, *, chains: bool) -> Spec:
    """Speedup of the schedule against the batch with its interval; a ring where one looks.

    rows: of `gains_by_batch`; batches without room are left out. Counts are written where they change.
    """
    fitting = [row for row in rows if row["fits_memory"]]
    named, last = [], None
    for row in fitting:
        count = row["drafts"] if chains else row["candidates"]
        if count != last:
            text = "off" if row["candidates"] == 1 else f"{count} {counted(chains)}"
            named.append({**row, "text": text.removesuffix("s") if count == 1 else text})
        last = count
    kept: list[Spec] = []  # names far enough from each other, on a log scale
    for row in named:
        if not kept or row["batch"] >= 1.6 * kept[-1]["batch"]:
            kept.append(row)
    title = "speedup over plain decoding"
    x = quantity(
        "batch",
        "batch",
        scale={"type": "log", "base": 2, "nice": False, "padding": 10},
        axis={"values": TICKS, "format": "d"},
    )
    y = quantity("speedup", title, scale={"zero": False})
    tips = [
        quantity("batch", "batch"),
        quantity("drafts", "drafts") if chains else quantity("candidates", "candidates"),
        quantity("speedup", "speedup", format=".2f"),
        quantity("speedup_low", "80 %, low", format=".2f"),
        quantity("speedup_high", "80 %, high", format=".2f"),
    ]
    here = [row for row in fitting if row["batch"] == batch]
    return base(
        260,
        data={"values": fitting},
        layer=[
            {
                "mark": {"type": "area", "opacity": 0.18, "color": SHADES[0]},
                "encoding": {"x": x, "y": {**y, "field": "speedup_low"}, "y2": {"field": "speedup_high"}},
            },
            {
                "data": {"values": [{"one": 1.0}]},
                "mark": {"type": "rule", "color": NEUTRAL, "strokeDash": [4, 3]},
                "encoding": {"y": quantity("one", title)},
            },
            {
                "mark": {"type": "line", "strokeWidth": 2.4, "color": SHADES[0], "point": {"size": 22}},
                "encoding": {"x": x, "y": y, "tooltip": tips},
            },
            {
                "data": {"values": kept},
                "mark": {"type": "text", "dy": -14, "align": "left", "fontSize": 11.5, "fontWeight": "bold"},
                "encoding": {"x": x, "y": {**y, "field": "speedup_high"}, "text": {"field": "text"}},
            },
            {
                "data": {"values": here},
                "mark": {"type": "point", "size": 130, "strokeWidth": 2.5, "color": SHADES[1]},
                "encoding": {"x": x, "y": y, "tooltip": tips},
            },
        ],
    )


def speedup_chart(counts: pa.Table, recommended: Mapping[int, int], *, chains: bool) -> Spec:
    """Speedup against candidates or, of chains, drafts: a line a batch; the recommended count is a ring.

    recommended: batch -> candidates. The legend tells the count: labels beside the rings would collide.
    """
    values: list[Spec] = []
    rings: list[Spec] = []
    steps: list[Spec] = []
    names = []
    for batch, count in recommended.items():
        line = _rows_of(counts, batch)
        ring = int(np.searchsorted(line["candidates"], count))
        told = "off" if count == 1 else f"{count - chains} ({line['speedup'][ring]:.2f}x)"
        names.append(f"batch {batch}: {told}")
        points = [
            {
                "batch": names[-1],
                "count": int(line["candidates"][i]) - chains,
                **{name: _rounded(line[name][i]) for name in ("speedup", "tokens_per_step", "overhead")},
            }
            for i in range(line["candidates"].size)
        ]
        values += points
        rings.append(points[ring])
        if len(points) > _FEW:
            steps += [points[place] for place in cliffs(line["verify_step_us"]) - 1]
    few = len({row["count"] for row in values}) <= _FEW_TICKS
    x = quantity(
        "count",
        "drafts in one step (0: plain decoding)" if chains else "candidates in one step (root included)",
        scale={"nice": False} if few else {"type": "log", "base": 2, "nice": False},
        axis={"values": sorted({row["count"] for row in values}) if few else TICKS, "format": "d"},
    )
    y = quantity("speedup", "speedup over plain decoding", scale={"zero": False})
    colour, dash = series("batch", names, f"recommended {counted(chains)} (speedup)", **columns(1, 2))
    tips = [
        category("batch", "batch"),
        quantity("count", counted(chains)),
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
                "data": {"values": rings},
                "mark": {"type": "point", "size": 110, "strokeWidth": 2.5},
                "encoding": {"x": x, "y": y, "color": colour},
            },
        ],
    )


def speedup_map(counts: pa.Table, recommended: Mapping[int, int], *, chains: bool) -> Spec:
    """Candidates (of chains: drafts) x batch, the speedup in every cell; a line where 1.0x is crossed.

    recommended: batch -> candidates, framed. Batches stand side by side since there are fewer of them:
    digits have room on a phone.
    """
    largest = max(recommended)
    batches = [batch for batch in (*_MAP_BATCHES, largest) if batch in recommended and batch <= largest]
    batches = list(dict.fromkeys(batches))
    lines = {batch: _rows_of(counts, batch) for batch in batches}
    known = {int(count) for line in lines.values() for count in line["candidates"]}
    shown = sorted({*_MAP_COUNTS, *(recommended[batch] for batch in batches)} & known)
    values = []
    for batch, line in lines.items():
        at = {int(count): place for place, count in enumerate(line["candidates"])}
        for count in shown:
            if count not in at:
                continue
            speedup, fits = float(line["speedup"][at[count]]), bool(line["fits_memory"][at[count]])
            values.append(
                {
                    "batch": batch,
                    "count": count - chains,
                    "speedup": _rounded(speedup),
                    "text": f"{speedup:.2f}" if fits else "-",
                    "best": fits and count == recommended[batch],
                    "fits": "yes" if fits else "no",
                    "ink": ink_on(map_colour(speedup)),
                }
            )
    x = {
        "field": "batch",
        "type": "ordinal",
        "title": "batch",
        "axis": {"labelAngle": 0, "orient": "top", "grid": False},
    }
    y = {"field": "count", "type": "ordinal", "title": counted(chains), "axis": {"grid": False}}
    legend = {"values": [0.3, 0.5, 0.7, 1.0, 1.5, 2.0, 3.0], "format": ".1f", "gradientLength": 240}
    ink = {
        "condition": [
            {"test": "datum.fits == 'no'", "value": NEUTRAL},
            {"test": "datum.ink == '#ffffff'", "value": "#ffffff"},
        ],
        "value": "#000000",
    }
    return base(
        21 * len(shown),
        data={"values": values},
        encoding={"x": x, "y": y},
        layer=[
            {
                "mark": {"type": "rect"},
                "encoding": {
                    "color": quantity(
                        "speedup", "speedup; 1.0: nothing gained", scale=_MAP_SCALE, legend=legend
                    ),
                    "opacity": {"condition": {"test": "datum.fits == 'no'", "value": 0.12}, "value": 1.0},
                    "tooltip": [
                        quantity("batch", "batch"),
                        quantity("count", counted(chains)),
                        quantity("speedup", "speedup"),
                        category("fits", "fits in memory"),
                    ],
                },
            },
            {
                "transform": [{"filter": "datum.best"}],
                "mark": {"type": "rect", "fill": None, "strokeWidth": 1.6, "cornerRadius": 2},
                "encoding": {"stroke": ink},
            },
            {
                "mark": {"type": "text", "fontSize": {"expr": on_phone(10, 11.5)}},
                "encoding": {"text": {"field": "text"}, "color": ink},
            },
            *_crossings(values, batches, [count - chains for count in shown]),
        ],
    )


def counted(chains: bool) -> str:
    """What a count is called: engines speak of drafts (num_speculative_tokens)."""
    return "drafts" if chains else "candidates"


def map_colour(speedup: float) -> str:
    """The colour of a cell, as the map's scale mixes it."""
    place = np.log(speedup)
    stops = np.log(_MAP_SCALE["domain"])
    channels = [
        np.interp(place, stops, [int(colour[i : i + 2], 16) for colour in _MAP_SCALE["range"]])
        for i in (1, 3, 5)
    ]
    return "#" + "".join(f"{round(float(channel)):02x}" for channel in channels)


def _crossings(values: Sequence[Spec], batches: Sequence[int], shown: Sequence[int]) -> list[Spec]:
    """Rules between neighbouring cells of which one gains or breaks even and the other loses."""
    fitting = [cell for cell in values if cell["fits"] == "yes"]
    loses = {(cell["batch"], cell["count"]): cell["speedup"] < 0.995 for cell in fitting}
    below = [
        {"batch": batch, "count": first}
        for batch in batches
        for first, second in pairwise(shown)
        if {(batch, first), (batch, second)} <= loses.keys() and loses[batch, first] != loses[batch, second]
    ]
    beside = [
        {"batch": first, "count": count}
        for count in shown
        for first, second in pairwise(batches)
        if {(first, count), (second, count)} <= loses.keys() and loses[first, count] != loses[second, count]
    ]
    rule = {"type": "rule", "color": _CROSSING, "strokeWidth": 2.4, "strokeCap": "square"}
    ordinal = {"type": "ordinal"}
    layers = []
    for rows, x, y in ((below, (0, 1), (1, None)), (beside, (1, None), (0, 1))):
        if not rows:
            continue
        encoding: Spec = {
            "x": {"field": "batch", **ordinal, "bandPosition": x[0]},
            "y": {"field": "count", **ordinal, "bandPosition": y[0]},
        }
        if x[1] is not None:
            encoding["x2"] = {"field": "batch", "bandPosition": x[1]}
        if y[1] is not None:
            encoding["y2"] = {"field": "count", "bandPosition": y[1]}
        layers.append({"data": {"values": rows}, "mark": rule, "encoding": encoding})
    return layers


def breakdown_rows(plain: StepTime, speculative: StepTime) -> pa.Table:
    """Microseconds of every part of both steps, kernels and the gaps between them."""
    import pyarrow as pa

    rows = []
    for step, time in (("plain", plain), ("speculative", speculative)):
        whole = float(time.time_us)
        parts: dict[str, float] = {part: float(us) for part, us in time.parts_us.items()}
        parts[BESIDE] = float(time.beside_us)
        rows += [
            {"step": step, "part": PARTS[part].title, "time_us": parts[part], "share": parts[part] / whole}
            for part in PARTS
            if parts.get(part, 0.0) > 0.0
        ]
    return pa.Table.from_pylist(rows)


def breakdown_chart(rows: pa.Table) -> Spec:
    """Two stacked bars, the parts in the order in which a step runs them; small ones are one, `other`."""
    looks = {look.title: look for look in PARTS.values()}
    values = []
    ends: dict[str, float] = {}
    for row in _folded(rows):
        start = ends.get(row["step"], 0.0)
        ends[row["step"]] = end = start + row["time_us"] / US_PER_MS
        text = f"{row['share']:.0%}"
        place = {"from": start, "to": end, "ms": end - start, "middle": (start + end) / 2}
        values.append({**row, **place, "text": text, "ink": ink_on(looks[row["part"]].colour)})
    present = [name for name in looks if any(row["part"] == name for row in values)]
    colour = category(
        "part",
        None,
        scale={"domain": present, "range": [looks[name].colour for name in present]},
        sort=present,
        legend={**columns(2, 4), "symbolType": "square", "symbolStrokeColor": "transparent"},
    )
    y = {"field": "step", "type": "nominal", "title": None, "axis": {"labelOverlap": False}}
    title = "time of one step (ms)"
    axis = {"tickCount": {"expr": "ceil(width / 70)"}}
    readable = f"(datum.to - datum.from) / {max(ends.values())} * width > 32"
    return base(
        110,
        data={"values": values},
        layer=[
            {
                "mark": {"type": "bar", "x2Offset": -1.5, "stroke": None},
                "encoding": {
                    "x": quantity("from", title, axis=axis),
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
                "transform": [{"filter": readable}],
                "mark": {"type": "text", "fontSize": 11, "fontWeight": "bold"},
                "encoding": {
                    "x": quantity("middle", title, axis=axis),
                    "y": y,
                    "text": {"field": "text"},
                    "color": {"field": "ink", "type": "nominal", "scale": None},
                },
            },
        ],
    )


def _folded(rows: pa.Table) -> list[Spec]:
    """Rows in stacking order; parts that are small in both steps are summed."""
    given = rows.to_pylist()
    large = {row["part"] for row in given if row["share"] >= SMALLEST_SHARE}
    rest: dict[str, Spec] = {}
    for row in given:
        if row["part"] not in large:
            sums = rest.setdefault(
                row["step"], {**row, "part": PARTS[OTHER].title, "time_us": 0.0, "share": 0.0}
            )
            sums["time_us"] += row["time_us"]
            sums["share"] += row["share"]
    order = [look.title for look in PARTS.values()]
    kept = [*(row for row in given if row["part"] in large), *rest.values()]
    return sorted(kept, key=lambda row: order.index(row["part"]))


def _rows_of(counts: pa.Table, batch: int) -> dict[str, npt.NDArray[Any]]:
    keep = np.asarray(counts.column("batch")) == batch
    return {name: np.asarray(counts.column(name))[keep] for name in counts.column_names}


def _rounded(value: float) -> float:
    return round(float(value), 4)
