"""How much of the time per token rests on some terms of an engine: it is priced anew with other values.

What a term adds is left to the equations of `step/`. Each term is doubled, not removed: one that hides
behind the device's work adds nothing, but shows where it takes longer than was thought.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import reduce
from operator import add

import msgspec
import numpy as np

from medusa_sim.arrays import FloatArray, as_float
from medusa_sim.engines.term import Term
from medusa_sim.scenario.draft_options import DraftOption
from medusa_sim.scenario.scenario import Scenario
from medusa_sim.serving.server import ServedCells, in_server
from medusa_sim.step.drafting import drafting_times
from medusa_sim.step.step import decode_step, verification_step

_DRAFTS = 3
"""Most drafts of the representative round."""


def is_share(name: str) -> bool:
    """Whether a term is a share of kernels' speed, 1 where the engine adds nothing; others are times."""
    return name.endswith("_share")


def usual_option(scenario: Scenario) -> DraftOption | None:
    """The representative way of drafting: the longest chain of at most three drafts, else a tree."""
    options = [option for option in scenario.options() if option.depth <= _DRAFTS]
    return max(options, key=lambda option: (option.chain, option.depth), default=None)


def token_us(
    scenario: Scenario,
    terms: Mapping[str, Term],
    batch: FloatArray,
    tokens: float,
    option: DraftOption | None = None,
) -> FloatArray:
    """Microseconds per token of a request in the server, with some of its engine's terms replaced.

    batch: numbers of requests. tokens: their length. option: how they draft; None: plain decoding.
    """
    runtime = scenario.setting.runtime
    engine = None if runtime.engine is None else runtime.engine.with_terms(terms)
    setting = replace(scenario.setting, runtime=replace(runtime, engine=engine))
    if option is None:
        drafter, candidates, emitted, emission_chances = None, 1, 1.0, np.ones(1)
    else:
        drafter, candidates = option.drafter, option.depth + 1
        emitted = option.tokens(candidates)
        emission_chances = option.emission_chances[np.searchsorted(option.candidates, candidates)]
        setting = replace(setting, drafter=drafter)

    def step_of(requests: FloatArray) -> tuple[FloatArray, FloatArray]:
        """The step of so many requests, and its attention."""
        if drafter is None:
            step = target = decode_step(setting, requests, tokens)
        else:
            target = verification_step(setting, requests, tokens, candidates)
            step = reduce(add, drafting_times(setting, requests, tokens, candidates), target)
        return step.time_us, target.parts_us["attention"]

    (step_us, attention_us), traffic = step_of(batch), scenario.traffic
    cells = ServedCells(
        setting=setting,
        requests=batch,
        candidates=candidates,
        tokens_per_step=as_float(emitted),
        step_us=step_us,
        attention_us=attention_us,
        fewer=step_of,
        decode_steps=None if traffic is None else traffic.request_steps(emission_chances),
        drafter=drafter,
    )
    return in_server(cells, traffic).token_us


def changed_share(token_us: FloatArray, changed_us: FloatArray) -> FloatArray:
    """Share of the time per token by which it changes."""
    return np.asarray(np.abs(changed_us / token_us - 1.0))


def doubled(terms: Mapping[str, Term]) -> dict[str, Term]:
    """The terms with twice what they add. A share s of kernels' speed adds 1 / s - 1 of their time."""
    return {
        name: msgspec.structs.replace(
            term, value=1.0 / (2.0 / term.value - 1.0) if is_share(name) else 2.0 * term.value
        )
        for name, term in terms.items()
    }
