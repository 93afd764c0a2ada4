"""What the answers about a scenario rest on that was not measured for it: rules in order, a sentence each."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np

from medusa_sim.file_types import FILES, bytes_per_weight
from medusa_sim.latency.base import known_time
from medusa_sim.latency.local import LocalLatency
from medusa_sim.operators.kinds import KIND_OF
from medusa_sim.plan import TYPICAL, request_length
from medusa_sim.plan.acceptance import doubtful_shares
from medusa_sim.plan.scenario import Scenario
from medusa_sim.plan.stand_ins import borrowed_shares, other_form, slower_than_halves, taken_over
from medusa_sim.specs.engine_facts import state_notes
from medusa_sim.specs.feed_forwards import MoE
from medusa_sim.specs.fitted import FEWEST_RANKS
from medusa_sim.specs.mixers import Latent
from medusa_sim.specs.model import RUN_IN_FP16, UNCHECKED
from medusa_sim.step.memory import fewest_gpus, step_memory_bytes
from medusa_sim.units import BYTES_PER_ELEMENT, GIGA, KILO

_ONE_NODE = 8
"""GPUs of most servers."""
_LEAST_SHARE = 0.01
"""Of a step; a smaller share is not given as a number."""


def doubts(of: Scenario, candidates: int | None = None) -> tuple[str, ...]:
    """Every reservation about the answers of a scenario.

    candidates: the largest count of these answers, where it is known: a guess that none of them rests on is
    left out.
    """
    is_guess_used = candidates is None or of.guessed_from is None or candidates > of.guessed_from
    rules = RULES if is_guess_used else [rule for rule in RULES if rule is not guessed_acceptance]
    return tuple(line for rule in rules for line in rule(of))


def grave_doubts(of: Scenario) -> tuple[str, ...]:
    """Those of `doubts` that an answer stands or falls with: acceptance, engine or device never measured."""
    return tuple(line for rule in GRAVE for line in rule(of))


def whose_acceptance(of: Scenario) -> Iterator[str]:
    """That the acceptance is an assumption, or another model's."""
    if of.profile.name.startswith(TYPICAL):
        yield (
            f"acceptance {of.profile.name} is an assumption ({of.profile.title}): nobody measured "
            f"{of.drafting.method} on {of.model.name}; give your own with --acceptance"
        )
    elif of.borrows_acceptance:
        yield (
            f"acceptance {of.profile.name} was measured on another model than {of.model.name}; give "
            "your own with --acceptance"
        )


def typed_acceptance(of: Scenario) -> Iterator[str]:
    """That shares of steps, as they were typed, look like conditional rates."""
    if line := doubtful_shares(of.arguments.acceptance):
        yield line


def guessed_acceptance(of: Scenario) -> Iterator[str]:
    """From which draft on the acceptance is a guess."""
    first = of.guessed_from
    if first is not None:
        known = "1 draft" if first == 2 else f"{first - 1} drafts"
        yield (
            f"acceptance {of.profile.name} was measured for {known}: from draft {first} on its rates are a "
            "guess, with bands that widen; measure longer drafts with medusa-sim acceptance from-engine"
        )


def acceptance_of_outputs(of: Scenario) -> Iterator[str]:
    """That the acceptance was scaled to outputs of random prompts."""
    if of.profile.output_share != 1.0:
        yield (
            f"acceptance {of.profile.name}: rates are {of.profile.output_share:.2f} of the published ones, "
            f"as measured in outputs of {of.profile.output_tokens:g} tokens to random prompts; real prompts "
            "may do better: give your own with --acceptance"
        )


def requests_beyond_acceptance(of: Scenario) -> Iterator[str]:
    """That requests grow longer than the contexts that the acceptance was measured at."""
    if of.traffic is not None:
        yield from _beyond_acceptance(of, request_length(of.traffic.prompt_tokens, of.traffic.output_tokens))


def requests_beyond_positions(of: Scenario) -> Iterator[str]:
    """That requests grow longer than the model has positions."""
    traffic = of.traffic
    if traffic is not None and _exceeds(of, traffic.prompt_tokens + traffic.output_tokens):
        yield (
            f"requests of {traffic.prompt_tokens:.10g} + {traffic.output_tokens:.10g} tokens go beyond "
            f"the {of.model.max_seq_len} positions of {of.model.name}"
        )


