"""Widgets whose values live in the URL.

A widget's key is its parameter in the URL, called as the command line's option; at its default a parameter
is left out. Streamlit drops values that a widget does not allow; `ignored` finds them, so that the page can
say so.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Any

import streamlit as st

from medusa_sim.engines.runtime import runtime_aliases
from medusa_sim.errors import names_meant
from medusa_sim.file_types import FILES, OF_MLX
from medusa_sim.grid.quantity import BY_NAME
from medusa_sim.load.quantities import AGAINST_RATE, OVER_TIME
from medusa_sim.report.charts.load import metric_title
from medusa_sim.units import BYTES_PER_ELEMENT, format_text

_SEEN = "url_as_opened"
_CALLED = {
    "engine": "runtime", "prompt_tokens": "prompt", "prompts": "prompt", "outputs": "output_tokens",
}  # fmt: skip
_CALLED_ON = {
    "load": {"tpot_ms": "tpot", "ttft_ms": "ttft", "max_num_seqs": "seqs"},
    "which-gpu": {
        "tokens_per_s_per_user": "target", "gpus": "copies", "engine": "engines", "runtime": "engines",
        "weight_dtype": "weights", "kv_dtype": "caches",
    },
}  # fmt: skip
"""Options of commands, and older names, that inputs call otherwise; those of one page by its address."""
WORDS = {
    "policy": {
        "fixed": "fixed number of drafts",
        "schedule": "schedule by batch",
        "adaptive": "measured acceptance (SGLang)",
        "throughput_aware": "measured acceptance and cost (SGLang)",
        "budget": "most tokens/s at every step",
    },
    "shows": {name: metric_title(name) for name in AGAINST_RATE},
    "over": {name: BY_NAME[name].on_axis for name in OVER_TIME},
    "baseline": {
        "fixed": "one plain step at batch 1, length 1024, as plotted",
        "same": "plain decoding at equal batch and length",
    },
}
"""Options of a list and the words that it shows for them; a link may have either."""
_ENGINES = re.compile(r"runtime|engine[0-9]")
_LISTS = ("gpu_choices", "copies", "engines", "weights")
"""Parameters that hold several values; a link may name them with commas between."""
_FORMATS = ("dtype", "weight_dtype", "kv_dtype")
"""Parameters that name a format, in any case."""
_LONGEST = 200
_SHOWN, _MOST_TOLD = 40, 8
"""Letters of a name or value of a link that are shown, and how many of them."""
_STREAMLIT_S = ("embed", "embed_options")
"""Parameters that belong to Streamlit and cannot be set."""
USD = "usd_"
"""Before the name of a GPU: what an hour of it costs."""
_GROWS = 1.08
"""Of the steps of a slider of requests, where these are many."""
_SMALL = 172
"""Pixels of a field of which several stand in a row: two on a phone."""


def take_words(page: str = "") -> None:
    """Start over with the names that widgets know, where a link speaks as the page's command does.

    Options (`draft-model`, `tpot-ms`), engines without a version. page: its address.
    Call it once the page is known: starting over before that opens the first one.
    """
    if _SEEN in st.session_state:
        return
    called = _CALLED | _CALLED_ON.get(page, {})
    given = {name: st.query_params.get_all(name) for name in st.query_params}
    given = {name: values for name, values in given.items() if name.replace("-", "_") not in _STREAMLIT_S}
    meant: dict[str, list[str]] = {}
    for name in sorted(given, key=lambda name: name in called or "-" in name):  # widgets' own names first
        known = name.replace("-", "_")
        known = called.get(known, known)
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
    """URL parameters as they were when the page was opened, before widgets drop what they do not allow."""
    held: dict[str, str] | None = st.session_state.get(_SEEN)
    if held is None:
        held = {name: ",".join(st.query_params.get_all(name)) for name in st.query_params}
        st.session_state[_SEEN] = held
        st.session_state[f"{_SEEN}_names"] = frozenset(held)
    return held


def opened_with(name: str) -> bool:
    """Whether the link that opened the page said something of an input."""
    _opened()
    names: frozenset[str] = st.session_state[f"{_SEEN}_names"]
    return name in names


def said(*names: str) -> None:
    """Parameters that no widget holds, which something of the page reads all the same."""
    for name in names:
        _opened().pop(name, None)


def now(name: str) -> str | None:
    """What an input says before it is drawn: as on the last run, or as the link has it."""
    held: str | None = st.session_state.get(name, _opened().get(name))
    return held


def _nearest(given: str, options: Sequence[str]) -> str:
    near = names_meant(given[:_LONGEST], options)[:4] or options[:4]
    return f"known are {', '.join(near)}{', ...' if len(options) > len(near) else ''}"


def _checked(name: str, allowed: Callable[[str], bool], allows: str | Callable[[str], str]) -> None:
    """Note a URL value that the widget is about to drop; allows: what is allowed."""
    given = _opened().pop(name, None)
    if given is not None and not allowed(given):
        notes: list[str] = st.session_state.setdefault("ignored", [])
        notes.append(f"{name[:_SHOWN]}={given[:_SHOWN]} ({allows(given) if callable(allows) else allows})")


def ignored() -> list[str]:
    """URL parameters that were not allowed or that no widget of this page has; told once."""
    unknown = [f"{name[:_SHOWN]} (this page has no such input)" for name in _opened()]
    unknown[_MOST_TOLD:] = [f"{len(unknown) - _MOST_TOLD} more"] if len(unknown) > _MOST_TOLD else []
    _opened().clear()
    return [*st.session_state.pop("ignored", []), *unknown]


def choice(
    where: Any,
    name: str,
    label: str,
    options: Sequence[str],
    default: str,
    help_: str,
    words: Callable[[str], str] | None = None,
    *,
    typed: bool = False,
) -> str:
    """One of several, as a list to pick from; typed: or what the user types.

    words: what the list shows for an option (None: as in WORDS). The link has the names that commands take,
    and is written as the page is: Streamlit would bind it to what the list shows.
    """
    shown = words or (lambda option: WORDS.get(name, {}).get(option, option))
    meant = {shown(option): option for option in options}

    def known(given: str) -> bool:
        return given in options or given in meant or (typed and 0 < len(given) <= _LONGEST)

    _checked(name, known, lambda given: _nearest(given, options))
    if not known(st.session_state.get(name) or ""):
        given = st.query_params.get(name, "")
        st.session_state[name] = meant.get(given, given) if known(given) else default
    chosen: str = where.selectbox(
        label, options, key=name, help=help_, format_func=shown, accept_new_options=typed
    )
    _written(name, [] if chosen == default else [chosen])
    return chosen


def _written(name: str, values: Sequence[str]) -> None:
    """Have the link say these values of a parameter, or nothing of it."""
    if st.query_params.get_all(name) == list(values):
        return
    if values:
        st.query_params[name] = values
    else:
        del st.query_params[name]


def format_words(name: str) -> str:
    """`8 bits (fp8)`, `Q4_K_M`: a format, or the type of a file; what is neither as it is."""
    if name in FILES:
        return name.upper() if not name.startswith(OF_MLX) else name
    bits = BYTES_PER_ELEMENT.get(name)
    return name if bits is None else f"{int(8 * bits)} bits ({format_text(name)})"


def one_of(where: Any, name: str, label: str, options: Sequence[str], default: str) -> str:
    """One of a few, all of them seen."""
    _checked(name, lambda given: given in options, lambda given: _nearest(given, options))
    chosen = where.segmented_control(
        label, options, default=default, key=name, bind="query-params", required=True
    )
    return str(chosen or default)


def several(
    where: Any,
    name: str,
    label: str,
    options: Sequence[str],
    default: Sequence[str],
    help_: str,
    words: Callable[[str], str] | None = None,
) -> tuple[str, ...]:
    """Some of many; the default where none is left. words: shown for options, as in `choice`."""

    def known(given: str) -> bool:
        return set(given.split(",")) <= set(options)

    _checked(name, known, f"some of {', '.join(options)}")
    if words is None:
        chosen = where.multiselect(
            label, options, default=list(default), key=name, help=help_, bind="query-params"
        )
        return tuple(chosen) or tuple(default)
    given = st.query_params.get_all(name)
    if name not in st.session_state:
        st.session_state[name] = given if given and known(",".join(given)) else list(default)
    chosen = where.multiselect(label, options, key=name, help=help_, format_func=words)
    _written(name, [] if list(chosen) == list(default) else chosen)
    return tuple(chosen) or tuple(default)


def whole(where: Any, name: str, label: str, low: int, high: int, default: int, help_: str) -> int:
    """A whole number on a slider; the only one where there is no other."""
    if low == high:
        _opened().pop(name, None)
        where.caption(f"{label}: {low}")
        return low
    _checked(name, lambda given: _between(given, low, high), f"whole numbers {low} to {high}")
    return int(where.slider(label, low, high, default, key=name, help=help_, bind="query-params"))


def at_once(where: Any, name: str, label: str, most: int, help_: str) -> int:
    """Requests at once, 1 to `most`, on a slider whose steps grow with them; also one that a link says."""
    if most == 1:
        return whole(where, name, label, 1, 1, 1, help_)
    _checked(name, lambda given: _between(given, 1, most), f"whole numbers 1 to {most}")
    known = st.session_state.get(name, st.query_params.get(name, "1"))
    held = int(known) if _between(str(known), 1, most) else most if name in st.session_state else 1
    if name in st.session_state and st.session_state[name] != held:
        st.session_state[name] = held  # less memory than before
    stops = {held, most}
    at = 1.0
    while at < most:
        stops.add(round(at))
        at = max(at + 1.0, at * _GROWS)
    return int(where.select_slider(label, sorted(stops), 1, key=name, help=help_, bind="query-params"))


def number(where: Any, name: str, label: str, low: int, high: int, default: int, help_: str) -> int:
    """A whole number to type."""
    _checked(name, lambda given: _between(given, low, high), f"whole numbers {low} to {high}")
    return int(where.number_input(label, low, high, default, key=name, help=help_, bind="query-params"))


def perhaps(
    where: Any, name: str, label: str, low: int, high: int, help_: str, *, empty: str = "none"
) -> int | None:
    """A whole number to type, or nothing; empty: what is shown then."""
    _checked(name, lambda given: _between(given, low, high), f"whole numbers {low} to {high}")
    given = where.number_input(
        label, low, high, None, key=name, help=help_, bind="query-params", placeholder=empty
    )
    return None if given is None else int(given)


def amount(
    where: Any,
    name: str,
    label: str,
    most: float,
    default: float | None,
    help_: str,
    *,
    low: float = 0.01,
    empty: str = "none",
) -> float | None:
    """A number to type, or nothing; empty: what is shown then."""
    _checked(name, lambda given: _is_amount(given, low, most), f"numbers from {low:g} to {most:g}")
    given = where.number_input(
        label, low, most, default, 0.1, "%.2f", key=name, help=help_, bind="query-params",
        placeholder=empty, width=_SMALL,
    )  # fmt: skip
    return None if given is None else float(given)


def step_of(where: Any, name: str, label: str, options: Sequence[int], default: int, help_: str) -> int:
    """One of a few whole numbers, on a slider."""
    _checked(name, lambda given: given in {str(option) for option in options}, f"one of {options}")
    return int(where.select_slider(label, list(options), default, key=name, help=help_, bind="query-params"))


def pick(where: Any, name: str, label: str, options: Sequence[int], default: int, help_: str) -> int:
    """One of a few whole numbers, from a list."""
    _checked(name, lambda given: given in {str(option) for option in options}, f"one of {options}")
    chosen = where.selectbox(
        label, list(options), index=options.index(default), key=name, help=help_, bind="query-params"
    )
    return int(chosen)


def on_off(where: Any, name: str, label: str, default: bool, help_: str) -> bool:
    """A switch."""
    _checked(name, lambda given: given in ("true", "false", "True", "False"), "true or false")
    return bool(where.toggle(label, default, key=name, help=help_, bind="query-params"))


def text(where: Any, name: str, label: str, default: str, help_: str, *, empty: str = "") -> str:
    """A short text; empty: what is shown where there is none."""
    _opened().pop(name, None)
    given = where.text_input(
        label, default, key=name, help=help_, bind="query-params", max_chars=2000, placeholder=empty
    )
    return str(given)


def _is_amount(given: str, low: float, most: float) -> bool:
    try:
        return low <= float(given) <= most
    except ValueError:
        return False


def _between(given: str, low: int, high: int) -> bool:
    try:
        return low <= int(given) <= high
    except ValueError:
        return False
