"""Cached calls of the page Under load."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import jobs
from answers import LONG, scenario_of
from chosen import PageArguments

from medusa_sim.load.answer import LoadAnswer, run_load
from medusa_sim.load.arguments import LoadArguments
from medusa_sim.load.load_test import load_test

_BEYOND = 1.05
"""Of what the fullest policy is full at: where its queue grows."""


def load(set_up: PageArguments, asked: LoadArguments, watch: jobs.Watch = jobs.UNWATCHED) -> LoadAnswer:
    """`medusa-sim load`, with its number of requests and seeds. Raises UsageError for what makes no sense.

    watch: told (requests simulated, requests in all as far as known), and who is first.
    """

    def answer() -> LoadAnswer:
        return jobs.run(partial(run_load, load_test(scenario_of(set_up), **asked.values)), watch)

    return LONG.once(("load", set_up, asked), answer, watch.others)


def beyond_full(
    set_up: PageArguments, asked: LoadArguments, watch: jobs.Watch = jobs.UNWATCHED
) -> LoadAnswer:
    """The same answer with a rate beyond what its policies are full at, so that a chart shows their knee."""
    known = load(set_up, asked, watch)

    def answer() -> LoadAnswer:
        rate = float(f"{_BEYOND * max(each.saturated_per_s for each in known.carried):.2g}")
        if not known.carried[0].searched or known.points[-1].arrivals_per_s >= rate:
            return known
        more = jobs.run(partial(run_load, known.test, (rate,), search=False), watch)
        return replace(known, points=(*known.points, *more.points))

    return LONG.once(("load beyond full", set_up, asked), answer, watch.others)
