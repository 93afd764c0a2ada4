"""The chart of set-ups: what a GPU gives against what a user gets, a curve for each GPU.

A curve is what nothing beats among the set-ups of one GPU, without speculation (dotted) or with it (solid);
a point is a set-up at a batch. Speed and worth of a point follow the same time per token, so that its 80 %
interval is a piece of the curve's band: from the slow to the fast end of both. Where a set-up was chosen, its
GPU alone has bands: those of five GPUs hide each other.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from medusa_sim.arrays import BoolArray, FloatArray
from medusa_sim.errors import UsageError, unknown_name
from medusa_sim.grid.quantity import BY_NAME
from medusa_sim.report.charts.chart import Axis, LineChart, ReferenceLine, Series, Tip, colour_of, marker_of
from medusa_sim.report.formats import json_row
from medusa_sim.report.words.basis import rests_on
from medusa_sim.report.words.numbers import percent, significant
from medusa_sim.setups.comparison import on_frontier
from medusa_sim.setups.measured import nearest
from medusa_sim.setups.quantities import AGAINST_SPEED
from medusa_sim.setups.served_figures import Figure
from medusa_sim.setups.setup import NO_DRAFTER, SET_UP, name_of

if TYPE_CHECKING:
    import pandas as pd

    from medusa_sim.setups.comparison import Comparison

Y_TITLES = {name: BY_NAME[name].on_axis for name in AGAINST_SPEED}
"""Titles of the quantities that the vertical axis can show, by column of the table."""
_SPEED = "tokens_per_s_per_user"
GPUS_BY_LOOK = (
    "h100-sxm", "b200", "h200-sxm", "b300", "a100-80gb-sxm", "mi300x", "l40s", "gb200", "gb300", "l4", "a40",
    "a100-80gb-pcie", "rtx-4090", "rtx-5090", "rtx-pro-6000", "h100-pcie", "h100-nvl", "rtx-3090",
    "rtx-a6000", "a100-40gb",
)  # fmt: skip
"""GPUs in the order in which colours and markers are given out, so that those often compared differ most."""
ANSWER, MEASURED = "the answer", "measured"
"""Points apart from the curves."""
_APART = (0.12, 0.05)
"""Of the axes, across and up, between the names of two points."""
_TIPS: tuple[Tip, ...] = (
    *((name, BY_NAME[name].title, form) for name, form in (
        ("set_up", ""), ("batch", "d"), ("drafts", ""), (_SPEED, ",.3~r"), ("interval", ""),
        ("tokens_per_s_per_gpu", ",.3~r"), ("usd_per_million_tokens", "$,.3~r"), ("joule_per_token", ",.3~r"),
    )),
    ("rests_on", "rests on", ""),
)  # fmt: skip

_MADE = ("set_up", "drafts", "interval", "rests_on")
"""Values shown at a point that are made of several columns."""
_READ = tuple(name for name, *_ in _TIPS if name not in _MADE)
_USED = (*_READ, "gpus", "drafts", f"{_SPEED}_low", f"{_SPEED}_high", "chosen", "on_frontier")
"""Columns of a table that a curve is drawn from, besides those of set-ups."""


def look_of(gpu: str) -> tuple[str, str]:
    """(colour, marker) of a GPU, the same in every chart; a GPU that is not listed has one by its name."""
    place = GPUS_BY_LOOK.index(gpu) if gpu in GPUS_BY_LOOK else sum(map(ord, gpu))
    return colour_of(place), marker_of(place)


def setups_chart(answer: Comparison, column: str | None = None, *, with_basis: bool = True) -> LineChart:
    """Both axes logarithmic. column: of Y_TITLES; None: what the comparison saves. with_basis: points tell
    what they rest on, some milliseconds each.

    GPUs without a value of the column (no price, no known power) have no curve. Raises UsageError for
    another column.
    """
    column = column or answer.column
    if column not in Y_TITLES:
        raise UsageError(unknown_name("vertical axis", column, Y_TITLES))
    best, curves = answer.chosen, _curves(answer.table, column)
    basis: dict[tuple[Any, ...], str] = {}
    for row in (row for _, _, rows in curves for row in rows):
        if with_basis and (key := answer.key(row)) not in basis:
            basis[key] = rests_on(answer.scenarios[key], plain=row["drafter"] == NO_DRAFTER)
        row["rests_on"] = basis.get(answer.key(row), "")
    best = best and {**best, "rests_on": basis.get(answer.key(best), "")}
    named = _named([row for _, _, rows in curves for row in rows], column)
    solid = {gpu for gpu, speculative, _ in curves if speculative}  # whose dotted curve goes without saying
    series = [
        _curve(
            gpu, rows, column, named, speculative=speculative, in_legend=speculative or gpu not in solid,
            banded=best is None or gpu == best["gpu"],
        )
        for gpu, speculative, rows in curves
    ]  # fmt: skip
    if best is not None and np.isfinite(best[column]):
        series.append(_one(ANSWER, best[_SPEED], best[column], best, marker="o", filled=False, size=11.0))
    series += _measured(answer, column)
    target = 1e6 / answer.question.slowest_tpot_us
    return LineChart(
        title=f"{answer.model.name}, {answer.question.prompt_tokens:g} + {answer.question.output_tokens:g} "
        "tokens; points: requests / drafts, dotted: no speculation",
        x=Axis(title=f"{BY_NAME[_SPEED].on_axis} (the reciprocal of the time per token)", base=10),
        y=Axis(title=Y_TITLES[column], base=10),
        series=series,
        limits=[ReferenceLine(x=target, text=f"{target:g} tokens/s a user", line="--")]
        if target > 0.0
        else [],
        tips=_TIPS,
    )


def _curves(table: pd.DataFrame, column: str) -> list[tuple[str, bool, list[dict[str, Any]]]]:
    """(GPU, whether it speculates, rows of the frontier) of every GPU with a value of the column."""
    used, curves = list(dict.fromkeys([*SET_UP, *_USED, column])), []
    for gpu in dict.fromkeys(table.gpu):
        of_gpu = table[table.gpu == gpu]
        for speculative in (False, True):
            rows = of_gpu[(of_gpu.drafter != NO_DRAFTER) == speculative]
            kept = _kept(rows[_SPEED].to_numpy(), rows[column].to_numpy(), column)
            curves += [(gpu, speculative, rows[used].iloc[kept].to_dict("records"))] if kept.size else []
    return curves


def _measured(answer: Comparison, column: str) -> Iterator[Series]:
    """The measurement near the answer, if there is one."""
    measured = nearest(answer)
    if measured is None or not measured.near or not np.isfinite(measured.value(column)):
        return
    colour, _ = look_of(measured.row["gpu"])
    text = f"measured; predicted {percent(measured.error, 0, signed=True)}"
    yield _one(
        MEASURED, measured.figure.tokens_per_s_per_user, measured.value(column), measured.row,
        marker="X", size=8.0, colour=colour, texts=[text],
    )  # fmt: skip


def banded(answer: Comparison) -> str:
    """What bands enclose, for a caption."""
    return "bands: 80 %" if answer.chosen is None else f"bands: 80 % of {answer.chosen['gpu']}"


def left_out(answer: Comparison, column: str) -> str:
    """A sentence that names the GPUs that have no curve of a column, with a space before it; or nothing."""
    has_value = answer.table[column].notna().groupby(answer.table.gpu, sort=False).any()
    missing = [str(gpu) for gpu in has_value.index[~has_value]]
    lacks = "price" if column == "usd_per_million_tokens" else "power limit"
    return f" Not drawn, as no {lacks} is known: {', '.join(missing)}." if missing else ""


def _kept(speed: FloatArray, worth: FloatArray, column: str) -> FloatArray:
    """Places of the points that nothing beats, the slowest stream first."""
    places = np.flatnonzero(on_frontier(speed, -worth if BY_NAME[column].better == "less" else worth))
    return np.asarray(places[np.argsort(speed[places])])


def _curve(
    gpu: str,
    rows: Sequence[Mapping[Any, Any]],
    column: str,
    named: Sequence[Any],
    *,
    speculative: bool,
    in_legend: bool,
    banded: bool,
) -> Series:
    x, y, low, high = (
        np.array([row[name] for row in rows]) for name in (_SPEED, column, f"{_SPEED}_low", f"{_SPEED}_high")
    )
    sign = -1.0 if BY_NAME[column].better == "less" else 1.0
    slow, fast = ((x * share, y * share**sign) for share in (low / x, high / x))
    colour, marker = look_of(gpu)
    ends = [*zip(*slow, strict=True), *reversed(list(zip(*fast, strict=True)))]
    return Series(
        name=gpu if speculative else f"{gpu}, no speculation", x=x, y=y, colour=colour, marker=marker,
        line="-" if speculative else ":", filled=speculative, in_legend=in_legend,
        outline=[(float(across), float(up)) for across, up in ends] if banded and len(rows) > 1 else (),
        texts=[_label(row) if any(row is other for other in named) else "" for row in rows],
        rows=[_tip(row) for row in rows],
    )  # fmt: skip


def _one(name: str, x: float, y: float, row: Mapping[Any, Any], **look: Any) -> Series:
    """A point that the caption tells of."""
    return Series(name=name, x=np.array([x]), y=np.array([y]), rows=[_tip(row)], in_legend=False, **look)


def _label(row: Mapping[Any, Any]) -> str:
    """`64/3`, requests and drafts; `64` without any."""
    return f"{row['batch']}/{row['drafts']}" if row["drafts"] else str(row["batch"])


def _tip(row: Mapping[Any, Any]) -> dict[str, Any]:
    low, high = (significant(float(row[f"{_SPEED}_{end}"]), 3) for end in ("low", "high"))
    return {
        **json_row({name: row[name] for name in _READ}),
        "set_up": name_of(row),
        "drafts": str(row["drafts"] or "none"),
        "interval": f"{low} to {high}",
        "rests_on": row.get("rests_on", ""),
    }


def _named(rows: Sequence[Mapping[Any, Any]], column: str) -> list[Mapping[Any, Any]]:
    """Rows that nothing at all beats, those that stand far enough from each other for a name."""
    if not rows:
        return []
    places = np.log(np.array([[row[_SPEED], row[column]] for row in rows]))
    away = np.asarray(_APART) * np.maximum(np.ptp(places, axis=0), 1e-9)
    kept: list[int] = []
    for i in sorted(range(len(rows)), key=lambda place: not rows[place]["chosen"]):
        apart: BoolArray = (np.abs(places[kept] - places[i]) > away).any(axis=1)
        if (rows[i]["on_frontier"] or rows[i]["chosen"]) and apart.all():
            kept.append(i)
    return [rows[i] for i in kept]


def measured_chart(figure: Figure, curve: Mapping[str, Any]) -> LineChart:
    """tokens/s a user by batch as predicted for a measured set-up, with its band, and the measurement."""
    colour, _ = look_of(figure.set_up["gpu"])
    speed = figure.tokens_per_s_per_user
    return LineChart(
        title="",
        x=Axis(title="requests", base=2),
        y=Axis(title=BY_NAME[_SPEED].on_axis),
        series=[
            Series(
                name="predicted", x=np.asarray(curve["batch"], dtype=np.float64), y=curve[_SPEED],
                low=curve[f"{_SPEED}_low"], high=curve[f"{_SPEED}_high"], colour=colour, line="-",
                in_legend=False,
            ),
            Series(
                name=MEASURED, x=np.array([float(figure.batch)]), y=np.array([speed]), colour=colour,
                marker="X", size=9.0, in_legend=False, texts=[MEASURED],
            ),
        ],
    )  # fmt: skip
