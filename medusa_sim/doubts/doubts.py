"""What the answers about a scenario rest on that was not measured for it: rules in order, a sentence each."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np

from medusa_sim.doubts.stand_ins import borrowed_shares, other_form, slower_than_halves, taken_over
from medusa_sim.file_types import FILES, bytes_per_weight
from medusa_sim.latency.base import known_time
from medusa_sim.latency.local import LocalLatency
from medusa_sim.operators.kinds import KIND_OF
from medusa_sim.scenario.acceptance import doubtful_shares, one_rate
from medusa_sim.scenario.defaults import TYPICAL, request_length
from medusa_sim.scenario.scenario import Scenario
from medusa_sim.specs.engine_facts import state_notes
from medusa_sim.specs.feed_forwards import MoE
from medusa_sim.specs.fitted import FEWEST_RANKS
from medusa_sim.specs.mixers import Latent
from medusa_sim.specs.model import RUN_IN_FP16, UNCHECKED
from medusa_sim.step.memory import fewest_gpus, step_memory_bytes
from medusa_sim.units import BYTES_PER_ELEMENT, GIGA, KILO, SCALE_BLOCK, format_text

_ONE_NODE = 8
"""GPUs of most servers."""
_KEEP_SCALE_BLOCKS = ("vllm", "sglang")
"""Engines that load no part of a block of scales."""
_LEAST_SHARE = 0.01
"""Of a step; a smaller share is not given as a number."""


def doubts(scenario: Scenario, candidates: int | None = None) -> tuple[str, ...]:
    """Every reservation about the answers of a scenario.

    candidates: the largest count of these answers, where it is known: a guess that none of them rests on is
    left out, and of plain decoding (1) whatever is of acceptance.
    """
    unused: tuple[Rule, ...] = ()
    if candidates == 1:
        unused = OF_ACCEPTANCE
    elif candidates is not None and scenario.guessed_from is not None and candidates <= scenario.guessed_from:
        unused = (guessed_acceptance,)
    return tuple(line for rule in RULES if rule not in unused for line in rule(scenario))


def grave_doubts(scenario: Scenario) -> tuple[str, ...]:
    """Those of `doubts` that an answer stands or falls with: acceptance, engine or device never measured."""
    return tuple(line for rule in GRAVE for line in rule(scenario))


def whose_acceptance(scenario: Scenario) -> Iterator[str]:
    """That the acceptance is an assumption, or another model's."""
    if scenario.profile.name.startswith(TYPICAL):
        yield (
            f"acceptance {scenario.profile.name} is an assumption ({scenario.profile.title}): nobody "
            f"measured {scenario.drafting.method} on {scenario.model.name}; give your own with --acceptance"
        )
    elif scenario.borrows_acceptance:
        yield (
            f"acceptance {scenario.profile.name} was measured on another model than {scenario.model.name}; "
            "give your own with --acceptance"
        )


def typed_acceptance(scenario: Scenario) -> Iterator[str]:
    """That numbers, as they were typed, may be of another kind than they are read as."""
    given = scenario.arguments.acceptance
    if line := doubtful_shares(given):
        yield line
    if scenario.runtime.local and scenario.depth > 1 and (rate := one_rate(given)) is not None:
        yield (
            f"acceptance {rate:g} is the chance of each draft behind an accepted one; llama.cpp logs the "
            f"share of all drafts: give that with the drafts of a round, {100.0 * rate:g}%@3"
        )


def guessed_acceptance(scenario: Scenario) -> Iterator[str]:
    """From which draft on the acceptance is a guess."""
    first = scenario.guessed_from
    if first is not None:
        known = "1 draft" if first == 2 else f"{first - 1} drafts"
        yield (
            f"acceptance {scenario.profile.name} was measured for {known}: from draft {first} on its rates "
            "are a guess, with bands that widen; measure longer drafts with medusa-sim acceptance "
            "from-engine"
        )


def acceptance_of_outputs(scenario: Scenario) -> Iterator[str]:
    """That the acceptance was scaled to outputs of random prompts."""
    if scenario.profile.output_share != 1.0:
        yield (
            f"acceptance {scenario.profile.name}: rates are {scenario.profile.output_share:.2f} of the "
            f"published ones, as measured in outputs of {scenario.profile.output_tokens:g} tokens to random "
            "prompts; real prompts may do better: give your own with --acceptance"
        )


