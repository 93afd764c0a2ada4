"""Doubts about a scenario, whatever is asked of it: parts that were not measured for it, rules in order."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from functools import lru_cache
from typing import NamedTuple, TypeAlias

import numpy as np

from medusa_sim.doubts.acceptance import (
    acceptance_of_outputs,
    acceptance_of_shorter_requests,
    guessed_acceptance,
    lossless_as_given,
    typed_acceptance,
    whose_acceptance,
    workload_of_medusa,
)
from medusa_sim.doubts.kernels import RULES_OF_KERNELS
from medusa_sim.doubts.room import model_too_large
from medusa_sim.doubts.stand_ins import taken_over
from medusa_sim.engines.engine import DRAFTING
from medusa_sim.latency.local import LocalLatency
from medusa_sim.models.model import NOT_PRICED, RUN_IN_FP16, UNCHECKED
from medusa_sim.models.state_rules import state_notes
from medusa_sim.scenario.scenario import Scenario
from medusa_sim.units import SCALE_BLOCK

_ONE_NODE = 8
"""Most GPUs of one server, usually."""
_KEEP_SCALE_BLOCKS = ("vllm", "sglang")
"""Engines that cannot split a block of weights with one scale between GPUs."""
Rule: TypeAlias = Callable[[Scenario], Iterator[str]]
"""The doubts of one kind about a scenario, a sentence each; its docstring is the doubt that it raises."""
_OWN_DTYPE = {
    "vllm": "vLLM from 0.9.1 on runs the dtype of the weights' files, bf16 for fp32: give --dtype bf16",
    "sglang": "SGLang does so too, but runs Gemma in bf16",
    "trtllm": "TensorRT-LLM takes the config's dtype, bf16 where it has none: give --dtype bf16",
}
"""What engines run where a config has no dtype, or fp32 (vllm/config/model.py, pull request 18751;
sglang/srt/configs/model_config.py; tensorrt_llm/_torch/model_config.py)."""


class Listed(NamedTuple):
    """A rule of the list."""

    rule: Rule
    of_acceptance: bool = False
    """Plain decoding does not rest on it."""
    of_guesses: bool = False
    """Only what drafts as far as `Scenario.guessed_from` rests on it."""
    is_grave: bool = False
    """Its doubts may overturn an answer."""


def scenario_doubts(scenario: Scenario, candidates: int | None = None) -> tuple[str, ...]:
    """Every doubt about the answers of a scenario.

    candidates: the largest count in these answers, if known. Doubts about drafts beyond it are left out, and
    for plain decoding (1) all doubts about acceptance.
    """
    drafts = math.inf if candidates is None else candidates - 1
    reaches_guesses = drafts >= (scenario.guessed_from or 0)
    return tuple(
        line
        for listed, lines in _told(scenario)
        if not (listed.of_acceptance and drafts == 0) and (reaches_guesses or not listed.of_guesses)
        for line in lines
    )


def grave_doubts(scenario: Scenario) -> tuple[str, ...]:
    """The doubts that may overturn an answer: acceptance, engine or device were never measured there."""
    return tuple(line for listed, lines in _told(scenario) if listed.is_grave for line in lines)


@lru_cache(maxsize=16)
def _told(scenario: Scenario) -> tuple[tuple[Listed, tuple[str, ...]], ...]:
    """What each rule says; found once, as an answer's page, table and JSON ask again."""
    return tuple((listed, tuple(listed.rule(scenario))) for listed in RULES)


def requests_too_long(scenario: Scenario) -> Iterator[str]:
    """Requests grow longer than the model has positions."""
    traffic = scenario.traffic
    if traffic is not None and traffic.prompt_tokens + traffic.output_tokens > scenario.model.max_seq_len:
        yield (
            f"requests of {traffic.prompt_tokens:.10g} + {traffic.output_tokens:.10g} tokens go beyond "
            f"the {scenario.model.max_seq_len} positions of {scenario.model.name}"
        )


