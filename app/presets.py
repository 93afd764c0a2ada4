"""Set-ups to start from, as cards with their answers on them."""

from __future__ import annotations

import answers
import bar
import show
import streamlit as st
from chosen import PRESETS, set_up_of

from medusa_sim.errors import MedusaSimError
from medusa_sim.report.recommend.sentences import short_answer

_LANDED = "landed"


@answers.KEPT
def answer_text(name: str) -> str:
    """`2.17x with 5 drafts a step, off from 422 requests`: what the link of a preset would say.

    The sentence is kept, for the answers of all cards do not fit in memory with the page's own.
    """
    words = next(preset.words for preset in PRESETS if preset.name == name)
    set_up = set_up_of(words)
    answer = answers.planned(set_up)
    told = short_answer(answer, answers.row_at(set_up, int(words.get("batch", 1))))
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
                told = answer_text(preset.name)
            except MedusaSimError as error:  # a data folder of the user's own may lack something
                told = str(error)
            label = f"**{preset.name}** {show.escaped(told)} *{show.escaped(preset.about)}*"
            st.button(label, key=f"preset_{preset.name}", on_click=bar.take, args=(preset.words,), wrap=True)
