"""Charts of one length, every count and some batches: speedup, the map of both, where a step's time goes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from medusa_sim.arrays import evenly
from medusa_sim.grid.quantity import BY_NAME
from medusa_sim.plan.count_curves import cliffs
from medusa_sim.report.charts.chart import (
    Axis,
    Bar,
    BarChart,
    HeatMap,
    LineChart,
    MapCell,
    ReferenceLine,
    Series,
    bar_chart,
    colour_of,
    line_series,
)
from medusa_sim.report.length_view import LengthView
from medusa_sim.report.palette import BESIDE, PARTS
from medusa_sim.report.words.numbers import significant
from medusa_sim.step.pass_times import PassTimes
from medusa_sim.units import US_PER_MS

SPEEDUP = "speedup over plain decoding"
POWERS = (1, 2, 4, 8, 16, 32, 64, 128, 256)
_MOST_LINES = 8
_MOST_BARS = 8
_MOST_BANDS = 2
"""Of a chart, beyond which they hide each other: the first and the last batch have one."""
_FEW_TICKS = 18
_FEW = 5
"""Too few counts to call a step a cliff."""
_CLIFFS_MATTER = 0.95
"""Cliffs of lines that lie below this speedup are not marked: nobody would go there."""


def count_word(chains: bool) -> str:
    """Name of a count; engines speak of drafts (num_speculative_tokens)."""
    return "drafts" if chains else "candidates"


def speedup_chart(view: LengthView, title: str, *, chains: bool = False) -> LineChart:
    """A line a batch, 80 % bands of the first and the last; a ring at the marked count, bars at cliffs.

    chains: count drafts, 0 for plain decoding, and not candidates.
    """
    series: list[Series] = []
    shown = np.flatnonzero(np.isin(view.batch, evenly(view.batch, _MOST_LINES)))
    counts = view.counts - chains
    few = counts.size <= _FEW_TICKS
    for place, at in enumerate(shown):
        gain, ring = view.speedup[at], int(view.best[at])
        count = int(counts[ring])
        label = "off" if view.counts[ring] == 1 else f"{count} ({gain[ring]:.2f}x)"
        name = f"batch {view.batch[at]}: {label}"
        has_band = len(shown) <= _MOST_BANDS or at in shown[[0, -1]]
        band = {"low": view.speedup_low[at], "high": view.speedup_high[at]} if has_band else {}
        rows = [
            {
                "name": name,
                "count": int(counts[i]),
                "speedup": float(gain[i]),
                "tokens_per_step": float(view.tokens_per_step[at, i]),
                "overhead": float(view.step_us[at, i] / view.decode_us[at]),
            }
            for i in range(counts.size)
        ]
        steep = cliffs(view.step_us[at])[: None if counts.size > _FEW else 0] - 1
        steep = steep[gain[steep] >= _CLIFFS_MATTER]
        series += [
            line_series(name, place, counts, gain, rows=rows, **band),
            Series(name=name, x=counts[steep], y=gain[steep], colour=colour_of(place), marker="|", size=9.0),
            Series(
                name=name, x=counts[[ring]], y=gain[[ring]], colour=colour_of(place), marker="o",
                filled=False, size=9.0, rows=[rows[ring]],
            ),
        ]  # fmt: skip
    return LineChart(
        title=title,
        x=Axis(
            title="drafts in one step (0: plain decoding)"
            if chains
            else "candidates in one step (root included)",
            base=0 if few else 2,
            ticks=counts.tolist() if few else [power for power in POWERS if power <= counts[-1]],
        ),
        y=Axis(title=SPEEDUP),
        series=series,
        limits=[ReferenceLine(y=1.0, text="plain decoding")],
        legend=f"{view.marked} (speedup)",
        tips=(
            ("name", "batch", ""), ("count", count_word(chains), "d"),
            ("speedup", BY_NAME["speedup"].title, ".2f"),
            ("tokens_per_step", BY_NAME["tokens_per_step"].title, ".2f"),
            ("overhead", BY_NAME["overhead"].title, ".2f"),
        ),
    )  # fmt: skip


def heat_map(view: LengthView, title: str, *, chains: bool = False) -> HeatMap:
    """The speedup of every batch and count asked for; marked cells are framed."""
    cells = [
        MapCell(
            batch=int(batch),
            count=int(view.counts[column]) - chains,
            speedup=float(view.speedup[row, column]),
            is_best=bool(view.fits[row, column] and column == view.best[row]),
            fits=bool(view.fits[row, column]),
        )
        for row, batch in enumerate(view.batch)
        for column in np.searchsorted(view.counts, view.grid_counts)
    ]
    return HeatMap(
        title=title, value="speedup; 1.0: nothing gained", counted=count_word(chains),
        batches=view.batch.tolist(), counts=(view.grid_counts - chains).tolist(), cells=cells,
    )  # fmt: skip


def step_bars(view: LengthView, title: str) -> BarChart:
    """Plain step and marked verification step of each batch, part by part, in its plain steps."""
    rows = []
    for at in np.flatnonzero(np.isin(view.batch, evenly(view.batch, _MOST_BARS))):
        best = int(view.best[at])
        steps = [("1", {name: part[at, 0] for name, part in view.parts_us.items()})]
        if view.counts[best] > 1:
            drafted = {name: part[at, best] for name, part in view.parts_us.items()}
            steps.append((str(view.counts[best]), drafted))
        rows += [
            Bar(
                group=f"batch {view.batch[at]}",
                name=name,
                parts={part: float(us / view.decode_us[at]) for part, us in parts_us.items()},
                text=significant(sum(parts_us.values()) / US_PER_MS, 3),
            )
            for name, parts_us in steps
        ]
    return bar_chart(title, "step / plain step of that batch (at the ends: ms)",
                f"candidates: plain decoding, and {view.marked}", rows)  # fmt: skip


def two_steps(steps: Sequence[tuple[str, PassTimes]]) -> BarChart:
    """These steps part by part, in milliseconds."""
    return bar_chart("", "time of one step (ms)", "", [
        Bar(group="", name=name, parts={part: us / US_PER_MS for part, us in step_parts_us(time).items()})
        for name, time in steps
    ])  # fmt: skip


def step_rows(steps: Sequence[tuple[str, PassTimes]]) -> list[dict[str, Any]]:
    """Steps as rows of their parts: step, part, time_us, share."""
    return [
        {"step": name, "part": PARTS[part].title, "time_us": us, "share": us / float(time.time_us)}
        for name, time in steps
        for part, us in sorted(step_parts_us(time).items(), key=lambda item: list(PARTS).index(item[0]))
    ]


def step_parts_us(time: PassTimes) -> dict[str, float]:
    """Microseconds of every part of a step, and of the time outside its kernels."""
    parts = {str(part): float(us) for part, us in time.parts_us.items()} | {BESIDE: float(time.no_kernels_us)}
    return {name: us for name, us in parts.items() if us > 0.0}
