"""Terms of an engine on which much of a token's time rests outside their measured range, in sentences."""

from __future__ import annotations

import numpy as np

from medusa_sim.arrays import BoolArray, FloatArray, as_float
from medusa_sim.doubts.term_shares import changed_share, doubled, is_share, token_us, usual_option
from medusa_sim.engines.term import Term
from medusa_sim.scenario.scenario import Scenario
from medusa_sim.step.host import requests_beyond

DOUBLING_WORTH_NAMING = 0.1
"""Share of the time per token that a term, doubled, must add to be named."""
WORDS = {
    "host_us_per_step": "the host's work in every step",
    "host_us_per_request": "the host's work for each request",
    "host_us_per_token": "the host's work for each token",
    "draft_us_per_step": "what drafting adds to a round",
    "draft_us_per_request": "what drafting adds for each request",
    "draft_us_per_pass": "the host in the drafter's passes",
    "draft_us_per_layer": "the host in the draft model's layers",
    "tree_us_per_step": "what trees add to a round",
    "lookup_us_per_request": "looking drafts up",
    "plan_us_per_pass": "planning of attention on the host",
    "pieces_us_per_layer": "launches between pieces of a graph",
    "prompt_us_per_launch": "launches of prompts, kernel by kernel",
    "prefill_us_per_launch": "launches of prompts, kernel by kernel",
    "prompt_us_per_layer": "the host's work in steps with prompts",
    "eager_us_per_layer": "launches beyond the captured graphs",
    "layer_us": "time for each layer on top of its kernels",
    "filter_bytes_per_logit": "the filter of logits",
    "filter_us_per_million": "the filter of logits",
    "experts_share": "the engine's own layers of experts",
    "expert_parallel_us_per_layer": "spreading experts over GPUs",
}
"""Terms that may take much of a step, in words."""
WORDS_OF_FITTED = {
    "kernels_share": "the engine's own kernels",
    "linear_share": "the engine's own linear layers",
    "attention_share": "the engine's own attention",
    "exchange_share": "the engine's own collectives",
    "prompt_share": "the engine's own kernels of prompts",
    "experts_us_per_layer": "time for each layer of experts on top of its kernels",
    "load_test_us": "the constant of load tests",
}
"""Further terms that were fitted to served steps only (`one_model.py`), in words."""
TERM_WORDS = WORDS | WORDS_OF_FITTED


def terms_out_of_range(scenario: Scenario, requests: tuple[int, int], tokens: float) -> list[str]:
    """A sentence for everything in WORDS of which twice would add over a tenth to a token, out of its range.

    requests: fewest and most in a step. tokens: length. Of both numbers of requests the one is named at which
    it would add more.
    """
    engine, batch = scenario.setting.runtime.engine, as_float(np.unique(requests))
    if engine is None or scenario.scope == "block":
        return []
    outside: dict[str, dict[str, Term]] = {}
    for name, words in WORDS.items():
        term = engine.terms[name]
        if term.value and _is_out_of_range(name, term, batch).any():
            outside.setdefault(words, {})[name] = term
    if not outside:
        return []
    option = usual_option(scenario)
    priced_us = token_us(scenario, {}, batch, tokens, option)

    def added(terms: dict[str, Term]) -> FloatArray:
        return changed_share(priced_us, token_us(scenario, doubled(terms), batch, tokens, option))

    def may_matter() -> bool:
        """Whether the times that are left add much together; else none of them does by itself."""
        times = {
            name: term for terms in outside.values() for name, term in terms.items() if not is_share(name)
        }
        return len(outside) == 1 or (bool(times) and bool(added(times).max() > DOUBLING_WORTH_NAMING))

    lines: list[str] = []
    times_matter = may_matter()
    for words in list(outside):
        terms = outside.pop(words)
        if not times_matter and not any(map(is_share, terms)):
            continue
        is_outside = np.any([_is_out_of_range(name, term, batch) for name, term in terms.items()], axis=0)
        share = np.where(is_outside, added(terms), 0.0)
        most = int(np.argmax(share))
        if share[most] > DOUBLING_WORTH_NAMING:
            term = next(iter(terms.values()))
            lines.append(_sentence(scenario, term, words, float(share[most]), int(batch[most])))
            times_matter = may_matter()
    return lines


def _is_out_of_range(name: str, term: Term, batch: FloatArray) -> BoolArray:
    """Where a term is outside its range, because of the set-up or because of the number of requests."""
    is_beyond = requests_beyond(term, batch) > 0.0 if name.endswith("_per_request") else False
    return np.full(batch.shape, bool(term.outside)) | is_beyond


def _sentence(scenario: Scenario, term: Term, words: str, share: float, requests: int) -> str:
    """`launches of prompts, of sglang-0.5: measured elsewhere (...), ...; if it took twice as long, ...`."""
    measured = "" if term.measured is None else f" ({term.measured.text})"
    here = f"priced here as {term.rule}" if term.rule else "with a wider band here"
    return (
        f"{words}, of {scenario.runtime.name}: measured elsewhere{measured}, {here}; if it took twice as "
        f"long, a token would take {100.0 * share:.0f} % longer at {requests} request{'s' * (requests > 1)}"
    )
