"""Side by side: two answers, what differs between them in words, figures and a curve."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import answers
import kept_answers
import link
import numpy as np
import show
import streamlit as st
from charts.draw import lines_spec
from chosen import POINT, PageArguments, set_up_of

from medusa_sim.errors import MedusaSimError
from medusa_sim.grid.quantity import BY_NAME
from medusa_sim.plan.recommendation import Recommendation
from medusa_sim.plan.schedule import gains_by_batch
from medusa_sim.plan.schedule_row import ScheduleRow
from medusa_sim.report.charts.chart import Axis, LineChart, ReferenceLine, Series, colour_of
from medusa_sim.report.charts.sweep import POWERS, SPEEDUP
from medusa_sim.report.recommend.sentences import short_answer
from medusa_sim.report.words.basis import rests_on
from medusa_sim.report.words.numbers import significant, times
from medusa_sim.scenario.arguments import ARGUMENTS

_AS_FAST = 1.005
"""Of two speeds, the larger over the smaller, below which they are told as equal."""
_INTERVAL = BY_NAME["interval"].title
_USER_S = BY_NAME["tokens_per_s_per_user"].on_axis
_ALL_S = f"{BY_NAME['tokens_per_s'].title}, prompts counted"


@dataclass(frozen=True, slots=True, kw_only=True)
class Side:
    """One of the two: `A` or `B`, its set-up, answer and row at its batch."""

    name: str
    set_up: PageArguments
    answer: Recommendation
    row: ScheduleRow


def page(set_up: PageArguments) -> None:
    """The two that are chosen of what is kept and the question above."""
    del set_up  # its words are those of the link
    st.title("Side by side", anchor=False)
    link.read("batch", "look")
    kept = list(dict.fromkeys([*kept_answers.all_kept(), kept_answers.this()]))
    show.ignored_note()
    if len(kept) < 2:
        st.info("Keep an answer on the page Answer, then change the question above: both stand here.")
        return
    named = names_of(kept)
    left, right = st.columns(2)
    first = left.selectbox("A", kept, 0, format_func=named.__getitem__, key="side_a")
    second = right.selectbox("B", kept, len(kept) - 1, format_func=named.__getitem__, key="side_b")
    with show.progress("answers"):
        sides = [_side(name, words) for name, words in (("A", first), ("B", second))]
    one, other = sides
    st.markdown(f"**{show.escaped(verdict(one, other))}**")
    show.table([*differences(one, other), *figures(one, other)])
    show.chart(
        lines_spec(curves(one, other), 300),
        name="beside",
        caption="Speedup over plain decoding at the same batch, bands: 80 %. A cross: where each was asked.",
        rows=lambda: [
            {"side": side.name, **row}
            for side in sides
            for row in gains_by_batch(side.answer.rows_at(side.set_up.seq_len))
        ],
        alt="Speedup against the batch, one line for each of the two",
    )  # fmt: skip
    st.button("Forget what is kept", on_click=kept_answers.forget, type="tertiary", icon=":material/delete:")


def names_of(kept: list[str]) -> dict[str, str]:
    """What each of them says that not all do, which a narrow screen has room for; of equals all."""
    said = {each: _said(each) for each in kept}
    shared = set.intersection(*map(set, said.values()))
    differing = {each: [part for part in parts if part not in shared] for each, parts in said.items()}
    return {each: POINT.join(differing[each] or parts) for each, parts in said.items()}


def _said(words: str) -> list[str]:
    """Parts of a kept answer's question."""
    said = kept_answers.words_of(words)
    try:
        return [*set_up_of(said).line.split(POINT), f"{said.get('batch', '1')} at once"]
    except (MedusaSimError, ValueError):
        return ["a link that says no set-up"]


def _side(name: str, words: str) -> Side:
    said = kept_answers.words_of(words)
    set_up = set_up_of(said)
    answer = answers.planned(set_up)
    typed = said.get("batch", "1")
    batches = answer.cells.surface.batch
    batch = int(batches[np.argmin(np.abs(batches - (int(typed) if typed.isdecimal() else 1)))])
    return Side(name=name, set_up=set_up, answer=answer, row=answer.scheduled_row_at(batch, set_up.seq_len))


