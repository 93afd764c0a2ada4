"""The chart of set-ups, described once: what matplotlib draws in reports and Vega in the app.

A curve is what nothing beats among the set-ups of one card, without speculation (dotted) or with it (solid);
a point is a set-up at a batch. Speed and worth of a point follow the same time per token, so that its 80 %
interval is a piece of the curve's band: from the slow to the fast end of both.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from medusa_sim.errors import UsageError, unknown_name
from medusa_sim.report.figures.style import MARKERS, SHADES
from medusa_sim.setups.comparison import Comparison
from medusa_sim.setups.frontier import on_frontier
from medusa_sim.setups.setup import PLAIN

X_TITLE = "tokens/s a user (the reciprocal of the time per token)"
Y_TITLES = {
    "tokens_per_s_per_gpu": "output tokens/s a GPU",
    "usd_per_million_tokens": "dollars per million output tokens",
    "joule_per_token": "joules per output token",
    "tokens_per_s_per_mw": "output tokens/s per megawatt of GPUs",
}
"""What may stand on the vertical axis, by the column of the table."""
_FALLS_WITH_SPEED = ("usd_per_million_tokens", "joule_per_token")
CARDS = (
    "h100-sxm", "b200", "h200-sxm", "b300", "a100-80gb-sxm", "mi300x", "l40s", "gb200", "gb300", "l4", "a40",
    "a100-80gb-pcie", "rtx-4090", "rtx-5090", "rtx-pro-6000", "h100-pcie", "h100-nvl", "rtx-3090",
    "rtx-a6000", "a100-40gb",
)  # fmt: skip
"""Cards in the order in which colours and markers are given out, so that those often compared differ most."""


@dataclass(frozen=True, slots=True)
class Point:
    """A set-up at a batch. label: `64/3`, requests and drafts, or `64`. row: of the comparison's table."""

    x: float
    y: float
    label: str
    row: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Curve:
    """What nothing beats of one card, the slowest stream first.

    low, high: (x, y) of each point at the slow and at the fast end of its 80 % interval.
    """

    gpu: str
    speculative: bool
    colour: str
    marker: str
    points: tuple[Point, ...]
    low: tuple[tuple[float, float], ...]
    high: tuple[tuple[float, float], ...]

    @property
    def name(self) -> str:
        """`b200`, `b200, no speculation`."""
        return self.gpu if self.speculative else f"{self.gpu}, no speculation"

    @property
    def outline(self) -> tuple[tuple[float, float], ...]:
        """The band as a closed polygon."""
        return (*self.low, *self.high[::-1])


@dataclass(frozen=True, slots=True)
class Chart:
    """Curves, the target as a line, the chosen point; both axes logarithmic."""

    column: str
    y_title: str
    title: str
    curves: tuple[Curve, ...]
    target: float | None
    chosen: Point | None


def look_of(gpu: str) -> tuple[str, str]:
    """(colour, marker) of a card, the same in every chart; a card that is not listed has one by its name."""
    place = CARDS.index(gpu) if gpu in CARDS else sum(map(ord, gpu))
    return SHADES[place % len(SHADES)], MARKERS[place % len(MARKERS)]


def chart_of(answer: Comparison, column: str | None = None) -> Chart:
    """The chart of a comparison. column: of Y_TITLES; None: what the comparison saves.

    Cards without a value of the column (no price, no known power) have no curve. Raises UsageError for
    another column.
    """
    chosen_column = column or answer.column
    if chosen_column not in Y_TITLES:
        raise UsageError(unknown_name("vertical axis", chosen_column, Y_TITLES))
    curves = []
    for gpu in dict.fromkeys(answer.table.gpu):
        own = answer.table[answer.table.gpu == gpu]
        for speculative in (False, True):
            rows = own[(own.drafter != PLAIN) == speculative].to_dict("records")
            curve = _curve(gpu, speculative, rows, chosen_column)
            curves += [curve] if curve.points else []
    best = answer.chosen
    if best is not None and not np.isfinite(best[chosen_column]):
        best = None
    limit = answer.question.slowest_tpot_us
    return Chart(
        column=chosen_column,
        y_title=Y_TITLES[chosen_column],
        title=f"{answer.model.name}, {answer.question.prompt_tokens:g} + {answer.question.output_tokens:g} "
        "tokens",
        curves=tuple(curves),
        target=1e6 / limit if np.isfinite(limit) else None,
        chosen=None if best is None else _point(best, chosen_column),
    )


def _curve(gpu: str, speculative: bool, rows: list[dict[Any, Any]], column: str) -> Curve:
    falls = column in _FALLS_WITH_SPEED
    x = np.asarray([row["tokens_per_s_per_user"] for row in rows])
    y = np.asarray([row[column] for row in rows])
    kept = np.flatnonzero(on_frontier(x, -y if falls else y))
    kept = kept[np.argsort(x[kept])]
    chosen = [rows[i] for i in kept]
    ends = []
    for end in ("low", "high"):
        shares = [row[f"tokens_per_s_per_user_{end}"] / row["tokens_per_s_per_user"] for row in chosen]
        ends.append(
            tuple(
                (row["tokens_per_s_per_user"] * share, row[column] / share if falls else row[column] * share)
                for row, share in zip(chosen, shares, strict=True)
            )
        )
    colour, marker = look_of(gpu)
    points = tuple(_point(row, column) for row in chosen)
    return Curve(gpu, speculative, colour, marker, points, *ends)


def _point(row: Mapping[str, Any], column: str) -> Point:
    label = f"{row['batch']}/{row['drafts']}" if row["drafts"] else str(row["batch"])
    return Point(float(row["tokens_per_s_per_user"]), float(row[column]), label, row)