def equal_requests(scenario: Scenario) -> Iterator[str]:
    """Requests of equal lengths begin and end together, which a sweep does not know."""
    traffic = scenario.traffic
    if traffic is not None and scenario.runtime.engine is not None and traffic.prompt_cv == 0.0:
        yield (
            "requests of equal lengths (--length-cv 0) stay together in plain decoding: first tokens come "
            "several times as late as told here, later ones 3 to 15 % sooner; medusa-sim load --users N "
            "--length-cv 0 steps through them"
        )


def notes_of_the_model(scenario: Scenario) -> Iterator[str]:
    """The model runs in another format than published, or something of it is not priced or not checked."""
    notes = scenario.model.notes
    if scenario.arguments.dtype is None:
        own = _OWN_DTYPE.get(scenario.runtime.library, "")
        for note in notes:
            if note.endswith(RUN_IN_FP16):
                yield f"{scenario.model.name}: {note}" + (f"; {own}" if own else "")
    yield from (f"{scenario.model.name}: {note}" for note in notes if note.endswith((UNCHECKED, NOT_PRICED)))


def states_in_the_engine(scenario: Scenario) -> Iterator[str]:
    """The engine limits drafts of models with recurrent states."""
    if scenario.scope == "model" and scenario.runtime.engine is not None:
        yield from state_notes(scenario.runtime.library, scenario.model, scenario.drafting.method)


def version_of_the_engine(scenario: Scenario) -> Iterator[str]:
    """Another version is priced in place of the one that was asked for."""
    runtime = scenario.runtime
    if runtime.asked and runtime.versions is not None:
        span = " to ".join(dict.fromkeys(runtime.versions))
        nearest = "" if runtime.holds_asked else ", the nearest that is known, with wider bands"
        yield f"{runtime.asked} has the terms of {runtime.name} ({span}){nearest}"


def local_kernels(scenario: Scenario) -> Iterator[str]:
    """Nobody measured the kernels of a local engine on this class of devices."""
    if isinstance(scenario.latency, LocalLatency) and not scenario.latency.law.measured:
        yield (
            f"{scenario.runtime.name} on {scenario.gpu.name}: nobody measured kernels on such a device "
            f"({scenario.latency.law.source}); bands are wide"
        )


def unmeasured_engine(scenario: Scenario) -> Iterator[str]:
    """Nobody measured the engine, or not with this drafter."""
    engine, runtime = scenario.runtime.engine, scenario.runtime
    only = () if engine is None else engine.measured_drafters
    if not runtime.is_measured():
        yield (
            f"{runtime.name}: nobody measured this engine; its own terms are guesses or another's, "
            "with wide bands"
        )
    elif not runtime.is_measured(DRAFTING) or (only and scenario.drafting.method not in only):
        but = f" except with {', '.join(only)}" if only else ""
        yield (
            f"{runtime.name}: nobody measured drafting in this engine{but}; its terms are guesses or "
            "another's, with wide bands"
        )


def engine_on_other_gpus(scenario: Scenario) -> Iterator[str]:
    """Terms of the engine were measured on another number of GPUs."""
    engine = scenario.runtime.engine
    if engine is not None and scenario.scope == "model" and (terms := taken_over(scenario)):
        every = sum(term.value != 0.0 for term in engine.terms.values())
        several = f"; measured on several GPUs: {engine.several_gpus}" if engine.several_gpus else ""
        was, carried = ("was", "is") if len(terms) == 1 else ("were", "are")
        yield (
            f"{len(terms)} of the {every} terms of {scenario.runtime.name} {was} not measured on "
            f"{scenario.parallel} and {carried} carried over, with wider bands{several}"
        )


def slow_link(scenario: Scenario) -> Iterator[str]:
    """More GPUs share the model than the fast link joins, or than one server has."""
    tp = scenario.parallel.tp
    if scenario.gpu.exceeds_link(np.asarray(float(tp))):
        yield (
            f"the link of {scenario.gpu.name} joins {scenario.gpu.linked_gpus} GPUs: {tp} share a slower one"
        )
    if tp > _ONE_NODE:
        yield f"{scenario.parallel}: priced as if all were in one node; links between nodes are slower"


