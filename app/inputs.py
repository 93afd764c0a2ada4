"""Inputs of a page: widgets whose values stand in its link (`link`), each drawn by one call."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any, NamedTuple, TypeVar, overload

import link
import streamlit as st

from medusa_sim.errors import names_meant
from medusa_sim.file_types import FILES, OF_MLX
from medusa_sim.grid.quantity import BY_NAME
from medusa_sim.load.quantities import AGAINST_RATE, OVER_TIME
from medusa_sim.report.charts.load import metric_title
from medusa_sim.scenario.arguments import ARGUMENTS
from medusa_sim.units import BYTES_PER_ELEMENT, format_text

Number = TypeVar("Number", int, float)
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
_LONGEST = 200
_GROWS = 1.08
"""Of the steps of a slider of requests, where these are many."""
_SMALL = 172
"""Pixels of a field of which several stand in a row: two on a phone."""


class Input(NamedTuple):
    """One input of a page. name: its parameter in the link, and the widget's key; help: shown beside it."""

    name: str
    label: str
    help: str = ""

    @classmethod
    def of_argument(cls, name: str, help_: str) -> Input:
        """The input of an argument of a scenario, with its label."""
        return cls(name, ARGUMENTS[name].label, help_)

    @property
    def look(self) -> dict[str, Any]:
        """Parameters of its widget."""
        return {"label": self.label, "key": self.name, "help": self.help or None}

    @property
    def bound(self) -> dict[str, Any]:
        """The same of a widget whose value Streamlit writes into the link."""
        return {**self.look, "bind": "query-params"}


# From a list.


def choice(
    where: Any,
    field: Input,
    options: Sequence[str],
    default: str,
    words: Callable[[str], str] | None = None,
    *,
    typed: bool = False,
) -> str:
    """One of several, as a list to pick from; typed: or what the user types.

    words: what the list shows for an option (None: as in WORDS). The link has the names that commands take,
    and is written as the page is: Streamlit would bind it to what the list shows.
    """
    name = field.name
    shown = words or (lambda option: WORDS.get(name, {}).get(option, option))
    meant = {shown(option): option for option in options}

    def known(given: str) -> bool:
        return given in options or given in meant or (typed and 0 < len(given) <= _LONGEST)

    link.check(name, lambda given: "" if known(given) else _nearest(given, options))
    if not known(st.session_state.get(name) or ""):
        given = st.query_params.get(name, "")
        st.session_state[name] = meant.get(given, given) if known(given) else default
    chosen: str = where.selectbox(options=options, format_func=shown, accept_new_options=typed, **field.look)
    link.write(name, [] if chosen == default else [chosen])
    return chosen


def one_of(where: Any, field: Input, options: Sequence[str], default: str) -> str:
    """One of a few, all of them seen."""
    link.check(field.name, lambda given: "" if given in options else _nearest(given, options))
    chosen = where.segmented_control(options=options, default=default, required=True, **field.bound)
    return str(chosen or default)


def several(
    where: Any,
    field: Input,
    options: Sequence[str],
    default: Sequence[str],
    words: Callable[[str], str] | None = None,
) -> tuple[str, ...]:
    """Some of many; the default where none is left. words: shown for options, as in `choice`."""

    def refusal(given: str) -> str:
        return "" if set(given.split(",")) <= set(options) else f"some of {', '.join(options)}"

    link.check(field.name, refusal)
    if words is None:
        chosen = where.multiselect(options=options, default=list(default), **field.bound)
        return tuple(chosen) or tuple(default)
    if field.name not in st.session_state:
        given = st.query_params.get_all(field.name)
        st.session_state[field.name] = list(default) if not given or refusal(",".join(given)) else given
    chosen = where.multiselect(options=options, format_func=words, **field.look)
    link.write(field.name, [] if list(chosen) == list(default) else chosen)
    return tuple(chosen) or tuple(default)


