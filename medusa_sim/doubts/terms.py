"""Terms of an engine that carry much of a step outside the range that they were measured in, in sentences.

What a term is charged with follows the equations of `step/host.py` and `step/prompts.py`, at the fewest
and the most requests that were asked about; within a smooth maximum a term counts whole. Terms of prompts
count by the share of the server's steps that carry any (`step/server.py`).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from medusa_sim.arrays import BoolArray, FloatArray, as_float
from medusa_sim.doubts.doubts import beyond_known
from medusa_sim.doubts.one_model import told_by_another_model
from medusa_sim.scenario.draft_options import DraftOption
from medusa_sim.scenario.scenario import Scenario
from medusa_sim.specs.engine import UNITS, Engine
from medusa_sim.specs.term import Term
from medusa_sim.step.drafting import drafting_steps
from medusa_sim.step.graphs import is_captured
from medusa_sim.step.host import beyond, drafting_pass_us, launching_us, split_host
from medusa_sim.step.pass_time import has_whole_graph
from medusa_sim.step.prompts import prompt_host_us, prompts_apart
from medusa_sim.step.sampling import filter_us
from medusa_sim.step.server import in_server
from medusa_sim.step.step import decode_step, verification_step
from medusa_sim.step.step_time import StepTime

_MUCH_OF_A_STEP = 0.1
"""Share of a step from which a term is named."""
_DRAFTS = 3
"""Drafts of the round that stands for all, where the acceptance describes as many."""
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
"""Terms that may carry that much of a step, in words."""
_OF_PROMPTS = ("prompt_us_per_launch", "prefill_us_per_launch", "prompt_us_per_layer")
"""Terms among these that are charged for the prompts of a step."""
WORDS_OF_FITTED = {
    "kernels_share": "the engine's own kernels",
    "linear_share": "the engine's own linear layers",
    "attention_share": "the engine's own attention",
    "exchange_share": "the engine's own collectives",
    "prompt_share": "the engine's own kernels of prompts",
    "experts_us_per_layer": "time for each layer of experts on top of its kernels",
    "load_test_us": "the constant of load tests",
}
"""Terms that were fitted to served steps only (`one_model.py`), in words."""


def beyond_measured(scenario: Scenario, tokens: float, requests: tuple[int, int]) -> list[str]:
    """A sentence for everything known that these lengths and requests go beyond.

    tokens: the longest length. requests: fewest and most in a step.
    """
    return [
        *beyond_known(scenario, tokens),
        *far_terms(scenario, requests, tokens),
        *told_by_another_model(scenario, requests, tokens, WORDS | WORDS_OF_FITTED),
        *limits_text(scenario, requests[1]),
    ]


def far_terms(scenario: Scenario, requests: tuple[int, int], tokens: float) -> list[str]:
    """One sentence for each term that carries more than a tenth of a step outside its range.

    requests: fewest and most in a step. tokens: length.
    """
    setting = scenario.setting
    engine = setting.runtime.engine
    if engine is None or scenario.scope == "block":
        return []
    batch = as_float(np.unique(requests))
    outside = {
        name: term
        for name, term in engine.terms.items()
        if name in WORDS and term.value and _is_far(name, term, batch).any()
    }
    if not outside:
        return []
    option = _option(scenario)
    plain = decode_step(setting, batch, tokens)
    target, step_us, passes = plain, plain.time_us, tuple[StepTime, ...]()
    if option is not None:
        drafting = replace(setting, drafter=option.drafter, compacted_drafts=option.depth)
        passes = drafting_steps(drafting, batch, tokens, option.depth + 1)
        whole = target = verification_step(drafting, batch, tokens, option.depth + 1)
        for each in passes:
            whole = whole + each
        step_us = whole.time_us
    charged = _charged(scenario, engine, option, passes, plain, batch)
    if not outside.keys().isdisjoint(_OF_PROMPTS):
        charged |= _charged_for_prompts(scenario, option, step_us, target.parts_us["attention"], batch)
    lines: dict[str, str] = {}
    for name, term in outside.items():
        us = np.broadcast_to(charged.get(name, 0.0), batch.shape)
        far = _is_far(name, term, batch)
        added = us if name in _OF_PROMPTS else 0.0  # beside the step
        share = np.where(far, us / (np.broadcast_to(step_us, batch.shape) + added), 0.0)
        place = int(np.argmax(share))
        if share[place] > _MUCH_OF_A_STEP:
            lines[WORDS[name]] = _sentence(
                scenario, term, WORDS[name], float(share[place]), int(batch[place])
            )
    return list(lines.values())


def _is_far(name: str, term: Term, batch: FloatArray) -> BoolArray:
    """Where a term is outside its range: by the set-up, or by the requests that it is charged for."""
    many = beyond(term, batch) > 0.0 if name.endswith("_per_request") else False
    return np.full(batch.shape, bool(term.outside)) | many


def _option(scenario: Scenario) -> DraftOption | None:
    """The draft option that stands for all."""
    options = [option for option in scenario.options() if option.depth <= _DRAFTS]
    return max(options, key=lambda option: (option.chain, option.depth), default=None)


def _charged(
    scenario: Scenario,
    engine: Engine,
    option: DraftOption | None,
    passes: tuple[StepTime, ...],
    plain: StepTime,
    batch: FloatArray,
) -> dict[str, FloatArray]:
    """Microseconds of a step, by the term that charges them."""
    value = {name: getattr(engine, name).value for name in UNITS}
    setting, layers = scenario.setting, scenario.model.layers
    own = np.ceil(batch / scenario.parallel.schedulers)
    width = 1.0 if option is None else option.depth + 1.0
    drafts, looks_up = option is not None, scenario.drafting.kind.looks_up
    requests_us, layers_us = value["host_us_per_request"] * own, value["layer_us"] * layers
    # what is hidden comes off the step's own work first
    exposed_us = split_host(engine, own, layers).exposed.time_us
    varying_us = requests_us + layers_us
    shown = np.minimum(exposed_us / np.maximum(varying_us, 1e-9), 1.0)
    ran = [each for each in passes if each.works and each.works[0].of == "draft"]
    by_pass = sum(
        (drafting_pass_us(engine, each.works[0].layers, each.device_us).time_us for each in ran), np.zeros(())
    )
    planned = sum(not has_whole_graph(setting.latency, work) for each in ran for work in each.works)
    experts_us = plain.parts_us.get("experts", np.zeros(()))
    found = {
        "host_us_per_step": np.maximum(exposed_us - varying_us, 0.0),
        "host_us_per_request": shown * requests_us,
        "host_us_per_token": value["host_us_per_token"] * own,
        "eager_us_per_layer": launching_us(engine, layers, is_captured(engine, own, width)).time_us,
        "layer_us": shown * layers_us,
        "experts_share": experts_us * abs(1.0 / max(value["experts_share"], 1e-9) - 1.0),
        "plan_us_per_pass": np.asarray(value["plan_us_per_pass"] * planned),
        "pieces_us_per_layer": np.asarray(value["pieces_us_per_layer"] * planned),
    }
    if scenario.parallel.ep > 1:
        found["expert_parallel_us_per_layer"] = np.asarray(value["expert_parallel_us_per_layer"] * layers)
    if drafts and looks_up:
        found["lookup_us_per_request"] = value["lookup_us_per_request"] * own
    elif drafts:
        found["draft_us_per_step"] = np.asarray(value["draft_us_per_step"])
        found["draft_us_per_request"] = value["draft_us_per_request"] * own
        by_layer = ran and value["draft_us_per_layer"] * ran[0].works[0].layers > value["draft_us_per_pass"]
        found["draft_us_per_layer" if by_layer else "draft_us_per_pass"] = np.asarray(by_pass)
    if scenario.traffic is not None:
        rows, model = own * width, scenario.model
        filtered = filter_us(engine, scenario.gpu, rows, model.filtered_vocab, top_k=model.samples_top_k)
        found |= dict.fromkeys(("filter_bytes_per_logit", "filter_us_per_million"), filtered)
    return found


def _charged_for_prompts(
    scenario: Scenario,
    option: DraftOption | None,
    step_us: FloatArray,
    attention_us: FloatArray,
    batch: FloatArray,
) -> dict[str, FloatArray]:
    """The same of terms that steps with prompts are charged with, on average over all steps.

    attention_us: of step_us, the attention of all requests. Nothing is carried where nobody sends prompts.
    """
    setting, drafts = scenario.setting, option is not None
    candidates, tokens = 1, 1.0
    if option is not None:
        candidates = option.depth + 1
        tokens = float(np.interp(candidates, option.candidates, option.tokens_per_step))
    served = in_server(
        setting, step_us, batch, candidates, as_float(tokens), scenario.traffic, attention_us=attention_us
    )
    engine, carrying = setting.runtime.engine, served.carrying_share
    assert engine is not None  # noqa: S101  # its terms are asked about
    is_drafting = drafts or not prompts_apart(setting)
    launched = "prompt_us_per_launch" if is_drafting else "prefill_us_per_launch"
    return {
        "prompt_us_per_layer": carrying * engine.prompt_us_per_layer.value * scenario.model.layers,
        launched: carrying * prompt_host_us(setting, drafts=drafts),
    }


def _sentence(scenario: Scenario, term: Term, words: str, share: float, requests: int) -> str:
    """`at 64 requests 14 % of a step is launches of prompts: measured elsewhere (latent; 8 GPUs) ...`."""
    measured = "" if term.measured is None else f" ({term.measured.text})"
    where = f"at {requests} request{'s' * (requests > 1)}"
    here = f"priced here as {term.rule}" if term.rule else "its band is wider here"
    return (
        f"{where} {100.0 * share:.0f} % of a step is {words}, which was measured elsewhere in "
        f"{scenario.runtime.name}{measured}: {here}"
    )


def limits_text(scenario: Scenario, requests: int) -> Iterator[str]:
    """A sentence where an engine admits fewer requests because a drafter is loaded."""
    engine = scenario.runtime.engine
    most = 0 if engine is None else engine.drafting_requests
    if most and requests > most and scenario.scope == "model":
        yield (
            f"{scenario.runtime.name} admits at most {most} requests with a drafter unless "
            f"--max-running-requests says more: rows beyond {most} are of a server that was started with it"
        )
