"""Cached calls of the page Which GPU?: the set-ups of a target, priced once."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from functools import partial
from typing import Any

import jobs
from answers import LONG, published_model
from chosen import GPU, SetUp

from medusa_sim.scenario.arguments import words_of
from medusa_sim.scenario.declare import declared
from medusa_sim.scenario.defaults import DEFAULT_SEQ_LEN
from medusa_sim.setups.comparison import Comparison
from medusa_sim.setups.question import SURE, Choices, Question, prices_of
from medusa_sim.setups.search import NothingRunsError, compare, refined, together


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
    seen: Callable[[Comparison], object] = lambda part: None,
) -> Comparison:
    """`medusa-sim compare` with the set-up's model and acceptance; watch as in `load`.

    Cards are searched one after another and kept apart: one more card, or another price of one, searches that
    card alone; another target or certainty, or something else to save, none. seen: told what is known while
    others are searched.
    """
    # The bar's card, context and engine make no other question.
    alike = dataclasses.replace(
        set_up, gpu=GPU, seq_len=DEFAULT_SEQ_LEN, request=None, tp=1, ep=1, runtime=None, chain_only=None
    )
    priced = dataclasses.replace(asked, tokens_per_s_per_user=None, measure=None, sure=SURE)
    usd = prices_of(prices or None)
    given: dict[str, Any] = {"acceptance": set_up.acceptance, "draft_model": set_up.draft_model}
    given = {name: value for name, value in given.items() if value is not None}
    target = {"tokens_per_s_per_user": asked.tokens_per_s_per_user, "sure": asked.sure}
    cards = choices.gpus or ()

    def of_card(card: str, done: int) -> Comparison | NothingRunsError:
        own = dataclasses.replace(choices, gpus=(card,))
        price = usd.get(card) if isinstance(usd, dict) else usd

        def answer() -> Comparison | NothingRunsError:
            def advance(so_far: int, in_all: int) -> None:
                watch.advance(done * in_all + so_far, len(cards) * in_all)

            job = partial(_of_one, published_model(set_up), priced, own, price, given)
            return jobs.run(job, dataclasses.replace(watch, advance=advance))

        return LONG.once(("compare", alike, priced, own, price), answer, watch.others)

    def whole() -> Comparison:
        parts: list[Comparison | NothingRunsError] = []
        for done, card in enumerate(cards):
            parts.append(of_card(card, done))
            known = [part for part in parts if isinstance(part, Comparison)]
            if known and len(parts) < len(cards):
                seen(together(known, refine=False).for_target(asked.measure, **target))
        return together(parts)

    kept = LONG.once(("compare all", alike, priced, choices, prices), whole, watch.others)
    return refined(kept.for_target(asked.measure, **target))


def _of_one(
    model: Any,
    asked: Question,
    choices: Choices,
    price: float | None,
    given: dict[str, Any],
    *,
    advance: Callable[[int, int], None],
) -> Comparison | NothingRunsError:
    """The comparison of one card, or why nothing runs on it."""
    try:
        return compare(model, asked, choices, prices=price, advance=advance, refine=False, **given)
    except NothingRunsError as error:
        return error
