"""Parameters of the URL: aliases of inputs, what the page was opened with, and which of it was not allowed.

A parameter is called as the command line's option, and at its default it is left out. Streamlit drops values
that a widget does not allow; `check` notes them, so that the page can say so.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence

import streamlit as st

from medusa_sim.engines.runtime import runtime_aliases

Refusal = Callable[[str], str]
"""What is allowed in the place of a value that is not; empty for one that is."""

_OPENED = "url_as_opened"
_ALIASES = {
    "engine": "runtime", "prompt_tokens": "prompt", "prompts": "prompt", "outputs": "output_tokens",
}  # fmt: skip
_ALIASES_ON = {
    "load": {"tpot_ms": "tpot", "ttft_ms": "ttft", "max_num_seqs": "seqs"},
    "which-gpu": {
        "tokens_per_s_per_user": "target", "gpus": "copies", "engine": "engines", "runtime": "engines",
        "weight_dtype": "weights", "kv_dtype": "caches",
    },
}  # fmt: skip
"""Options of commands, and older names, that inputs call otherwise; those of one page by its address."""
_ENGINES = re.compile(r"runtime|engine[0-9]")
_LISTS = ("gpu_choices", "copies", "engines", "weights")
"""Parameters that hold several values; a link may name them with commas between."""
_FORMATS = ("dtype", "weight_dtype", "kv_dtype")
"""Parameters that name a format, in any case."""
_SHOWN, _MOST_TOLD = 40, 8
"""Letters of a name or value of a link that are shown, and how many of them."""
_STREAMLIT_S = ("embed", "embed_options")
"""Parameters that belong to Streamlit and cannot be set."""
USD = "usd_"
"""Before the name of a GPU: what an hour of it costs."""


def resolve_aliases(page: str = "") -> None:
    """Start over with the names that widgets know, where a link speaks as the page's command does.

    Options (`draft-model`, `tpot-ms`), engines without a version. page: its address.
    Call it once the page is known: starting over before that opens the first one.
    """
    if _OPENED in st.session_state:
        return
    aliases = _ALIASES | _ALIASES_ON.get(page, {})
    given = {name: st.query_params.get_all(name) for name in st.query_params}
    given = {name: values for name, values in given.items() if name.replace("-", "_") not in _STREAMLIT_S}
    meant: dict[str, list[str]] = {}
    for name in sorted(given, key=lambda name: name in aliases or "-" in name):  # widgets' own names first
        known = name.replace("-", "_")
        known = aliases.get(known, known)
        values = ",".join(given[name]).split(",") if known in _LISTS else given[name]
        words = runtime_aliases() if _ENGINES.fullmatch(known) else {}
        values = [value.lower() for value in values] if known in _FORMATS else values
        meant.setdefault(known, [words.get(value, value) for value in values])
    listed = ",".join(meant.get("gpu", [])).split(",")
    if page == "which-gpu" and len(listed) > 1:  # as `compare --gpu` has them; one is the bar's
        meant["gpu_choices"] = meant.pop("gpu") and listed
    for pair in ",".join(meant.pop("price", [])).split(","):
        card, _, usd = pair.partition("=")
        meant.update({f"{USD}{card}": [usd]} if usd else {"price": [card]} if card else {})
    if meant == given:
        return
    st.query_params.clear()
    for name, values in meant.items():
        st.query_params[name] = values
    st.rerun()


def _opened() -> dict[str, str]:
    """Parameters as they were when the page was opened, before widgets drop what they do not allow."""
    held: dict[str, str] | None = st.session_state.get(_OPENED)
    if held is None:
        held = {name: ",".join(st.query_params.get_all(name)) for name in st.query_params}
        st.session_state[_OPENED] = held
        st.session_state[f"{_OPENED}_names"] = frozenset(held)
    return held


def opened_with(name: str) -> bool:
    """Whether the link that opened the page had a parameter."""
    _opened()
    names: frozenset[str] = st.session_state[f"{_OPENED}_names"]
    return name in names


def read(*names: str) -> None:
    """Count parameters as read which no widget holds, or which may have any value."""
    for name in names:
        _opened().pop(name, None)


def value_of(name: str) -> str | None:
    """The value of an input before it is drawn: that of the last run, or the link's."""
    held: str | None = st.session_state.get(name, _opened().get(name))
    return held


def check(name: str, refusal: Refusal) -> None:
    """Note a value that the widget is about to drop."""
    given = _opened().pop(name, None)
    if given is not None and (allowed := refusal(given)):
        notes: list[str] = st.session_state.setdefault("ignored", [])
        notes.append(f"{name[:_SHOWN]}={given[:_SHOWN]} ({allowed})")


def ignored() -> list[str]:
    """Parameters that were not allowed or that no widget of this page has; told once."""
    unknown = [f"{name[:_SHOWN]} (this page has no such input)" for name in _opened()]
    unknown[_MOST_TOLD:] = [f"{len(unknown) - _MOST_TOLD} more"] if len(unknown) > _MOST_TOLD else []
    _opened().clear()
    return [*st.session_state.pop("ignored", []), *unknown]


def write(name: str, values: Sequence[str]) -> None:
    """Have the link hold these values of a parameter; none: leave it out."""
    if st.query_params.get_all(name) == list(values):
        return
    if values:
        st.query_params[name] = values
    else:
        del st.query_params[name]