def verdict(one: Side, other: Side) -> str:
    """Which of the two gives a user more tokens a second, and what speculation is worth in each."""
    speeds = [side.row.tokens_per_s_per_user for side in (one, other)]
    fast, slow = (one, other) if speeds[0] >= speeds[1] else (other, one)
    told = [short_answer(side.answer, side.row) for side in (one, other)]
    gains = "; ".join(
        f"{side.name}: {each.figure} {each.action}" for side, each in zip((one, other), told, strict=True)
    )
    if not min(speeds) > 0.0 or "no room" in (each.kind for each in told):
        return f"{gains}."
    share = max(speeds) / min(speeds)
    if share < _AS_FAST:
        return f"{one.name} and {other.name} give a user equally many tokens/s. {gains}."
    return f"{fast.name} gives a user {share:.2f} times the tokens/s of {slow.name}. {gains}."


def differences(one: Side, other: Side) -> list[dict[str, str]]:
    """What was asked otherwise, a row each."""

    def said(side: Side) -> dict[str, Any]:
        page, request = side.set_up, answers.usual_request(side.set_up)
        asked = {each.label: getattr(page, each.name) for each in ARGUMENTS.values() if each.label}
        asked["Request"] = "none" if request is None else f"{request[0]:,} in, {request[1]:,} out"
        return {**asked, "Context": f"{page.seq_len:,}", "Requests at once": side.row.batch_max}

    first, second = said(one), said(other)
    return [
        {"what": name, "A": _shown(first[name]), "B": _shown(second[name])}
        for name in first
        if first[name] != second[name]
    ]


def _shown(value: Any) -> str:
    return "as the app has it" if value is None else str(value)


def figures(one: Side, other: Side) -> list[dict[str, str]]:
    """Figures of both, a row each."""
    columns: list[dict[str, str]] = []
    for side in (one, other):
        row, answer = side.row, side.answer
        told, fits = short_answer(answer, row), row.fits_memory
        loses = answer.break_even_batch
        until = "-" if not answer.enable else "never" if loses is None else str(loses)
        usd = row.usd_per_million_tokens
        columns.append({
            "speedup": times(row.speedup) if fits else told.figure,
            _INTERVAL: told.more.removeprefix(f"{_INTERVAL}: "),
            "what to do": told.action,
            _USER_S: significant(row.tokens_per_s_per_user, 3) if fits else "-",
            _ALL_S: significant(row.tokens_per_s, 3) if fits else "-",
            "$ a million tokens": significant(usd, 3) if fits and usd is not None else "-",
            "off from, requests at once": until,
            "most at once": str(row.max_batch_with),
            "rests on": rests_on(answer.scenario),
        })  # fmt: skip
    return [{"what": name, "A": columns[0][name], "B": columns[1][name]} for name in columns[0]]


def curves(one: Side, other: Side) -> LineChart:
    """Speedup of both by batch with their bands."""
    series = []
    for place, side in enumerate((one, other)):
        rows = gains_by_batch(side.answer.rows_at(side.set_up.seq_len))
        rows = [row for row in rows if row["fits_memory"] and not row["no_room_to_draft"]]
        if not rows:
            continue
        batch, gain, low, high = (
            np.asarray([row[name] for row in rows], dtype=np.float64)
            for name in ("batch", "speedup", "speedup_low", "speedup_high")
        )
        look = {"colour": colour_of(place), "line": ("-", "--")[place]}
        series.append(Series(name=side.name, x=batch, y=gain, low=low, high=high, **look))  # type: ignore[arg-type]
        at = np.flatnonzero(batch == side.row.batch_max)
        series.append(
            Series(name=f"{side.name}, as asked", x=batch[at], y=gain[at], marker="X", size=9.0,
                   colour=colour_of(place), in_legend=False)
        )  # fmt: skip
    return LineChart(
        title="", x=Axis(title="requests at once (batch)", base=2, ticks=POWERS), y=Axis(title=SPEEDUP),
        series=series, limits=[ReferenceLine(y=1.0, text="", line="--")],
    )  # fmt: skip
