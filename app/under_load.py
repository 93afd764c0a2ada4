"""Cached calls of the page Under load."""

from __future__ import annotations

from collections.abc import Callable

import streamlit as st
from answers import data_version, scenario_of
from chosen import SetUp

from medusa_sim.load.arguments import LoadArguments
from medusa_sim.load.question import LoadAnswer, load_test, run_load


def load(
    set_up: SetUp, asked: LoadArguments, advance: Callable[[int, int], None] | None = None
) -> LoadAnswer:
    """`medusa-sim load`, with its number of requests and seeds. Raises UsageError for what makes no sense.

    advance: told (requests simulated, requests in all as far as known).
    """
    kept = _load(set_up, asked, data_version())
    if not kept:
        kept.append(run_load(load_test(scenario_of(set_up), **asked.values), advance=advance))
    return kept[0]


@st.cache_resource(max_entries=32, show_spinner=False)
def _load(set_up: SetUp, asked: LoadArguments, version: float) -> list[LoadAnswer]:
    """Where an answer is kept: a cached function cannot draw its own progress."""
    return []
