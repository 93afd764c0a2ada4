"""Answers that are kept, in the page's own link: each as the words of its own link."""

from __future__ import annotations

from urllib.parse import parse_qsl, urlencode

import link
import streamlit as st

KEPT = "kept"
"""The parameter, once for each answer."""
MOST = 6
_NOT_SAID = (KEPT, "a", "b", "look")
"""Parameters of a link that are no part of an answer."""
_LONGEST = 1_000


def words_of(kept: str) -> dict[str, str]:
    """Parameters of a kept answer by name."""
    return dict(parse_qsl(kept[:_LONGEST]))


def this() -> str:
    """The answer of the page as it is, to be kept."""
    said = {name: value for name, value in st.query_params.to_dict().items() if name not in _NOT_SAID}
    return urlencode(sorted(said.items()))


def is_any() -> bool:
    """Whether anything is kept, before the words of the link are read."""
    return bool(st.session_state.get(KEPT, st.query_params.get_all(KEPT)))


def all_kept() -> list[str]:
    """What is kept, as the link has it; pages that have no input for it leave it there."""
    if KEPT not in st.session_state:
        link.read(KEPT)
        st.session_state[KEPT] = st.query_params.get_all(KEPT)[:MOST]
    kept: list[str] = st.session_state[KEPT]
    if kept and st.query_params.get_all(KEPT) != kept:
        st.query_params[KEPT] = kept
    return kept


def keep(answer: str) -> None:
    """Keep one more, the oldest of too many goes: the callback of a button."""
    kept = [each for each in all_kept() if each != answer]
    st.session_state[KEPT] = [*kept, answer][-MOST:]


def forget() -> None:
    """Keep none: the callback of a button."""
    st.session_state[KEPT] = []
    st.query_params.pop(KEPT, None)