def cut_scale_blocks(scenario: Scenario) -> Iterator[str]:
    """Engines do not start where a block of experts' weights would be split (vLLM #17569, #25292)."""
    experts, whole = scenario.shard.experts, scenario.model.experts
    if experts is None or whole is None or scenario.runtime.library not in _KEEP_SCALE_BLOCKS:
        return
    form = experts.form or scenario.shard.weight_dtype
    if form != "fp8_block" or experts.inter % SCALE_BLOCK == 0:
        return
    tp = scenario.parallel.tp
    fewer = [str(gpus) for gpus in range(1, tp) if whole.inter % (gpus * SCALE_BLOCK) == 0 and tp % gpus == 0]
    smaller = f" or --tp {fewer[-1]}" if fewer else ""
    yield (
        f"experts of {scenario.model.name} are {whole.inter:g} wide; over tp {tp} that is "
        f"{whole.inter / tp:g}, not whole blocks of {SCALE_BLOCK} with an fp8 scale each, and most versions "
        f"of {scenario.runtime.library} do not start: --ep {tp}{smaller}"
    )


def prompts_beyond_a_step(scenario: Scenario) -> Iterator[str]:
    """Prompts are longer than a step, and the engine reads them whole unless told otherwise."""
    if (most := scenario.refused_prompt) is not None:
        yield (
            f"{scenario.runtime.name} refuses prompts beyond {most:,.0f} tokens unless "
            "enable_chunked_prefill is on or max_num_tokens larger: priced as if it read them in chunks"
        )


def fitted_kernels(scenario: Scenario) -> Iterator[str]:
    """Fitted kernels that stand in for others, where the latency model is calibrated."""
    if scenario.latency.name == "calibrated":
        yield from (line for rule in RULES_OF_KERNELS for line in rule(scenario))


def trees_without_attention(scenario: Scenario) -> Iterator[str]:
    """Trees were asked for where the engine verifies chains only."""
    if scenario.runtime.chain_only and scenario.has_trees:
        yield (
            f"{scenario.runtime.name} has no tree attention: trees are priced as if it had; --chain-only "
            "leaves them out"
        )


RULES: tuple[Listed, ...] = (
    Listed(whose_acceptance, of_acceptance=True, is_grave=True),
    Listed(typed_acceptance, of_acceptance=True, is_grave=True),
    Listed(acceptance_of_shorter_requests, of_acceptance=True, is_grave=True),
    Listed(local_kernels, is_grave=True),
    Listed(unmeasured_engine, is_grave=True),
    Listed(guessed_acceptance, of_acceptance=True, of_guesses=True),
    Listed(acceptance_of_outputs, of_acceptance=True),
    Listed(workload_of_medusa, of_acceptance=True),
    Listed(lossless_as_given, of_acceptance=True),
    Listed(requests_too_long),
    Listed(equal_requests),
    Listed(notes_of_the_model),
    Listed(states_in_the_engine),
    Listed(version_of_the_engine),
    Listed(engine_on_other_gpus),
    Listed(slow_link),
    Listed(cut_scale_blocks),
    Listed(prompts_beyond_a_step),
    Listed(model_too_large),
    Listed(fitted_kernels),
    Listed(trees_without_attention),
)
"""In the order in which an answer lists them."""


def first_token_doubts(scenario: Scenario) -> list[str]:
    """How measured times to the first token differ from predicted ones."""
    library = scenario.runtime.library
    if scenario.runtime.engine is None or (library == "vllm" and not scenario.parallel.dp_attention):
        return []
    if scenario.parallel.dp_attention:
        return [
            "times to the first token leave out how long prompts wait for each other under data-parallel "
            "attention: measured ones of DeepSeek-R1 (TensorRT-LLM, 64 to 256 requests) were 7 to 30 times "
            "as long"
        ]
    return [
        "times to the first token have the server of vLLM 0.15: measured ones of DeepSeek-R1 were up to "
        f"twice as long in SGLang and 1.3 to 4 times in TensorRT-LLM ({scenario.runtime.name})"
    ]