def notes_of_the_model(of: Scenario) -> Iterator[str]:
    """Notes of the model's file: run in another format than published, or sizes that nobody checked."""
    notes = of.model.notes
    if of.arguments.dtype is None:
        yield from (f"{of.model.name}: {note}" for note in notes if note.endswith(RUN_IN_FP16))
    yield from (f"{of.model.name}: {note}" for note in notes if note.endswith(UNCHECKED))


def states_in_the_engine(of: Scenario) -> Iterator[str]:
    """What the engine does with recurrent states while it drafts."""
    if of.scope == "model" and of.runtime.engine is not None:
        yield from state_notes(of.runtime.library, of.model, of.drafting.method)


def version_of_the_engine(of: Scenario) -> Iterator[str]:
    """That another version stands for the one that was asked for."""
    runtime = of.runtime
    if runtime.asked and runtime.versions is not None:
        span = " to ".join(dict.fromkeys(runtime.versions))
        nearest = "" if runtime.holds_asked else ", the nearest that is known, with wider bands"
        yield f"{runtime.asked} has the terms of {runtime.name} ({span}){nearest}"


def local_kernels(of: Scenario) -> Iterator[str]:
    """That nobody measured the kernels of a local engine on this class of devices."""
    if isinstance(of.latency, LocalLatency) and not of.latency.law.measured:
        yield (
            f"{of.runtime.name} on {of.gpu.name}: nobody measured kernels of this class "
            f"({of.latency.law.source}); bands are wide"
        )


def unmeasured_engine(of: Scenario) -> Iterator[str]:
    """That nobody measured the engine, or not while it drafts so."""
    engine, runtime = of.runtime.engine, of.runtime
    only = () if engine is None else engine.measured_drafters
    if not runtime.is_measured:
        yield (
            f"{runtime.name}: nobody measured this engine; its own terms are guesses or another's, "
            "with wide bands"
        )
    elif not runtime.is_drafting_measured or (only and of.drafting.method not in only):
        but = f" but with {', '.join(only)}" if only else ""
        yield (
            f"{runtime.name}: nobody measured drafting in this engine{but}; its terms are guesses or "
            "another's, with wide bands"
        )


def engine_on_other_gpus(of: Scenario) -> Iterator[str]:
    """That terms of the engine were measured on another number of GPUs."""
    engine = of.runtime.engine
    if engine is not None and of.scope == "model" and (terms := taken_over(of)):
        every = sum(term.value != 0.0 for term in engine.terms.values())
        several = f"; on several: {engine.several_gpus}" if engine.several_gpus else ""
        yield (
            f"{len(terms)} of the {every} terms of {of.runtime.name} were not measured on {of.parallel} and "
            f"are taken over, with wider bands{several}"
        )


def slow_link(of: Scenario) -> Iterator[str]:
    """That more cards share the model than the fast link joins, or than one node has."""
    tp = of.parallel.tp
    if of.gpu.exceeds_link(np.asarray(float(tp))):
        yield f"the link of {of.gpu.name} joins {of.gpu.linked_gpus} cards: {tp} share a slower one"
    if tp > _ONE_NODE:
        yield f"{of.parallel}: priced as if all were in one node; links between nodes are slower"


def model_too_large(of: Scenario) -> Iterator[str]:
    """That not even one sequence fits on the GPUs, and how many would hold it."""
    if of.scope != "model" or float(step_memory_bytes(of.shard, None, 1, 1, 1)) <= of.usable_memory_bytes:
        return
    model = f"{of.model.name} ({of.model.weight_dtype})"
    if of.runtime.local:
        yield f"{model} does not fit on {of.gpu.name}: {_with_the_host(of)}"
        return
    enough = fewest_gpus(of.model, of.gpu, of.shard.parallel, of.runtime.engine)
    hint = f"--tp {enough} would" if enough else "no number of GPUs up to 128 would"
    yield f"{model} does not fit on {of.shard.parallel} of {of.gpu.name}: {hint}"


_HOST_BYTES_PER_S = 80e9
"""What two channels of DDR5-6000 read, of the 96 GB/s that they could."""


