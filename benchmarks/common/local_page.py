"""What a run of llama.cpp on this machine says of the predictions before it: scores, and the page.

Errors are of times; T(q) / T(1) has errors of its own. A median over passes counts; how far the passes are
apart says whether the machine was quiet enough to judge.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import msgspec
import numpy as np
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from common.study import table
from medusa_sim.arrays import FloatArray

STEADY = 0.08
"""Half of the spread of passes, relative, up to which medians are judged."""
AS_GOOD = 0.03
"""Of the speed, what a number of drafts may give up against the best."""
EVEN = 0.05
"""Within this of 1 nobody can say whether a run pays."""


class Verification(NamedTuple):
    """A pass of `columns` tokens behind `depth` others: with the file's own rows, without, and measured."""

    name: str
    form: str
    depth: int
    columns: int
    own_ms: float
    prior_ms: float
    measured_ms: float = float("nan")
    samples_ms: tuple[float, ...] = ()


class Round(NamedTuple):
    """Speedup and tokens a round of a way of drafting, predicted and measured."""

    name: str
    form: str
    way: str
    drafts: int
    speedup: float
    tokens: float
    measured: float = float("nan")
    measured_tokens: float = float("nan")


class Record(msgspec.Struct, frozen=True, kw_only=True):
    """All that a run predicted and measured. waited: runs that had to share their core."""

    steps: list[Verification]
    rounds: list[Round]
    differ: list[str]
    """Texts that are not those of plain decoding."""
    runs: int
    waited: int
    seconds: float
    threads: int
    gpu: str
    asked: str
    ties: list[str] = []
    """Texts that part from plain decoding where two tokens are equally good (`common/near_ties.py`)."""
    has_clock: bool = False
    """Whether programs timed themselves by the time that they had a core."""