def pick(where: Any, field: Input, options: Sequence[int], default: int) -> int:
    """One of a few whole numbers, from a list."""
    link.check(field.name, _one_of(options))
    return int(where.selectbox(options=options, index=options.index(default), **field.bound))


def format_words(name: str) -> str:
    """`8 bits (fp8)`, `Q4_K_M`: a format, or the type of a file; what is neither as it is."""
    if name in FILES:
        return name.upper() if not name.startswith(OF_MLX) else name
    bits = BYTES_PER_ELEMENT.get(name)
    return name if bits is None else f"{int(8 * bits)} bits ({format_text(name)})"


# On a slider.


def whole(where: Any, field: Input, low: int, high: int, default: int) -> int:
    """A whole number; the only one where there is no other."""
    if low == high:
        link.read(field.name)
        where.caption(f"{field.label}: {low}")
        return low
    link.check(field.name, _within(low, high))
    return int(where.slider(min_value=low, max_value=high, value=default, **field.bound))


def step_of(where: Any, field: Input, options: Sequence[int], default: int) -> int:
    """One of a few whole numbers."""
    link.check(field.name, _one_of(options))
    return int(where.select_slider(options=options, value=default, **field.bound))


def at_once(where: Any, field: Input, most: int) -> int:
    """Requests at once, 1 to `most`, in steps that grow with them; also a number that a link says."""
    if most == 1:
        return whole(where, field, 1, 1, 1)
    refusal = _within(1, most)
    link.check(field.name, refusal)
    known = st.session_state.get(field.name, st.query_params.get(field.name, "1"))
    held = int(known) if not refusal(str(known)) else most if field.name in st.session_state else 1
    if field.name in st.session_state and st.session_state[field.name] != held:
        st.session_state[field.name] = held  # less memory than before
    stops = {held, most}
    at = 1.0
    while at < most:
        stops.add(round(at))
        at = max(at + 1.0, at * _GROWS)
    return int(where.select_slider(options=sorted(stops), value=1, **field.bound))


# Typed.


@overload
def number(where: Any, field: Input, low: Number, high: Number, default: Number) -> Number: ...


@overload
def number(
    where: Any, field: Input, low: Number, high: Number, default: Number | None = None, *, empty: str = "none"
) -> Number | None: ...


def number(
    where: Any, field: Input, low: Number, high: Number, default: Number | None = None, *, empty: str = "none"
) -> Number | None:
    """A number, whole where its limits are, or nothing where it has no default; empty: what is shown then."""
    link.check(field.name, _within(low, high))
    look: dict[str, Any] = {} if isinstance(low, int) else {"step": 0.1, "format": "%.2f", "width": _SMALL}
    given: Number | None = where.number_input(
        min_value=low, max_value=high, value=default, placeholder=empty, **look, **field.bound
    )
    return None if given is None else type(low)(given)


def text(where: Any, field: Input, default: str = "", *, empty: str = "") -> str:
    """A short text; empty: what is shown where there is none."""
    link.read(field.name)
    return str(where.text_input(value=default, max_chars=2000, placeholder=empty, **field.bound))


def on_off(where: Any, field: Input, *, default: bool) -> bool:
    """A switch."""
    link.check(
        field.name, lambda given: "" if given in ("true", "false", "True", "False") else "true or false"
    )
    return bool(where.toggle(value=default, **field.bound))


# What a link may say.


def _nearest(given: str, options: Sequence[str]) -> str:
    near = names_meant(given[:_LONGEST], options)[:4] or options[:4]
    return f"known are {', '.join(near)}{', ...' if len(options) > len(near) else ''}"


def _one_of(options: Sequence[int]) -> link.Refusal:
    return lambda given: "" if given in map(str, options) else f"one of {options}"


def _within(low: float, high: float) -> link.Refusal:
    is_whole = isinstance(low, int)
    allowed = f"whole numbers {low} to {high}" if is_whole else f"numbers from {low:g} to {high:g}"

    def refusal(given: str) -> str:
        with suppress(ValueError):
            if low <= type(low)(given) <= high:
                return ""
        return allowed

    return refusal