def _with_the_host(of: Scenario) -> str:
    """What fits of a model that is too large: the option that leaves the rest with the host, its price."""
    room, model = of.usable_memory_bytes, of.shard
    beyond = float(step_memory_bytes(model, None, 1, 1, 1)) - room
    smaller = "choose a smaller file (--weight-dtype)"
    if (
        of.runtime.library != "llama.cpp"
        or of.gpu.architecture == "cpu"
        or beyond >= model.layers_weight_bytes
    ):
        return smaller
    layers, read, flag = model.layers, beyond, ""
    if model.experts is not None:
        count = sum(count for count, _ in model.blocks(MoE))
        held = model.experts.experts * model.experts.expert_weights(model.hidden)
        form = model.experts.form or model.weight_dtype
        each = bytes_per_weight(form, "experts") if form in FILES else BYTES_PER_ELEMENT[form]
        bytes_a_layer = each * held
        if (moved := int(np.ceil(beyond / bytes_a_layer))) <= count:
            read = moved * bytes_a_layer * model.experts.topk / model.experts.experts
            flag = f"--n-cpu-moe {moved} (experts of {moved} of {count} layers)"
    if not flag:
        kept = int(layers * (1.0 - beyond / model.layers_weight_bytes))
        flag = f"-ngl {kept} (of {layers} layers)"
    return (
        f"{flag} leaves {beyond / GIGA:.1f} GB with the host, for which a plain token waits "
        f"{KILO * read / _HOST_BYTES_PER_S:.0f} ms or more (two channels of DDR5); speedups are not priced "
        f"there, {smaller} for one"
    )


def fitted_kernels(of: Scenario) -> Iterator[str]:
    """What fitted times rest on beside kernels of this GPU, format and spread."""
    if of.latency.name == "calibrated":
        yield from (line for rule in RULES_OF_KERNELS for line in rule(of))


def trees_without_attention(of: Scenario) -> Iterator[str]:
    """That trees were asked for where the engine verifies chains only."""
    if of.runtime.chain_only and of.has_trees:
        yield (
            f"{of.runtime.name} has no tree attention: trees are priced as if it had; --chain-only "
            "leaves them out"
        )


def borrowed_kernels(of: Scenario) -> Iterator[str]:
    """Whose kernels stand in for this GPU's own, and their share of a plain step."""
    if not of.kernel_fits.lenders:
        return
    slower = max(fit.slower for fit in of.kernel_fits.by_key.values())
    times = "" if slower == 1.0 else f", taken {slower:g} times as long as served steps there ask"
    lent = borrowed_shares(of)
    what = " and ".join(lent) if lent else "what a plain step does not call"
    share = sum(lent.values())
    percent = "under 1" if share < _LEAST_SHARE else f"{100.0 * share:.0f}"
    part = f" ({percent} % of a plain step)" if lent else ""
    yield (
        f"kernels of {of.gpu.name} are borrowed from {', '.join(of.kernel_fits.lenders)}: {what}{part}, "
        f"with wider bands{times}"
    )


def slow_format(of: Scenario) -> Iterator[str]:
    """That linear layers take longer in their narrow format than in 16 bits."""
    if slow := slower_than_halves(of):
        yield (
            f"linear layers in {slow[0]} take {slow[2]:.2f} times as long as in bf16 on {of.gpu.name} at "
            f"{slow[1]} rows: inputs are quantised first, and kernels with scales reach less of the peak"
        )


def experts_in_another_format(of: Scenario) -> Iterator[str]:
    """That kernels of another format time the experts."""
    if other := other_form(of):
        yield (
            f"nobody measured experts in {other[0]} on {of.gpu.name}: times are of {other[1]} kernels "
            "that read as many bytes, with wider bands"
        )


def unpacked_weights(of: Scenario) -> Iterator[str]:
    """That the card lacks the arithmetic of the checkpoint's format."""
    if of.unpacked_forms:
        yield (
            f"{of.gpu.name} has no {' or '.join(of.unpacked_forms)} arithmetic: such weights are "
            "unpacked to 16 bits, as vLLM does (Marlin)"
        )


def unfitted_kernels(of: Scenario) -> Iterator[str]:
    """Kinds of kernels that nobody fitted on any card."""
    launches = () if of.scope == "block" else of.kernel_fits.plain_launches
    unfitted = {
        KIND_OF[launch.operator.kind].title: None
        for launch in launches
        if launch.composed and known_time(of.latency, launch.operator) is None
    }
    if unfitted:
        yield (
            f"{' and '.join(unfitted)} of {of.model.name}: no kernel is fitted; times follow from "
            "bytes and FLOPs, with wide bands"
        )


def verification_by_other_kernels(of: Scenario) -> Iterator[str]:
    """That sparse or latent attention was measured with other numbers of queries than verification has."""
    if of.scope != "model":
        return
    if "sparse" in {place.partition(".")[0] for place in of.kernel_fits.by_key}:
        yield (
            f"sparse attention of {of.model.name} takes fitted modules: those of several queries a "
            "request are of prompts or extrapolated from one, with wider bands"
        )
    elif of.model.blocks(Latent):
        yield (
            f"latent attention of {of.model.name} was fitted at one query: its verification is "
            "extrapolated, 10 to 20 % from public rows in the mean, with wider bands"
        )