def requests_beyond_acceptance(scenario: Scenario) -> Iterator[str]:
    """That requests grow longer than the contexts that the acceptance was measured at."""
    if scenario.traffic is not None:
        yield from _beyond_acceptance(
            scenario, request_length(scenario.traffic.prompt_tokens, scenario.traffic.output_tokens)
        )


def requests_beyond_positions(scenario: Scenario) -> Iterator[str]:
    """That requests grow longer than the model has positions."""
    traffic = scenario.traffic
    if traffic is not None and _exceeds(scenario, traffic.prompt_tokens + traffic.output_tokens):
        yield (
            f"requests of {traffic.prompt_tokens:.10g} + {traffic.output_tokens:.10g} tokens go beyond "
            f"the {scenario.model.max_seq_len} positions of {scenario.model.name}"
        )


def notes_of_the_model(scenario: Scenario) -> Iterator[str]:
    """Notes of the model's file: run in another format than published, or sizes that nobody checked."""
    notes = scenario.model.notes
    if scenario.arguments.dtype is None:
        yield from (f"{scenario.model.name}: {note}" for note in notes if note.endswith(RUN_IN_FP16))
    yield from (f"{scenario.model.name}: {note}" for note in notes if note.endswith(UNCHECKED))


def states_in_the_engine(scenario: Scenario) -> Iterator[str]:
    """What the engine does with recurrent states while it drafts."""
    if scenario.scope == "model" and scenario.runtime.engine is not None:
        yield from state_notes(scenario.runtime.library, scenario.model, scenario.drafting.method)


def version_of_the_engine(scenario: Scenario) -> Iterator[str]:
    """That another version stands for the one that was asked for."""
    runtime = scenario.runtime
    if runtime.asked and runtime.versions is not None:
        span = " to ".join(dict.fromkeys(runtime.versions))
        nearest = "" if runtime.holds_asked else ", the nearest that is known, with wider bands"
        yield f"{runtime.asked} has the terms of {runtime.name} ({span}){nearest}"


def local_kernels(scenario: Scenario) -> Iterator[str]:
    """That nobody measured the kernels of a local engine on this class of devices."""
    if isinstance(scenario.latency, LocalLatency) and not scenario.latency.law.measured:
        yield (
            f"{scenario.runtime.name} on {scenario.gpu.name}: nobody measured kernels on such a device "
            f"({scenario.latency.law.source}); bands are wide"
        )


def unmeasured_engine(scenario: Scenario) -> Iterator[str]:
    """That nobody measured the engine, or not with this drafter."""
    engine, runtime = scenario.runtime.engine, scenario.runtime
    only = () if engine is None else engine.measured_drafters
    if not runtime.is_measured:
        yield (
            f"{runtime.name}: nobody measured this engine; its own terms are guesses or another's, "
            "with wide bands"
        )
    elif not runtime.is_drafting_measured or (only and scenario.drafting.method not in only):
        but = f" except with {', '.join(only)}" if only else ""
        yield (
            f"{runtime.name}: nobody measured drafting in this engine{but}; its terms are guesses or "
            "another's, with wide bands"
        )


def engine_on_other_gpus(scenario: Scenario) -> Iterator[str]:
    """That terms of the engine were measured on another number of GPUs."""
    engine = scenario.runtime.engine
    if engine is not None and scenario.scope == "model" and (terms := taken_over(scenario)):
        every = sum(term.value != 0.0 for term in engine.terms.values())
        several = f"; on several: {engine.several_gpus}" if engine.several_gpus else ""
        was, carried = ("was", "is") if len(terms) == 1 else ("were", "are")
        yield (
            f"{len(terms)} of the {every} terms of {scenario.runtime.name} {was} not measured on "
            f"{scenario.parallel} and {carried} carried over, with wider bands{several}"
        )


def slow_link(scenario: Scenario) -> Iterator[str]:
    """That more cards share the model than the fast link joins, or than one node has."""
    tp = scenario.parallel.tp
    if scenario.gpu.exceeds_link(np.asarray(float(tp))):
        yield (
            f"the link of {scenario.gpu.name} joins {scenario.gpu.linked_gpus} cards: {tp} share a slower one"
        )
    if tp > _ONE_NODE:
        yield f"{scenario.parallel}: priced as if all were in one node; links between nodes are slower"


def cut_scale_blocks(scenario: Scenario) -> Iterator[str]:
    """That engines do not start where GPUs would share a block of experts' scales (vLLM #17569, #25292)."""
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


