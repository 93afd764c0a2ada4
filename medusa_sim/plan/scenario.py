"""The one place where a set-up is put together: GPU, model, runtime, drafter, acceptance, latency.

Names, files or objects go in; what comes out is loaded, checked and the same for the command line, the app
and Python.

What it rests on that was not measured for it is said in a sentence each.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import cached_property
from typing import Any

import numpy as np

from medusa_sim.arrays import IntArray, among
from medusa_sim.errors import CoverageError, check_kind
from medusa_sim.latency.base import Source, known_time
from medusa_sim.latency.by_name import cached
from medusa_sim.latency.choice import NAME_MARK
from medusa_sim.operators.kinds import KIND_OF
from medusa_sim.operators.operator import Gemm
from medusa_sim.plan import CANDIDATES_MAX, TYPICAL
from medusa_sim.plan.acceptance import doubtful_shares
from medusa_sim.plan.arguments import ARGUMENTS, WHOLE, Arguments, check, takes
from medusa_sim.plan.draft_options import DraftOption, draft_options
from medusa_sim.plan.resolved import Resolved, plain_launches
from medusa_sim.specs.engine_facts import state_notes
from medusa_sim.specs.fitted import FEWEST_RANKS
from medusa_sim.specs.mixers import Latent
from medusa_sim.specs.model import RUN_IN_FP16, UNCHECKED
from medusa_sim.specs.runtime import Runtime
from medusa_sim.step.drafter.base import FreeDrafter
from medusa_sim.step.kernels import priced
from medusa_sim.step.memory import fewest_gpus, step_memory_bytes
from medusa_sim.step.network import model_launches
from medusa_sim.step.step import Setting
from medusa_sim.step.workload import decode
from medusa_sim.units import HALVES, SIXTEEN, Format

_ONE_NODE = 8
"""GPUs of most servers."""
_LEAST_SHARE = 0.01
"""Of a step; below it a share is not told."""


def doubts(of: Resolved) -> tuple[str, ...]:
    """Every reservation about the answers of a scenario."""
    lines = _of_acceptance(of)
    traffic = of.traffic
    if traffic is not None and _exceeds(of, traffic.prompt_tokens + traffic.output_tokens):
        lines.append(
            f"requests of {traffic.prompt_tokens:.10g} + {traffic.output_tokens:.10g} tokens go beyond "
            f"the {of.model.max_seq_len} positions of {of.model.name}"
        )
    if of.arguments.dtype is None:
        lines += [f"{of.model.name}: {note}" for note in of.model.notes if note.endswith(RUN_IN_FP16)]
    lines += [f"{of.model.name}: {note}" for note in of.model.notes if note.endswith(UNCHECKED)]
    if of.scope == "model" and of.runtime.engine is not None:
        lines += state_notes(of.runtime.library, of.model, of.drafting.method)
    lines += _of_engine(of)
    if of.gpu.exceeds_link(np.asarray(float(of.parallel.tp))):
        lines.append(
            f"the link of {of.gpu.name} joins {of.gpu.linked_gpus} cards: {of.parallel.tp} share a slower one"
        )
    if of.parallel.tp > _ONE_NODE:
        lines.append(f"{of.parallel}: priced as if all were in one node; links between nodes are slower")
    if of.scope == "model" and (reason := too_large(of)):
        lines.append(reason)
    lines += _of_kernels(of)
    if of.runtime.chain_only and of.has_trees:
        lines.append(
            f"{of.runtime.name} has no tree attention: trees are priced as if it had; --chain-only "
            "leaves them out"
        )
    return tuple(lines)


def _of_acceptance(of: Resolved) -> list[str]:
    """Whose the acceptance is, what was typed, what is guessed, and where it was not measured."""
    lines = []
    if of.profile.name.startswith(TYPICAL):
        lines.append(
            f"acceptance {of.profile.name} is an assumption ({of.profile.title}): nobody measured "
            f"{of.drafting.method} on {of.model.name}; give your own with --acceptance"
        )
    elif of.borrows_acceptance:
        lines.append(
            f"acceptance {of.profile.name} was measured on another model than {of.model.name}; give "
            "your own with --acceptance"
        )
    if line := doubtful_shares(of.arguments.acceptance):
        lines.append(line)
    lines += _of_guess(of)
    if of.profile.output_share != 1.0:
        lines.append(
            f"acceptance {of.profile.name}: every rate is {of.profile.output_share:.2f} of the published one "
            f"in outputs of {of.profile.output_tokens:g} tokens, as served to random prompts; real ones "
            "may reach it: give your own with --acceptance"
        )
    if of.traffic is not None:
        lines += _beyond_acceptance(of, of.traffic.prompt_tokens + of.traffic.output_tokens)
    return lines


def _of_guess(of: Resolved) -> list[str]:
    """From which draft on the acceptance is a guess."""
    first = of.guessed_from
    if first is None:
        return []
    known = "1 draft" if first == 2 else f"{first - 1} drafts"
    return [
        f"acceptance {of.profile.name} describes {known}: from draft {first} on its rates are a guess, "
        "falling as those of deeper chains do, with bands that open; measure longer drafts (medusa-sim "
        "acceptance from-engine)"
    ]


def beyond_known(of: Resolved, tokens: float) -> list[str]:
    """That contexts are longer than the model was made for, or than its acceptance was measured at.

    Of traffic both are among the scenario's warnings.
    """
    lines, traffic = [] if of.traffic is not None else _beyond_acceptance(of, tokens), of.traffic
    is_said = traffic is not None and _exceeds(of, traffic.prompt_tokens + traffic.output_tokens)
    if _exceeds(of, tokens) and not is_said:
        lines.append(
            f"length {tokens:.10g} is beyond the {of.model.max_seq_len} positions of {of.model.name}"
        )
    return lines


def _exceeds(of: Resolved, tokens: float) -> bool:
    """Whether the model has no positions for so many tokens."""
    return tokens > of.model.max_seq_len


def first_token_doubts(of: Resolved) -> list[str]:
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


def _beyond_acceptance(of: Resolved, tokens: float) -> list[str]:
    longest = of.profile.longest_context
    if longest is None or tokens <= longest:
        return []
    return [
        f"acceptance {of.profile.name} was measured to contexts of {longest} tokens, asked are "
        f"{tokens:.10g}: a drafter accepts less beyond what it was trained on (EAGLE-3 of Llama-3.1-8B 2.9 "
        "tokens a step at 0.8k, 1.1 at 7.4k, vllm #48894); measure yours (medusa-sim acceptance from-engine)"
    ]


def _of_engine(of: Resolved) -> list[str]:
    """What was not measured of the engine itself, while it drafts and on as many GPUs."""
    lines, engine, runtime = [], of.runtime.engine, of.runtime
    if runtime.asked and runtime.versions is not None:
        span = " to ".join(dict.fromkeys(runtime.versions))
        nearest = "" if runtime.holds_asked else ", the nearest that is known, with wider bands"
        lines.append(f"{runtime.asked} has the terms of {runtime.name} ({span}){nearest}")
    only = () if engine is None else engine.measured_drafters
    if not runtime.is_measured:
        lines.append(
            f"{runtime.name}: nobody measured this engine; its own terms are guesses or another's, "
            "with wide bands"
        )
    elif not runtime.is_drafting_measured or (only and of.drafting.method not in only):
        but = f" but with {', '.join(only)}" if only else ""
        lines.append(
            f"{runtime.name}: nobody measured drafting in this engine{but}; its terms are guesses or "
            "another's, with wide bands"
        )
    if engine is not None and of.scope == "model" and (terms := taken_over(of)):
        every = sum(term.value != 0.0 for term in engine.terms.values())
        several = f"; on several: {engine.several_gpus}" if engine.several_gpus else ""
        lines.append(
            f"{len(terms)} of the {every} terms of {runtime.name} were not measured on {of.parallel} and are "
            f"taken over, with wider bands{several}"
        )
    return lines


def taken_over(of: Resolved) -> list[str]:
    """Terms of the engine that count here and were measured on other numbers of GPUs alone."""
    engine = of.runtime.at(of.case).engine
    terms = {} if engine is None else engine.terms
    return [name for name, term in terms.items() if "gpus" in term.outside and term.value]


def _of_kernels(of: Resolved) -> list[str]:
    """What times rest on beside kernels that were fitted to this GPU, format and spread."""
    if of.latency.name != "calibrated":
        return []
    lines = []
    if of.kernel_lenders:
        slower = max(fit.slower for fit in of.fits.values())
        times = "" if slower == 1.0 else f", taken {slower:g} times as long as served steps there ask"
        lent = borrowed(of)
        what = " and ".join(lent) if lent else "what a plain step does not call"
        share = sum(lent.values())
        percent = "under 1" if share < _LEAST_SHARE else f"{100.0 * share:.0f}"
        part = f" ({percent} % of a plain step)" if lent else ""
        lines.append(
            f"kernels of {of.gpu.name} are borrowed from {', '.join(of.kernel_lenders)}: {what}{part}, "
            f"with wider bands{times}"
        )
    if slow := slower_than_halves(of):
        lines.append(
            f"linear layers in {slow[0]} take {slow[2]:.2f} times as long as in bf16 on {of.gpu.name} at "
            f"{slow[1]} rows: inputs are quantised first, and kernels with scales reach less of the peak"
        )
    if other := other_form(of):
        lines.append(
            f"nobody measured experts in {other[0]} on {of.gpu.name}: times are of {other[1]} kernels "
            "that read as many bytes, with wider bands"
        )
    if of.unpacked_forms:
        lines.append(
            f"{of.gpu.name} has no {' or '.join(of.unpacked_forms)} arithmetic: such weights are "
            "unpacked to 16 bits, as vLLM does (Marlin)"
        )
    unfitted = {
        KIND_OF[launch.operator.kind].title: None
        for launch in (() if of.scope == "block" else plain_launches(of.shard, of.runtime))
        if launch.composed and known_time(of.latency, launch.operator) is None
    }
    if unfitted:
        lines.append(
            f"{' and '.join(unfitted)} of {of.model.name}: no kernel is fitted; times follow from "
            "bytes and FLOPs, with wide bands"
        )
    if of.scope == "model" and "sparse" in {place.partition(".")[0] for place in of.fits}:
        lines.append(
            f"sparse attention of {of.model.name} takes fitted modules: those of several queries a "
            "request are of prompts or extrapolated from one, with wider bands"
        )
    elif of.model.blocks(Latent) and of.scope == "model":
        lines.append(
            f"latent attention of {of.model.name} was fitted at one query: its verification is "
            "extrapolated, 10 to 20 % from public rows in the mean, with wider bands"
        )
    if of.unpacks:
        lines.append(
            f"nobody measured the unpacking of {' and '.join(of.unpacks)} on {of.gpu.name}: times "
            "are of kernels without it that read as many bytes, with wider bands"
        )
    places = [
        key.removeprefix("collective.").partition(":") for key in of.fits if key.startswith("collective.")
    ]
    exchange = [of.gpu.kernels[name].collective[key] for name, _, key in places]
    if of.parallel.tp > FEWEST_RANKS and not all(kernel.knows_ranks for kernel in exchange):
        lines.append(
            f"collectives on {of.gpu.name} were measured on {FEWEST_RANKS:g} cards only; {of.parallel.tp} is "
            "an extrapolation, with wider bands"
        )
    if of.parallel.ep > 1:
        lines.append(
            f"experts spread over GPUs (ep {of.parallel.ep}) are priced by kernels that were fitted "
            "without, with wider bands"
        )
    return lines


def borrowed(of: Resolved) -> dict[str, float]:
    """Kinds of kernels that stand in from other devices or libraries, and their shares of a plain step.

    Of the kernels of one request at the scenario's own length.
    """
    times_us: dict[str, float] = {}
    whole_us = 0.0
    for launch in priced(of.latency, model_launches(of.shard, decode(1, of.length), of.runtime)):
        time = of.latency.time(launch.operator)
        own_us = launch.count * launch.share * float(np.max(time.time_us))
        whole_us += own_us
        if np.max(time.source) == Source.BORROWED:
            title = KIND_OF[launch.operator.kind].title
            times_us[title] = times_us.get(title, 0.0) + own_us
    return {title: own_us / whole_us for title, own_us in times_us.items()}


class Scenario(Resolved):
    """What is run where, before batch, length and count are chosen. Never changed once made.

    Its arguments are those of `plan.arguments.Arguments`, all by name.

    Raises SpecError, DataError or UsageError naming what is unknown or does not fit together.
    """

    @takes(Arguments)
    def __init__(self, **given: Any) -> None:
        check(given, ARGUMENTS, "scenario argument")
        super().__init__(Arguments(**given))
        self._options: dict[int, tuple[DraftOption, ...]] = {}

    @property
    def changed(self) -> dict[str, Any]:
        """The arguments that differ from the defaults; GPU, model and drafter always."""
        return self.arguments.changed

    def __repr__(self) -> str:
        """The arguments that are not the defaults."""
        text = ", ".join(f"{name}={value!r}" for name, value in self.changed.items())
        return f"Scenario({text})"

    def but(self, **changes: Any) -> Scenario:
        """The same scenario with some arguments changed. Raises UsageError for an unknown argument."""
        check(changes, ARGUMENTS, "scenario argument")
        return type(self)(**{**self.arguments.values, **changes})

    @property
    def warnings(self) -> tuple[str, ...]:
        """What the scenario rests on that was not measured for it, a sentence each."""
        return doubts(self)

    def warnings_to(self, candidates: int) -> tuple[str, ...]:
        """`warnings` of rows of so many candidates at most: without a guess that none of them rests on."""
        unused = [] if self.guessed_from is None or candidates > self.guessed_from else _of_guess(self)
        return tuple(line for line in self.warnings if line not in unused)

    @cached_property
    def setting(self) -> Setting:
        """What every step shares, a memory of kernel times too; plain decoding until a drafter is put in."""
        return Setting(
            latency=cached(self.latency),
            model=self.model,
            runtime=self._launched,
            scope=self.scope,
            drafter=FreeDrafter(),
            method=self.drafting.method,
            depth=self.depth if self.guessed_from is None else self.guessed_from - 1,
            deepest=self.depth,
            match_rate=self.match_rate,
            parallel=self.parallel,
            overlap=self.overlap,
        )

    @property
    def _launched(self) -> Runtime:
        """The runtime with its engine's terms as they are, or what stands for them, in this set-up."""
        return self.runtime if self.runtime.engine is None else self.runtime.at(self.case)

    def options(self, candidates_max: int = CANDIDATES_MAX) -> tuple[DraftOption, ...]:
        """Every way of drafting that the profile describes, up to a count.

        Raises UsageError where the profile cannot describe the drafter.
        """
        check_kind("candidates_max", candidates_max, WHOLE.wanted, WHOLE.allowed)
        if candidates_max not in self._options:
            self._options[candidates_max] = draft_options(
                self.drafting, self.profile, candidates_max=candidates_max, chain_only=self.chain_only
            )
        return self._options[candidates_max]

    def covered(self, candidates: Sequence[int] | IntArray) -> IntArray:
        """Those of the counts that some way of drafting has, in their order; 1 is plain decoding.

        Raises CoverageError where counts above 1 were asked for and none is covered.
        """
        asked = np.asarray(candidates, dtype=np.int64)
        largest = int(max(asked.max(initial=2), 2))
        known = np.concatenate([[1], *(option.candidates for option in self.options(largest))])
        kept: IntArray = asked[among(asked, known)]
        if (asked > 1).any() and not (kept > 1).any():
            largest = max(int(option.candidates[-1]) for option in self.options())
            raise CoverageError(
                f"acceptance {self.profile.name} with drafter {self.drafting.method} covers candidates "
                f"2..{largest}, given {int(asked[asked > 1].min())} and more: lower --candidates; "
                f"{self.where_trees_run or 'or choose a profile measured further out'}"
            )
        return kept


