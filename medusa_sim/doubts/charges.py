"""Time that each term of an engine adds to a step, in microseconds.

`step/` prices whole steps. The sentences about single terms need each term's own part, by the same equations
(docs/method-engines.md). Within a smooth maximum a term counts in full. Terms of prompts count by the share
of the server's steps that carry prompts.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TypeAlias

import numpy as np

from medusa_sim.arrays import FloatArray, as_float
from medusa_sim.scenario.draft_options import DraftOption
from medusa_sim.scenario.scenario import Scenario
from medusa_sim.specs.engine import Engine
from medusa_sim.step.drafting import drafting_steps
from medusa_sim.step.graphs import is_captured
from medusa_sim.step.host import drafting_pass_us, launching_us, split_host
from medusa_sim.step.pass_time import has_whole_graph
from medusa_sim.step.prompts import prompt_host_us, prompts_apart
from medusa_sim.step.sampling import filter_us
from medusa_sim.step.server import in_server
from medusa_sim.step.step import decode_step, verification_step
from medusa_sim.step.step_time import StepTime

_DRAFTS = 3
"""Most drafts of the representative round."""
_TINY = 1e-9

UsByTerm: TypeAlias = dict[str, FloatArray]
"""Microseconds of a step by the name of the term that adds them, an entry for each number of requests."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Round:
    """A round of drafting and verification, and the plain step, at some numbers of requests.

    engine: whose terms are asked about. batch: numbers of requests. option: how it drafts; None: it does not.
    plain: the plain step. verification: the target's pass, the plain step without drafts. passes: those of
    the drafter.
    """

    scenario: Scenario
    engine: Engine
    batch: FloatArray
    option: DraftOption | None
    plain: StepTime
    verification: StepTime
    passes: tuple[StepTime, ...]

    @property
    def time_us(self) -> FloatArray:
        """Microseconds of the whole round."""
        whole = self.verification
        for each in self.passes:
            whole = whole + each
        return whole.time_us

    @property
    def requests(self) -> FloatArray:
        """Requests of each scheduler."""
        return np.ceil(self.batch / self.scenario.parallel.schedulers)

    @property
    def candidates(self) -> int:
        """Tokens that a request verifies."""
        return 1 if self.option is None else self.option.depth + 1

    @property
    def tokens_per_step(self) -> float:
        """Tokens that a request gains."""
        if self.option is None:
            return 1.0
        return float(np.interp(self.candidates, self.option.candidates, self.option.tokens_per_step))


def usual_option(scenario: Scenario) -> DraftOption | None:
    """The representative way of drafting: the longest chain of at most three drafts, else a tree."""
    options = [option for option in scenario.options() if option.depth <= _DRAFTS]
    return max(options, key=lambda option: (option.chain, option.depth), default=None)


def round_of(
    scenario: Scenario, engine: Engine, batch: FloatArray, tokens: float, option: DraftOption | None
) -> Round:
    """The round of an option for requests of `tokens` tokens, by their number."""
    plain = verification = decode_step(scenario.setting, batch, tokens)
    passes: tuple[StepTime, ...] = ()
    if option is not None:
        drafting = replace(scenario.setting, drafter=option.drafter, compacted_drafts=option.depth)
        passes = drafting_steps(drafting, batch, tokens, option.depth + 1)
        verification = verification_step(drafting, batch, tokens, option.depth + 1)
    return Round(
        scenario=scenario, engine=engine, batch=batch, option=option, plain=plain, verification=verification,
        passes=passes,
    )  # fmt: skip


def charged_us(made: Round) -> UsByTerm:
    """Time that each term adds to a round, without terms of prompts; one that is not listed adds none."""
    return _of_every_step(made) | _of_passes(made) | _of_drafting(made) | _of_filter(made)


