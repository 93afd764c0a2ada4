"""Cached calls of the page Under load."""

from __future__ import annotations

from collections.abc import Callable

import streamlit as st
from answers import data_version, scenario_at
from chosen import SetUp

from medusa_sim.load.arguments import LoadArguments
from medusa_sim.load.question import LoadAnswer, load_test, run_load


def load(
    set_up: SetUp, asked: LoadArguments, advance: Callable[[int, int], None] | None = None
) -> LoadAnswer:
    """`medusa-sim load`, with its number of requests and seeds. Raises UsageError for what makes no sense.

    advance: told (requests simulated, requests in all as far as known).
    """
    version = data_version()
    kept = _load(set_up, asked, version)
    if not kept:
        kept.append(_loaded(set_up, asked, version, advance))
    return kept[0]


@st.cache_resource(max_entries=32, show_spinner=False)
def _load(set_up: SetUp, asked: LoadArguments, version: float) -> list[LoadAnswer]:
    """Where an answer is kept: a cached function cannot draw its own progress."""
    return []


def _loaded(
    set_up: SetUp, asked: LoadArguments, version: float, advance: Callable[[int, int], None] | None
) -> LoadAnswer:
    test = load_test(scenario_at(set_up, version), **asked.values)
    return run_load(test, advance=advance)