def model_too_large(scenario: Scenario) -> Iterator[str]:
    """That not even one sequence fits on the GPUs, and how many would hold it."""
    if (
        scenario.scope != "model"
        or float(step_memory_bytes(scenario.shard, None, 1, 1, 1)) <= scenario.usable_memory_bytes
    ):
        return
    model = f"{scenario.model.name} ({format_text(scenario.model.weight_dtype)})"
    if scenario.runtime.local:
        yield f"{model} does not fit on {scenario.gpu.name}: {_with_the_host(scenario)}"
        return
    enough = fewest_gpus(scenario.model, scenario.gpu, scenario.shard.parallel, scenario.runtime.engine)
    hint = f"--tp {enough} would" if enough else "no number of GPUs up to 128 would"
    yield f"{model} does not fit on {scenario.shard.parallel} of {scenario.gpu.name}: {hint}"


_HOST_BYTES_PER_S = 80e9
"""What two channels of DDR5-6000 read, of the 96 GB/s that they could."""


def _with_the_host(scenario: Scenario) -> str:
    """What fits of a model that is too large: the option that leaves the rest with the host, its price."""
    room, model = scenario.usable_memory_bytes, scenario.shard
    beyond = float(step_memory_bytes(model, None, 1, 1, 1)) - room
    smaller = "choose a smaller file (--weight-dtype)"
    if (
        scenario.runtime.library != "llama.cpp"
        or scenario.gpu.architecture == "cpu"
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


def fitted_kernels(scenario: Scenario) -> Iterator[str]:
    """What fitted times rest on beside kernels of this GPU, format and spread."""
    if scenario.latency.name == "calibrated":
        yield from (line for rule in RULES_OF_KERNELS for line in rule(scenario))


def trees_without_attention(scenario: Scenario) -> Iterator[str]:
    """That trees were asked for where the engine verifies chains only."""
    if scenario.runtime.chain_only and scenario.has_trees:
        yield (
            f"{scenario.runtime.name} has no tree attention: trees are priced as if it had; --chain-only "
            "leaves them out"
        )


def borrowed_kernels(scenario: Scenario) -> Iterator[str]:
    """Whose kernels stand in for this GPU's own, and their share of a plain step."""
    if not scenario.kernel_fits.lenders:
        return
    slower = max(fit.slower for fit in scenario.kernel_fits.by_key.values())
    times = "" if slower == 1.0 else f", with times scaled by {slower:g}, as served steps there suggest"
    lent = borrowed_shares(scenario)
    what = " and ".join(lent) if lent else "what a plain step does not call"
    share = sum(lent.values())
    percent = "under 1" if share < _LEAST_SHARE else f"{100.0 * share:.0f}"
    part = f" ({percent} % of a plain step)" if lent else ""
    yield (
        f"kernels of {scenario.gpu.name} are borrowed from "
        f"{', '.join(map(_lender_text, scenario.kernel_fits.lenders))}: {what}{part}, with wider bands{times}"
    )


def _lender_text(lender: str) -> str:
    """`b200:sglang:fp8_block` -> `b200:sglang (fp8 in blocks)`."""
    card, library, *form = lender.split(":")
    return f"{card}:{library}" + "".join(f" ({format_text(each)})" for each in form)


def slow_format(scenario: Scenario) -> Iterator[str]:
    """That linear layers take longer in their narrow format than in 16 bits."""
    if slow := slower_than_halves(scenario):
        yield (
            f"linear layers in {format_text(slow[0])} take {slow[2]:.2f} times as long as in bf16 on "
            f"{scenario.gpu.name} at {slow[1]} rows: inputs are quantised first, and kernels with scales "
            "reach less of the peak"
        )


def experts_in_another_format(scenario: Scenario) -> Iterator[str]:
    """That kernels of another format time the experts."""
    if other := other_form(scenario):
        yield (
            f"nobody measured experts in {format_text(other[0])} on {scenario.gpu.name}: times are of "
            f"{format_text(other[1])} kernels that read as many bytes, with wider bands"
        )


def unpacked_weights(scenario: Scenario) -> Iterator[str]:
    """That the card lacks the arithmetic of the checkpoint's format."""
    if scenario.unpacked_forms:
        forms = " or ".join(map(format_text, scenario.unpacked_forms))
        yield (
            f"{scenario.gpu.name} has no {forms} arithmetic: such weights are unpacked to 16 bits, as vLLM "
            "does (Marlin)"
        )


def unfitted_kernels(scenario: Scenario) -> Iterator[str]:
    """Kinds of kernels that nobody fitted on any card."""
    launches = () if scenario.scope == "block" else scenario.kernel_fits.plain_launches
    unfitted = {
        KIND_OF[launch.operator.kind].title: None
        for launch in launches
        if launch.composed and known_time(scenario.latency, launch.operator) is None
    }
    if unfitted:
        yield (
            f"{' and '.join(unfitted)} of {scenario.model.name}: no kernel is fitted; times follow from "
            "bytes and FLOPs, with wide bands"
        )


def verification_by_other_kernels(scenario: Scenario) -> Iterator[str]:
    """That sparse or latent attention was measured with other numbers of queries than verification has."""
    if scenario.scope != "model":
        return
    if "sparse" in {place.partition(".")[0] for place in scenario.kernel_fits.by_key}:
        yield (
            f"sparse attention of {scenario.model.name} takes fitted modules: those of several queries a "
            "request are of prompts or extrapolated from one, with wider bands"
        )
    elif scenario.model.blocks(Latent):
        yield (
            f"latent attention of {scenario.model.name} was fitted at one query: its verification is "
            "extrapolated, 10 to 20 % from public rows on average, with wider bands"
        )


def unmeasured_unpacking(scenario: Scenario) -> Iterator[str]:
    """What is stored narrower than its kernel was measured with."""
    if unpacked := " and ".join(scenario.kernel_fits.unpacks):
        yield (
            f"nobody measured the unpacking of {unpacked} on {scenario.gpu.name}: times are of kernels "
            "without it that read as many bytes, with wider bands"
        )


def collectives_of_more_cards(scenario: Scenario) -> Iterator[str]:
    """That collectives were measured on two cards only."""
    places = [
        key.removeprefix("collective.").partition(":")
        for key in scenario.kernel_fits.by_key
        if key.startswith("collective.")
    ]
    exchange = [scenario.gpu.kernels[name].collective[key] for name, _, key in places]
    if scenario.parallel.tp > FEWEST_RANKS and not all(kernel.knows_ranks for kernel in exchange):
        yield (
            f"collectives on {scenario.gpu.name} were measured on {FEWEST_RANKS:g} cards only; "
            f"{scenario.parallel.tp} is an extrapolation, with wider bands"
        )


def spread_experts(scenario: Scenario) -> Iterator[str]:
    """That kernels of experts were fitted without spreading them."""
    if scenario.parallel.ep > 1:
        yield (
            f"experts spread over GPUs (ep {scenario.parallel.ep}) are priced by kernels that were fitted "
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
    unmeasured_unpacking,
    collectives_of_more_cards,
    spread_experts,
)
OF_ACCEPTANCE: tuple[Rule, ...] = (
    whose_acceptance,
    typed_acceptance,
    guessed_acceptance,
    acceptance_of_outputs,
    requests_beyond_acceptance,
)
"""Rules of what drafts are accepted by: nothing that plain decoding rests on."""
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
    cut_scale_blocks,
    model_too_large,
    fitted_kernels,
    trees_without_attention,
)
"""In the order in which an answer lists them."""


