"""Terms of an engine that were fitted to rows of one other model only, in sentences.

Whatever the term is charged for (layers, requests, prompts, kernels), a plain step is priced with and without
what those rows add, in the server that is asked about.
"""

from __future__ import annotations

from collections.abc import Iterator

import msgspec
import numpy as np

from medusa_sim.arrays import as_float
from medusa_sim.doubts.term_shares import changed_share, token_us
from medusa_sim.doubts.terms import TERM_WORDS
from medusa_sim.engines.place import sizes_of
from medusa_sim.engines.term import Term
from medusa_sim.models.named import load_model
from medusa_sim.scenario.scenario import Scenario

CHANGE_WORTH_NAMING = 0.05
"""Change of the time per token from which a term is named."""


def told_by_another_model(scenario: Scenario, requests: tuple[int, int], tokens: float) -> Iterator[str]:
    """A sentence for each term that changes a plain step much because of one other model's rows.

    requests: fewest and most in a step. tokens: length.
    """
    batch = as_float(np.unique(requests))
    if scenario.setting.runtime.engine is None or scenario.scope == "block":
        return
    without = list(_without(scenario))
    priced_us = token_us(scenario, {}, batch, tokens) if without else batch
    for name, model, term in without:
        share = changed_share(priced_us, token_us(scenario, {name: term}, batch, tokens))
        place = int(np.argmax(share))
        if share[place] > CHANGE_WORTH_NAMING:
            many = int(batch[place])
            yield (
                f"{TERM_WORDS.get(name, name)}: {100.0 * share[place]:.0f} % of the time per token at {many} "
                f"request{'s' * (many > 1)}, measured on {model} alone in {scenario.runtime.name} on "
                f"{scenario.gpu.architecture}; another model may differ"
            )


def _without(scenario: Scenario) -> Iterator[tuple[str, str, Term]]:
    """(name, other model, the term of this set-up without what that model's rows alone add)."""
    engine, case = scenario.runtime.engine, scenario.case
    for name, term in ({} if engine is None else engine.terms).items():
        told = {each.only for each in term.deviations if each.only and each.holds(case)}
        for model in sorted(each for each in told if sizes_of(load_model(each)) != case.sizes):
            others = tuple(each for each in term.deviations if each.only != model)
            yield name, model, msgspec.structs.replace(term, deviations=others).at(case)