def unpacking(of: Scenario) -> Iterator[str]:
    """What is stored narrower than its kernel was measured with."""
    if unpacked := " and ".join(of.kernel_fits.unpacks):
        yield (
            f"nobody measured the unpacking of {unpacked} on {of.gpu.name}: times "
            "are of kernels without it that read as many bytes, with wider bands"
        )


def collectives_of_more_cards(of: Scenario) -> Iterator[str]:
    """That collectives were measured on two cards only."""
    places = [
        key.removeprefix("collective.").partition(":")
        for key in of.kernel_fits.by_key
        if key.startswith("collective.")
    ]
    exchange = [of.gpu.kernels[name].collective[key] for name, _, key in places]
    if of.parallel.tp > FEWEST_RANKS and not all(kernel.knows_ranks for kernel in exchange):
        yield (
            f"collectives on {of.gpu.name} were measured on {FEWEST_RANKS:g} cards only; {of.parallel.tp} is "
            "an extrapolation, with wider bands"
        )


def spread_experts(of: Scenario) -> Iterator[str]:
    """That kernels of experts were fitted without spreading them."""
    if of.parallel.ep > 1:
        yield (
            f"experts spread over GPUs (ep {of.parallel.ep}) are priced by kernels that were fitted "
            "without, with wider bands"
        )


Rule = Callable[[Scenario], Iterator[str]]
RULES_OF_KERNELS: tuple[Rule, ...] = (
    borrowed_kernels,
    slow_format,
    experts_in_another_format,
    unpacked_weights,
    unfitted_kernels,
    verification_by_other_kernels,
    unpacking,
    collectives_of_more_cards,
    spread_experts,
)
GRAVE: tuple[Rule, ...] = (
    whose_acceptance,
    typed_acceptance,
    local_kernels,
    unmeasured_engine,
)
"""Rules of what an answer stands or falls with."""
RULES: tuple[Rule, ...] = (
    *GRAVE,
    guessed_acceptance,
    acceptance_of_outputs,
    requests_beyond_acceptance,
    requests_beyond_positions,
    notes_of_the_model,
    states_in_the_engine,
    version_of_the_engine,
    engine_on_other_gpus,
    slow_link,
    model_too_large,
    fitted_kernels,
    trees_without_attention,
)
"""In the order in which an answer lists them."""


def beyond_known(of: Scenario, tokens: float) -> list[str]:
    """That contexts are longer than the model was made for, or than its acceptance was measured at.

    Of traffic both are among the scenario's doubts.
    """
    lines = [] if of.traffic is not None else list(_beyond_acceptance(of, tokens))
    if _exceeds(of, tokens) and not any(requests_beyond_positions(of)):
        lines.append(
            f"length {tokens:.10g} is beyond the {of.model.max_seq_len} positions of {of.model.name}"
        )
    return lines


def first_token_doubts(of: Scenario) -> list[str]:
    """What is known of times to the first token beside what is predicted."""
    library = of.runtime.library
    if of.runtime.engine is None or (library == "vllm" and not of.parallel.dp_attention):
        return []
    if of.parallel.dp_attention:
        return [
            "times to the first token leave out how long prompts wait for each other under data-parallel "
            "attention: measured ones of DeepSeek-R1 (TensorRT-LLM, 64 to 256 requests) were 7 to 30 times "
            "as long"
        ]
    return [
        "times to the first token have the server of vLLM 0.15: measured ones of DeepSeek-R1 were up to "
        f"twice as long in SGLang and 1.3 to 4 times in TensorRT-LLM ({of.runtime.name})"
    ]


def _exceeds(of: Scenario, tokens: float) -> bool:
    """Whether the model has fewer positions."""
    return tokens > of.model.max_seq_len


def _beyond_acceptance(of: Scenario, tokens: float) -> Iterator[str]:
    """That contexts are longer than those that the acceptance was measured at."""
    longest = of.profile.longest_context
    if longest is not None and tokens > longest:
        yield (
            f"acceptance {of.profile.name} was measured to contexts of {longest} tokens, asked are "
            f"{tokens:.10g}: beyond what it was trained on a drafter accepts less (EAGLE-3 of Llama-3.1-8B: "
            "2.9 tokens a step at 0.8k, 1.1 at 7.4k, vllm #48894)"
        )
