"""Cached calls of the page Which GPU?: the set-ups of a target, priced once."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from functools import partial
from typing import Any

import jobs
from answers import KEPT, LONG, published_model
from chosen import GPU, PageArguments

from medusa_sim.errors import UsageError
from medusa_sim.scenario.arguments import words_of
from medusa_sim.scenario.declare import declared
from medusa_sim.scenario.defaults import DEFAULT_SEQ_LEN
from medusa_sim.setups.comparison import Comparison
from medusa_sim.setups.question import SURE, SetupChoices, SetupQuestion, prices_of
from medusa_sim.setups.search import NothingRunsError, compare, refined, together


def options(set_up: PageArguments, asked: SetupQuestion, choices: SetupChoices, prices: str) -> list[str]:
    """The question as options of `medusa-sim compare`; prices: as `--price` takes them; empty: as listed."""
    given = {
        "--model": set_up.model_given,
        "--acceptance": set_up.acceptance,
        "--draft-model": set_up.draft_model,
    }
    words = [word for name, value in (given | {"--price": prices}).items() if value for word in (name, value)]
    return (
        words
        + words_of(choices.changed, declared(SetupChoices))
        + words_of(asked.changed, declared(SetupQuestion))
    )


def set_ups_for(
    set_up: PageArguments,
    asked: SetupQuestion,
    choices: SetupChoices,
    prices: str = "",
    watch: jobs.Watch = jobs.UNWATCHED,
    seen: Callable[[Comparison], object] = lambda part: None,
) -> Comparison:
    """`medusa-sim compare` with the set-up's model and acceptance; watch as in `load`.

    GPUs are searched as many at once as there are processes and kept apart: one more GPU, or another price
    of one, searches that GPU alone; another target or certainty, or something else to save, none. seen: told
    what is known while others are searched.
    """
    alike = _alike(set_up)
    priced = dataclasses.replace(asked, tokens_per_s_per_user=None, measure=None, sure=SURE)
    usd = prices_of(prices or None)
    given: dict[str, Any] = {"acceptance": set_up.acceptance, "draft_model": set_up.draft_model}
    given = {name: value for name, value in given.items() if value is not None}
    target = {"tokens_per_s_per_user": asked.tokens_per_s_per_user, "sure": asked.sure}
    gpus = choices.gpus or ()

    session = jobs.this_session()

    def of_gpu(gpu: str, told: jobs.Watch) -> Comparison | NothingRunsError:
        on_gpu = dataclasses.replace(choices, gpus=(gpu,))
        price = usd.get(gpu) if isinstance(usd, dict) else usd
        job = partial(_of_one, published_model(set_up), priced, on_gpu, price, given)
        key = ("compare", alike, priced, on_gpu, price)
        return LONG.once(key, lambda: jobs.run(job, told, session=session), told.others)

    def whole() -> Comparison:
        parts: dict[str, Comparison | NothingRunsError] = {}
        for gpu, part in jobs.as_completed(gpus, of_gpu, watch):
            parts[gpu] = part
            known = [parts[each] for each in gpus if isinstance(parts.get(each), Comparison)]
            if known and len(parts) < len(gpus):
                seen(together(known, refine=False).for_target(asked.measure, **target))
        return together([parts[each] for each in gpus], refine=False)

    kept = LONG.once(("compare all", alike, priced, choices, prices), whole, watch.others, size=_table_bytes)

    def answer() -> Comparison:
        return refined(kept.for_target(asked.measure, **target))

    key = ("compare for", alike, asked, choices, prices)
    return LONG.once(key, answer, watch.others, size=_table_bytes)


@KEPT
def launch_of(set_up: PageArguments, asked: SetupQuestion, choices: SetupChoices, prices: str) -> str:
    """The command that starts what is chosen. Raises UsageError where the engine cannot be told it."""
    from medusa_sim.export.launch import chosen_command

    answer = set_ups_for(set_up, asked, choices, prices)
    if answer.chosen is None:
        raise UsageError("no set-up keeps the limits; ask for fewer tokens/s a user")
    return chosen_command(answer, answer.chosen)


def _alike(set_up: PageArguments) -> PageArguments:
    """The question but for the bar's GPU, context and engine, which make no other one."""
    return dataclasses.replace(
        set_up, gpu=GPU, seq_len=DEFAULT_SEQ_LEN, request=None, tp=1, ep=1, runtime=None, chain_only=None
    )


def _table_bytes(answer: Comparison) -> int:
    """Bytes of a comparison's table; its scenarios are counted with their GPUs."""
    return int(answer.table.memory_usage().sum())


def _of_one(
    model: Any,
    asked: SetupQuestion,
    choices: SetupChoices,
    price: float | None,
    given: dict[str, Any],
    *,
    advance: Callable[[int, int], None],
) -> Comparison | NothingRunsError:
    """The comparison of one GPU, or why nothing runs on it."""
    try:
        return compare(
            model, asked, choices, prices=price, advance=advance, refine=False, load_tests=False, **given
        )
    except NothingRunsError as error:
        return error