def beyond_known(scenario: Scenario, tokens: float) -> list[str]:
    """That contexts are longer than the model was made for, or than its acceptance was measured at.

    Of traffic both are among the scenario's doubts.
    """
    lines = [] if scenario.traffic is not None else list(_beyond_acceptance(scenario, tokens))
    if _exceeds(scenario, tokens) and not any(requests_beyond_positions(scenario)):
        lines.append(
            f"length {tokens:.10g} is beyond the {scenario.model.max_seq_len} positions of "
            f"{scenario.model.name}"
        )
    return lines


def first_token_doubts(scenario: Scenario) -> list[str]:
    """What is known of times to the first token beside what is predicted."""
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


def _exceeds(scenario: Scenario, tokens: float) -> bool:
    """Whether the model has fewer positions."""
    return tokens > scenario.model.max_seq_len


def _beyond_acceptance(scenario: Scenario, tokens: float) -> Iterator[str]:
    """That contexts are longer than those that the acceptance was measured at."""
    longest = scenario.profile.longest_context
    if longest is not None and tokens > longest:
        yield (
            f"acceptance {scenario.profile.name} was measured to contexts of {longest} tokens, not "
            f"{tokens:.10g}: a drafter accepts less beyond what it was trained on (EAGLE-3 of Llama-3.1-8B: "
            "2.9 tokens a step at 0.8k, 1.1 at 7.4k, vllm #48894)"
        )
