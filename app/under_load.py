"""Cached calls of the page Under load."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

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


_BEYOND = 1.05
"""Of what the fullest policy is full at: where its queue grows."""


def beyond_full(
    set_up: SetUp, asked: LoadArguments, advance: Callable[[int, int], None] | None = None
) -> LoadAnswer:
    """The same answer with a rate beyond what its policies are full at, so that a chart shows their knee."""
    answer = load(set_up, asked, advance)
    kept = _load(set_up, asked, data_version())
    if len(kept) == 1:
        rate = float(f"{_BEYOND * max(each.saturated_per_s for each in answer.carried):.2g}")
        has_knee = not answer.carried[0].searched or answer.points[-1].rate >= rate
        more = () if has_knee else answer.test.points((rate,), None)
        kept.append(replace(answer, points=(*answer.points, *more)))
    return kept[1]


@st.cache_resource(max_entries=32, show_spinner=False)
def _load(set_up: SetUp, asked: LoadArguments, version: float) -> list[LoadAnswer]:
    """Where an answer is kept: a cached function cannot draw its own progress."""
    return []
