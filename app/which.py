"""Cached calls of the page Which GPU?: the set-ups of a target, priced once."""

from __future__ import annotations

import dataclasses
from functools import partial
from typing import Any

import jobs
from answers import LONG, published_model
from chosen import GPU, SetUp

from medusa_sim.plan import DEFAULT_SEQ_LEN
from medusa_sim.plan.argument import declared
from medusa_sim.plan.arguments import words_of
from medusa_sim.setups.comparison import Comparison
from medusa_sim.setups.question import SURE, Choices, Question, prices_of
from medusa_sim.setups.search import compare, refined


def options(set_up: SetUp, asked: Question, choices: Choices, prices: str) -> list[str]:
    """The question as options of `medusa-sim compare`; prices: as `--price` takes them; empty: as listed."""
    given = {
        "--model": set_up.model_given,
        "--acceptance": set_up.acceptance,
        "--draft-model": set_up.draft_model,
    }
    words = [word for name, value in (given | {"--price": prices}).items() if value for word in (name, value)]
    return words + words_of(choices.changed, declared(Choices)) + words_of(asked.changed, declared(Question))


def set_ups_for(
    set_up: SetUp,
    asked: Question,
    choices: Choices,
    prices: str = "",
    watch: jobs.Watch = jobs.NOBODY,
) -> Comparison:
    """`medusa-sim compare` with the set-up's model and acceptance; watch as in `load`.

    Another target or certainty, or something else to save, is answered from what was priced before.
    """
    # The sidebar's card, context and engine make no other question.
    alike = dataclasses.replace(
        set_up, gpu=GPU, seq_len=DEFAULT_SEQ_LEN, tp=1, ep=1, runtime=None, chain_only=None
    )
    priced = dataclasses.replace(asked, tokens_per_s_per_user=None, measure=None, sure=SURE)

    def answer() -> Comparison:
        given: dict[str, Any] = {"acceptance": set_up.acceptance, "draft_model": set_up.draft_model}
        given = {name: value for name, value in given.items() if value is not None}
        model = published_model(set_up)
        found = prices_of(prices or None)
        return jobs.run(partial(compare, model, priced, choices, prices=found, **given), watch)

    kept = LONG.once(("compare", alike, priced, choices, prices), answer, watch.others)
    target = {"tokens_per_s_per_user": asked.tokens_per_s_per_user, "sure": asked.sure}
    return refined(kept.for_target(asked.measure, **target))
