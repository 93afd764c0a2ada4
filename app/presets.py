"""Set-ups to start from, as cards with their answers on them."""

from __future__ import annotations

import answers
import bar
import show
import streamlit as st
from chosen import PRESETS, Preset, SetUp, set_up_of

from medusa_sim.errors import MedusaSimError
from medusa_sim.plan.recommendation import scheduled_row_at
from medusa_sim.report.card import short_answer

_LANDED = "landed"


def answer_text(preset: Preset) -> str:
    """`2.17x with 5 drafts a step, off from 422 requests`: what its link would say."""
    return _answer_text(set_up_of(preset.words), int(preset.words.get("batch", 1)))


@answers.KEPT
def _answer_text(set_up: SetUp, batch: int) -> str:
    """The sentence is kept, for the answers of all cards do not fit beside the page's own."""
    answer = answers.planned(set_up)
    told = short_answer(answer, scheduled_row_at(answer, batch, set_up.seq_len))
    if told.kind not in ("pays", "uncertain"):
        return f"{told.action}; {told.more}"
    loses = answer.break_even_batch
    return f"{told.figure} {told.action}" + ("" if loses is None else f", off from {loses} requests")


def landed() -> bool:
    """Whether the app was opened at its bare address: its visitor may not know yet what to ask."""
    if _LANDED not in st.session_state:
        st.session_state[_LANDED] = not st.query_params
    return bool(st.session_state[_LANDED])


def cards() -> None:
    """A row of cards for who has landed; behind one button for who has not."""
    if landed():
        _cards()
        return
    with st.popover("Examples", type="tertiary", icon=":material/bookmark:"):
        _cards()


def _cards() -> None:
    with st.container(key="example_cards"):
        for preset in PRESETS:
            try:
                told = answer_text(preset)
            except MedusaSimError as error:  # a data folder of the user's own may lack something
                told = str(error)
            label = f"**{preset.name}** {show.escaped(told)} *{show.escaped(preset.about)}*"
            st.button(label, key=f"preset_{preset.name}", on_click=bar.take, args=(preset.words,), wrap=True)
