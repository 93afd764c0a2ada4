"""Terms of an engine that take much of a step outside the range that they were measured in, in sentences."""

from __future__ import annotations

import numpy as np

from medusa_sim.arrays import BoolArray, FloatArray, as_float
from medusa_sim.doubts.charges import charged_for_prompts_us, charged_us, round_of, usual_option
from medusa_sim.scenario.scenario import Scenario
from medusa_sim.specs.term import Term
from medusa_sim.step.host import beyond

_MUCH_OF_A_STEP = 0.1
"""Share of a step from which a term is named."""
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
_OF_PROMPTS = ("prompt_us_per_launch", "prefill_us_per_launch", "prompt_us_per_layer")
"""Terms that are charged for the prompts of a step."""
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
    """A sentence for each term that takes more than a tenth of a step outside its range.

    requests: fewest and most in a step. tokens: length. Of both numbers of requests the one is named at which
    the term takes more.
    """
    engine, batch = scenario.setting.runtime.engine, as_float(np.unique(requests))
    if engine is None or scenario.scope == "block":
        return []
    outside = {
        name: term
        for name, term in engine.terms.items()
        if name in WORDS and term.value and _is_out_of_range(name, term, batch).any()
    }
    if not outside:
        return []
    made = round_of(scenario, engine, batch, tokens, usual_option(scenario))
    us_by_term = charged_us(made)
    if not outside.keys().isdisjoint(_OF_PROMPTS):
        us_by_term |= charged_for_prompts_us(made)
    lines: dict[str, str] = {}
    for name, term in outside.items():
        term_us = np.broadcast_to(us_by_term.get(name, 0.0), batch.shape)
        step_us = np.broadcast_to(made.time_us, batch.shape)
        if name in _OF_PROMPTS:  # the round is one without prompts
            step_us = step_us + term_us
        share = np.where(_is_out_of_range(name, term, batch), term_us / step_us, 0.0)
        most = int(np.argmax(share))
        if share[most] > _MUCH_OF_A_STEP:
            lines[WORDS[name]] = _sentence(scenario, term, WORDS[name], float(share[most]), int(batch[most]))
    return list(lines.values())


def _is_out_of_range(name: str, term: Term, batch: FloatArray) -> BoolArray:
    """Where a term is outside its range, because of the set-up or because of the number of requests."""
    is_beyond = beyond(term, batch) > 0.0 if name.endswith("_per_request") else False
    return np.full(batch.shape, bool(term.outside)) | is_beyond


def _sentence(scenario: Scenario, term: Term, words: str, share: float, requests: int) -> str:
    """`at 64 requests 14 % of a step is launches of prompts: measured elsewhere (latent; 8 GPUs) ...`."""
    measured = "" if term.measured is None else f" ({term.measured.text})"
    where = f"at {requests} request{'s' * (requests > 1)}"
    here = f"priced here as {term.rule}" if term.rule else "its band is wider here"
    return (
        f"{where} {100.0 * share:.0f} % of a step is {words}, which was measured elsewhere in "
        f"{scenario.runtime.name}{measured}: {here}"
    )