_ROWS = (1, 64, 256)
"""Rows of linear layers that are priced in both formats."""


def slower_than_halves(of: Resolved) -> tuple[str, int, float] | None:
    """Format of linear layers, rows, and how many times as long as in 16 bits they take, where that is most.

    Each is preceded by a pass that quantises its inputs, which small layers do not earn back. None where they
    are faster at all of the rows.
    """
    made = [
        (launch.count, launch.operator)
        for launch in plain_launches(of.shard, of.runtime)
        if isinstance(launch.operator, Gemm) and launch.operator.dtype not in HALVES
    ]
    if not made:
        return None
    taken_us = np.zeros((2, len(_ROWS)))
    for count, layer in made:
        quantised = replace(layer, m=np.asarray(_ROWS))
        halves = replace(quantised, dtype=SIXTEEN, weight_dtype=None)
        for index, operator in enumerate((quantised, halves)):
            time = known_time(of.latency, operator)
            if time is None:
                return None
            taken_us[index] += count * time.time_us
    times = taken_us[0] / taken_us[1]
    worst = int(np.argmax(times))
    return (made[0][1].form, _ROWS[worst], float(times[worst])) if times[worst] > 1.0 else None


def other_form(of: Resolved) -> tuple[str, str] | None:
    """Format of the model's experts and that of the kernel which serves them, where they are not one."""
    model, served = of.model, next((key.partition(":")[2] for key in of.fits if key.startswith("moe.")), None)
    if served is None or model.experts is None:
        return None
    stored = model.in_form(model.experts.form)
    form = Format(stored.dtype, stored.weight_dtype).key
    held = served.partition(NAME_MARK)[0]
    return None if form == held or {form, held} <= set(HALVES) else (form, held)


def too_large(of: Resolved) -> str:
    """What to do where not even one sequence fits on its GPUs; empty where one does."""
    if float(step_memory_bytes(of.shard, None, 1, 1, 1)) <= of.usable_memory_bytes:
        return ""
    enough = fewest_gpus(of.model, of.gpu, of.shard.parallel, of.runtime.engine)
    hint = f"--tp {enough} would" if enough else "no number of GPUs up to 128 would"
    model = f"{of.model.name} ({of.model.weight_dtype})"
    return f"{model} does not fit on {of.shard.parallel} of {of.gpu.name}: {hint}"