def draw(record: Record, path: Path, name: str) -> None:
    """The curves of one model's files without a context: measured points, predicted lines."""
    figure = Figure(figsize=(7.2, 4.0), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots()
    forms = dict.fromkeys(row.form for row in record.steps if row.name == name)
    for color, form in enumerate(forms):
        rows = [row for row in record.steps if (row.name, row.form, row.depth) == (name, form, 0)]
        columns, shade = [row.columns for row in rows], f"C{color}"
        axes.plot(columns, relative(rows, "own_ms"), color=shade, label=form)
        axes.plot(columns, relative(rows, "measured_ms"), "o", color=shade, markersize=4)
    axes.set_xlabel("tokens of a pass, q")
    axes.set_ylabel("time over that of one token, T(q) / T(1)")
    axes.set_title("llama.cpp on one core: measured (points), predicted from five rows (lines)", fontsize=10)
    axes.grid(alpha=0.3)
    axes.legend(frameon=False)
    figure.savefig(path, dpi=150)


def percent(errors: Iterable[float]) -> str:
    """Mean and worst of absolute errors."""
    size = 100.0 * np.abs(np.asarray(list(errors), dtype=float))
    return f"{size.mean():.1f} / {size.max():.1f}" if size.size else "-"


def spread(each: Verification) -> float:
    """Half of the middle four fifths of the passes, over their median."""
    low, high = np.quantile(each.samples_ms, [0.1, 0.9])
    return float(0.5 * (high - low) / each.measured_ms)


def relative(rows: list[Verification], column: str) -> FloatArray:
    """T(q) / T(1) of rows of one file and depth, the first of which is one token."""
    times = np.array([getattr(row, column) for row in rows])
    divided: FloatArray = times / times[0]
    return divided


def best(rounds: list[Round]) -> tuple[Round, Round, float]:
    """(predicted, measured best of one way of drafting, speed that the predicted one gives up)."""
    chosen = max(rounds, key=lambda each: each.speedup)
    true = max(rounds, key=lambda each: each.measured)
    return chosen, true, 1.0 - chosen.measured / true.measured


Rows = TypeVar("Rows", Verification, Round)


def by_place(rows: list[Rows]) -> dict[tuple[Any, ...], list[Rows]]:
    """By the first three fields: passes by model, file and depth, rounds by model, file and drafter."""
    found: dict[tuple[Any, ...], list[Rows]] = {}
    for row in rows:
        found.setdefault(row[:3], []).append(row)
    return found


def page(record: Record, limit: float) -> tuple[str, bool]:
    """(tables, whether errors are below the limit in per cent, texts the same and the machine quiet)."""
    steady = float(np.median([spread(each) for each in record.steps]))
    times, without = (
        [getattr(row, name) / row.measured_ms - 1.0 for row in record.steps]
        for name in ("own_ms", "prior_ms")
    )
    gains = [one.speedup / one.measured - 1.0 for one in record.rounds]
    decided = [one for one in record.rounds if abs(one.measured - 1.0) > EVEN]
    right = sum((one.speedup > 1.0) == (one.measured > 1.0) for one in decided)
    clock = ", which their clock leaves out" if record.has_clock else ""
    is_quiet = steady <= STEADY
    lines = [
        "Time of a pass of q tokens, milliseconds of one and in multiples of it; errors in per cent, mean / "
        "worst: of times and of T(q)/T(1) with the file's own rows, of T(q)/T(1) without; spread: of the "
        "passes.\n",
        f"{passes_table(record.steps)}\n",
        "Speedups over plain decoding, at the acceptance that the engine counts:\n",
        f"{rounds_table(record.rounds)}\n",
        "Best number of drafts:\n",
        f"{choices_table(record.rounds)}\n",
        f"- Times of passes: {percent(times)} % ({len(times)} cells); without rows {percent(without)} %.",
        f"- Speedups: {percent(gains)} % ({len(gains)} runs); sign right in {right} of {len(decided)}.",
        f"- Texts with drafts are those without: {texts_told(record)}.",
        f"- {record.runs} runs in {record.seconds:.0f} s on {record.threads} thread(s); {record.waited} had "
        f"to wait for a core{clock}; passes are {100 * steady:.1f} % apart"
        + ("." if is_quiet else ": too far to judge, free the machine and run again."),
    ]
    means = [100.0 * float(np.mean(np.abs(some))) if some else 0.0 for some in (times, gains)]
    return "\n".join(lines), is_quiet and not record.differ and max(means) <= limit


def passes_table(steps: list[Verification]) -> str:
    """T(q) / T(1) of each file and depth, and errors with and without the file's own rows."""
    lines = []
    for place, rows in by_place(steps).items():
        true = relative(rows, "measured_ms")
        own, prior = (relative(rows, column) / true - 1.0 for column in ("own_ms", "prior_ms"))
        shown = {row.columns: ratio for row, ratio in zip(rows, true, strict=True)}
        lines.append(
            (*place, f"{rows[0].measured_ms:.3g}", *(f"{shown[m]:.2f}" for m in (2, 4, 8, 16, 32)),
             percent(row.own_ms / row.measured_ms - 1.0 for row in rows), percent(own[1:]),
             percent(prior[1:]), f"{100 * np.mean([spread(row) for row in rows]):.1f}")
        )  # fmt: skip
    words = "model | file | depth | T(1), ms | 2 | 4 | 8 | 16 | 32 | times | T(q)/T(1) | without | spread"
    return table(words, 2, lines)


def rounds_table(rounds: list[Round]) -> str:
    """Tokens of a round and speedups, predicted and measured."""
    return table("model | file | drafter | drafts | tokens | measured | speedup | measured | error, %", 3, [
        (*one[:3], one.drafts, f"{one.tokens:.2f}", f"{one.measured_tokens:.2f}", f"{one.speedup:.2f}",
         f"{one.measured:.2f}", f"{100 * (one.speedup / one.measured - 1):+.1f}")
        for one in rounds
    ])  # fmt: skip


def choices_table(rounds: list[Round]) -> str:
    """The best number of drafts of each way, predicted and measured."""
    lines = []
    for place, own in by_place(rounds).items():
        chosen, true, lost = best(own)
        lines.append((*place, chosen.drafts, true.drafts, f"{100 * lost:.1f}"))
    return table("model | file | drafter | predicted | measured | speed given up, %", 3, lines)


def texts_told(record: Record) -> str:
    """Which texts with drafts are not those of plain decoding."""
    told = f"not {'; '.join(record.differ)}" if record.differ else "all of them"
    return told + (f"; equally good tokens part {'; '.join(record.ties)}" if record.ties else "")
