"""Cached calls of the page Which GPU?: the set-ups of a target, priced once."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import streamlit as st
from answers import data_version, published_model
from chosen import GPU, SetUp

from medusa_sim.plan import DEFAULT_SEQ_LEN
from medusa_sim.plan.arguments import declared, words_of
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
    advance: Callable[[int, int], None] | None = None,
) -> Comparison:
    """`medusa-sim compare` with the set-up's model and acceptance; advance as in `load`.

    Another target or certainty, or something else to save, is answered from what was priced before.
    """
    # The sidebar's card, context and engine make no other question.
    alike = dataclasses.replace(set_up, gpu=GPU, seq_len=DEFAULT_SEQ_LEN, tp=1, ep=1, engine="")
    priced = dataclasses.replace(asked, tokens_per_s_per_user=None, measure=None, sure=SURE)
    kept = _set_ups_for(alike, priced, choices, prices, data_version())
    if not kept:
        given = {"acceptance": set_up.acceptance, "draft_model": set_up.draft_model}
        given = {name: value for name, value in given.items() if value is not None}
        model = published_model(set_up)
        kept.append(
            compare(model, priced, choices, prices=prices_of(prices or None), advance=advance, **given)
        )
    target = {"tokens_per_s_per_user": asked.tokens_per_s_per_user, "sure": asked.sure}
    return refined(kept[0].for_target(asked.measure, **target))


@st.cache_resource(max_entries=16, show_spinner=False)
def _set_ups_for(
    set_up: SetUp, asked: Question, choices: Choices, prices: str, version: float
) -> list[Comparison]:
    """Where an answer is kept, as `_load`."""
    return []
