"""Charts of the papers' figures, predicted beside published."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from medusa_sim.errors import UsageError
from medusa_sim.gpus.gpu import Gpu
from medusa_sim.lab.reproduce.published import Reproduction, paper_roof
from medusa_sim.report.charts.chart import (
    Axis,
    LineChart,
    ReferenceLine,
    Series,
    colour_of,
    line_series,
    point_series,
)
from medusa_sim.report.charts.roofline import on_roof
from medusa_sim.units import TERA

if TYPE_CHECKING:
    import pandas as pd


_CALLED = {"seq_len": "length"}
_BASELINES = {
    "speedup_fixed": "as plotted in the paper: over one step at batch 1, length 1024",
    "speedup_same": "over plain decoding at the same batch and length",
}
_FIGURE21 = {
    "tokens per step": ("predicted_tokens_per_step", "published_tokens_per_step"),
    "latency / plain step": ("predicted_normalized_latency", "published_normalized_latency"),
    "speedup": ("speedup_fixed", "published_speedup"),
}
_METHODS = {
    "Recur. Rej. Samp.": "recursive rejection (RSD)",
    "OTM": "optimal transport",
    "K-SEQ": "K-SEQ (SpecTr)",
    "Multi-Round SD": "multi-round (SpecInfer)",
}
_BOTH = "candidates (lines: predicted, open marks: published)"


def reproduction_charts(target: Reproduction, gpu: Gpu) -> list[LineChart]:
    """The panels of a target that is about a GPU. Raises UsageError for one without a plot."""
    if target.draw is None:
        raise UsageError(f"{target.name} has no plot; leave out --plot, or export its rows with --format csv")
    return target.draw(target, gpu)


def bernoulli_charts(target: Reproduction, _: Gpu) -> list[LineChart]:
    """RSD Figure 1: a panel each draft."""
    return [_bernoulli(target.frame, draft) for draft in sorted(set(target.frame["draft_p"]))]


def efficiency_charts(target: Reproduction, _: Gpu) -> list[LineChart]:
    """RSD Figures 4 and 5: a panel each target, draft and task."""
    pairs = target.frame["pair"]
    return [_efficiency(target.frame[pairs == pair], pair) for pair in sorted(set(pairs))]


def figure21_charts(target: Reproduction, _: Gpu) -> list[LineChart]:
    """Figure 21: tokens per step, latency and speedup in one panel."""
    lines = [(name, target.frame, *pair) for name, pair in _FIGURE21.items()]
    return [_both(target.title, "tokens, or ratio to a plain step", lines)]


def speedup_charts(target: Reproduction, _: Gpu) -> list[LineChart]:
    """Figures 22 and 23: a panel each baseline."""
    return [published_chart(target.frame, baseline, title) for baseline, title in _BASELINES.items()]


def operator_charts(target: Reproduction, gpu: Gpu) -> list[LineChart]:
    """Figures 9 to 17: operators on the roofline."""
    series = [
        _speeds(str(name), place, rows, "flops_per_s")
        for place, (name, rows) in enumerate(target.frame.groupby("series", sort=True))
    ]
    return [on_roof(target.title, paper_roof(gpu), "fp16", _intensity(target.frame), series)]


def point_charts(target: Reproduction, gpu: Gpu) -> list[LineChart]:
    """Figures 18 to 20: cells of a table on the roofline."""
    return [_cells(target.frame, gpu, target.title)]


def table_charts(target: Reproduction, gpu: Gpu) -> list[LineChart]:
    """Tables 6 to 8: times, and cells on the roofline."""
    lines = [(name, rows, "predicted_us", "published_us") for name, rows in _grouped(target.frame)]
    times = _both("time", "time of one operator (us)", lines, base=10)
    return [times, _cells(target.frame, gpu, "on the roofline")]


def published_chart(frame: pd.DataFrame, baseline: str, title: str = "") -> LineChart:
    """Speedup by candidates over a baseline, a line each batch or length."""
    lines = [(name, rows, baseline, "published_speedup") for name, rows in _grouped(frame)]
    return _both(title, "speedup", lines, limits=[ReferenceLine(y=1.0)])


def _grouped(frame: pd.DataFrame) -> Iterable[tuple[str, pd.DataFrame]]:
    column = "seq_len" if len(set(frame["seq_len"])) > 1 else "batch"
    return ((f"{_CALLED.get(column, column)} {key}", rows) for key, rows in frame.groupby(column, sort=True))


def _both(
    title: str,
    y: str,
    lines: Sequence[tuple[str, pd.DataFrame, str, str]],
    *,
    x: str = "candidates",
    x_title: str = _BOTH,
    x_ticks: Sequence[float] = (),
    base: int = 0,
    limits: Sequence[ReferenceLine] = (),
) -> LineChart:
    """A line and open markers each (name, rows, predicted column, published column)."""
    series: list[Series] = []
    for place, (name, rows, predicted, published) in enumerate(lines):
        at, given = rows[x].to_numpy(), rows[published].to_numpy(dtype=np.float64)
        kept = np.flatnonzero(~np.isnan(given))
        drawn: list[dict[str, Any]] = [
            {"name": name, "x": row[x], "predicted": row[predicted]} for row in rows.to_dict("records")
        ]
        for i, value in zip(kept, given[kept].tolist(), strict=True):
            drawn[i]["published"] = value
        series += [
            line_series(name, place, at, rows[predicted].to_numpy(), rows=drawn),
            point_series(
                name, place, at[kept], given[kept], filled=False, size=6.0, rows=[drawn[i] for i in kept]
            ),
        ]
    return LineChart(
        title=title, x=Axis(title=x_title, ticks=x_ticks), y=Axis(title=y, base=base, zero=base == 0),
        series=series, limits=limits,
        tips=(("name", "line", ""), ("x", x.replace("_", " "), ".3~g"), ("predicted", "predicted", ".2f"),
              ("published", "published", ".2f")),
    )  # fmt: skip


def _intensity(frame: pd.DataFrame) -> np.ndarray:
    return frame["operational_intensity"].to_numpy(dtype=np.float64)


def _speeds(name: str, place: int, rows: pd.DataFrame, column: str, **more: Any) -> Series:
    return point_series(name, place, _intensity(rows), rows[column].to_numpy(dtype=np.float64) / TERA, **more)


def _cells(frame: pd.DataFrame, gpu: Gpu, title: str) -> LineChart:
    """Predicted and published FLOP/s of the cells of a table, on the roofline."""
    speed = frame["predicted_flops_per_s"].to_numpy(dtype=np.float64) / TERA
    predicted = Series(name="predicted", x=_intensity(frame), y=speed, colour=colour_of(1), marker="P")
    published = _speeds("published", 0, frame, "published_flops_per_s", filled=False, size=7.0)
    series = [predicted, published]  # open marks around the filled ones, which would hide them
    return on_roof(title, gpu, "fp16", _intensity(frame), series)


def _bernoulli(frame: pd.DataFrame, draft: float) -> LineChart:
    """RSD Figure 1: acceptance by the target's probability, of one draft."""
    rows = frame[frame["draft_p"] == draft]
    series = []
    for place, (method, name) in enumerate(_METHODS.items()):
        own = rows[rows["method"] == method]
        series.append(
            line_series(name, place, own["target_q"].to_numpy(), own["predicted_acceptance"].to_numpy())
        )
    return LineChart(
        title=f"draft Ber({draft:g})",
        x=Axis(title="target probability q"),
        y=Axis(title="acceptance rate", zero=True),
        series=series,
    )


def _efficiency(rows: pd.DataFrame, pair: str) -> LineChart:
    """RSD Figures 4 and 5: block efficiency of each method, of one target, draft and task."""
    axis = "draft_length" if "draft_length" in rows else "budget"
    lines = [
        (str(name), own.sort_values(axis), "predicted_block_efficiency", "published_block_efficiency")
        for name, own in rows.groupby("decoder", sort=True)
    ]
    x_title = "draft length" if axis == "draft_length" else "draft tokens verified at once"
    return _both(pair.replace(" / 115M", ""), "block efficiency (tokens per step)", lines, x=axis,
                 x_title=f"{x_title}; open marks: published", x_ticks=sorted(set(rows[axis])))  # fmt: skip