def charged_for_prompts_us(made: Round) -> UsByTerm:
    """Time that terms of prompts add to a round, on average over rounds with and without prompts."""
    scenario, engine = made.scenario, made.engine
    served = in_server(
        scenario.setting, made.time_us, made.batch, made.candidates, as_float(made.tokens_per_step),
        scenario.traffic, attention_us=made.verification.parts_us["attention"],
    )  # fmt: skip
    share_of_steps = served.carrying_share
    drafts = made.option is not None
    is_drafting = drafts or not prompts_apart(scenario.setting)
    launches = "prompt_us_per_launch" if is_drafting else "prefill_us_per_launch"
    return {
        "prompt_us_per_layer": share_of_steps * engine.prompt_us_per_layer.value * scenario.model.layers,
        launches: share_of_steps * prompt_host_us(scenario.setting, drafts=drafts),
    }


def _of_every_step(made: Round) -> UsByTerm:
    """The host's work and the layers of the target.

    What runs while the device works adds nothing. It is taken off the work of the step first, then off that
    of requests and layers alike.
    """
    engine, layers, requests = made.engine, made.scenario.model.layers, made.requests
    requests_us = engine.host_us_per_request.value * requests
    layers_us = engine.layer_us.value * layers
    exposed_us = split_host(engine, requests, layers).exposed.time_us
    exposed_share = np.minimum(exposed_us / np.maximum(requests_us + layers_us, _TINY), 1.0)
    is_in_graph = is_captured(engine, requests, as_float(made.candidates))
    added = {
        "host_us_per_step": np.maximum(exposed_us - (requests_us + layers_us), 0.0),
        "host_us_per_request": exposed_share * requests_us,
        "layer_us": exposed_share * layers_us,
        "host_us_per_token": engine.host_us_per_token.value * requests,
        "eager_us_per_layer": launching_us(engine, layers, is_in_graph).time_us,
    }
    experts_us = made.plain.parts_us.get("experts", np.zeros(()))
    added["experts_share"] = experts_us * abs(1.0 / max(engine.experts_share.value, _TINY) - 1.0)
    if made.scenario.parallel.ep > 1:
        added["expert_parallel_us_per_layer"] = np.asarray(engine.expert_parallel_us_per_layer.value * layers)
    return added


def _drafter_passes(made: Round) -> list[StepTime]:
    """Passes that run the drafter's own kernels."""
    return [each for each in made.passes if each.works and each.works[0].of == "draft"]


def _of_passes(made: Round) -> UsByTerm:
    """Time of the drafter's passes whose attention no graph holds."""
    latency = made.scenario.setting.latency
    works = [work for each in _drafter_passes(made) for work in each.works]
    planned = sum(not has_whole_graph(latency, work) for work in works)
    names = ("plan_us_per_pass", "pieces_us_per_layer")
    return {name: np.asarray(getattr(made.engine, name).value * planned) for name in names}


def _of_drafting(made: Round) -> UsByTerm:
    """Time of drafting: look-ups, or the host around and in the drafter's passes."""
    engine = made.engine
    if made.option is None:
        return {}
    if made.scenario.drafting.kind.looks_up:
        return {"lookup_us_per_request": engine.lookup_us_per_request.value * made.requests}
    passes = _drafter_passes(made)
    in_passes = (drafting_pass_us(engine, each.works[0].layers, each.device_us).time_us for each in passes)
    in_passes_us = sum(in_passes, np.zeros(()))
    layers_us = engine.draft_us_per_layer.value * passes[0].works[0].layers if passes else 0.0
    longer = "draft_us_per_layer" if layers_us > engine.draft_us_per_pass.value else "draft_us_per_pass"
    return {
        "draft_us_per_step": np.asarray(engine.draft_us_per_step.value),
        "draft_us_per_request": engine.draft_us_per_request.value * made.requests,
        longer: np.asarray(in_passes_us),
    }


def _of_filter(made: Round) -> UsByTerm:
    """Time of top-p and top-k, which only requests of a server ask for."""
    if made.scenario.traffic is None:
        return {}
    model, rows = made.scenario.model, made.requests * made.candidates
    filtered = filter_us(
        made.engine, made.scenario.gpu, rows, model.filtered_vocab, top_k=model.samples_top_k
    )
    return dict.fromkeys(("filter_bytes_per_logit", "filter_us_per_million"), filtered)
