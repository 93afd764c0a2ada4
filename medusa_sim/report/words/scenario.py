"""A scenario in words, as every answer has them: workload and set-up on one line, acceptance and kernels."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Literal

import numpy as np

from medusa_sim.acceptance.profile import AcceptanceProfile
from medusa_sim.arrays import IntArray
from medusa_sim.report.screen import Fact
from medusa_sim.report.words.numbers import percent
from medusa_sim.scenario.arguments import Arguments
from medusa_sim.scenario.scenario import Scenario
from medusa_sim.units import format_text

_MOST_NAMED = 4
"""Lengths and batches that are listed; of more, only the first and the last."""


def asked_text(scenario: Scenario, workload: str, *more: str) -> str:
    """The headline of an answer: the workload, then what serves it, then what else was asked."""
    return "; ".join([f"{workload}: {setup_text(scenario)}", *filter(None, more)])


def workload_text(scenario: Scenario, lengths: Sequence[int] | IntArray, requests: str = "") -> str:
    """`512 in, 256 out, 1..64 requests at once`; `1,024 tokens of context, no prompts, 1 request at once`.

    lengths: of the steps that were priced; added to requests where they are not those of the request.
    requests: how many are in flight (`several_text`); empty: left out.
    """
    asked, traffic = [int(length) for length in lengths], scenario.traffic
    context = f"{several_text(asked)} tokens of context"
    if traffic is None:
        parts = [context, "no prompts"]
    else:
        parts = [request_text(traffic.prompt_tokens, traffic.output_tokens)]
        parts += [] if asked == [scenario.length] else [f"at {context}"]
    return ", ".join([*parts, *([at_once(requests)] if requests else [])])


def request_text(prompt_tokens: float, output_tokens: float) -> str:
    """`512 in, 256 out`."""
    prompt, output = (
        f"{round(tokens):,}" if tokens >= 10.0 or tokens == round(tokens) else f"{tokens:.3g}"
        for tokens in (prompt_tokens, output_tokens)
    )
    return f"{prompt} in, {output} out"


def at_once(requests: str) -> str:
    """`1 request at once`, `1..64 requests at once`."""
    return f"{requests} request{'' if requests == '1' else 's'} at once"


def formats_text(asked: Arguments) -> list[str]:
    """`fp8`, `int4 weights`, `fp8 KV`: the formats that were asked for."""
    formats = (("", asked.dtype), ("weights", asked.weight_dtype), ("KV", asked.kv_dtype))
    return [f"{format_text(value)} {what}".strip() for what, value in formats if value]


def several_text(numbers: Sequence[int] | IntArray) -> str:
    """`64`, `1 and 8`, `1..64`."""
    every = [int(number) for number in np.unique(np.asarray(numbers, dtype=np.int64))]
    if len(every) <= _MOST_NAMED:
        *before, last = (f"{number:,}" for number in every)
        return f"{', '.join(before)} and {last}" if before else last
    return f"{every[0]:,}..{every[-1]:,}"


def setup_text(scenario: Scenario) -> str:
    """`llama-3.1-8b bf16 on h100-sxm, vllm-0.33, EAGLE-3 layer`."""
    drafting = drafter_text(scenario) if scenario.scope == "model" else "one block"
    model = f"{scenario.model.name} {scenario.model.numbers} on {scenario.gpus_text}"
    return f"{model}, {scenario.runtime.name}, {drafting}"


def model_name(scenario: Scenario) -> str:
    """The name of its model; of a file the last part of its path."""
    return Path(scenario.model.name).name


def drafter_text(scenario: Scenario) -> str:
    """The drafter in a few words."""
    drafting = scenario.drafting
    parts, title = drafting.parts, drafting.drafter_class.title
    if drafting.drafter_class.unit == "head":
        return f"{parts.heads} {title}"
    if parts.draft is not None:
        launched = f" ({parts.draft_runtime.name})" if parts.draft_runtime is not None else ""
        return f"{title} {parts.draft.name}{launched}"
    return title


def depth_word(scenario: Scenario, *, chains: bool) -> Literal["heads", "drafts"]:
    """Levels of a tree of heads are heads; of chains, as engines count them, drafts."""
    return "heads" if scenario.drafting.drafter_class.unit == "head" and not chains else "drafts"


def acceptance_text(scenario: Scenario, candidates: int | None = None) -> str:
    """`typical-ngram (workload coding)`: the profile, and what a reader of its name cannot see.

    candidates: the largest count in the answer, if known; a guess beyond it is left out.
    """
    profile, guessed = scenario.profile, scenario.guessed_from
    if guessed is not None and candidates is not None and candidates <= guessed:
        guessed = None
    marks = [
        # counted against a text and not the model's output
        *(["teacher-forced"] if profile.agreement == "teacher-forced" else []),
        *([] if guessed is None else [f"guessed from draft {guessed} on"]),
        *([] if profile.workload is None else [f"workload {profile.workload}"]),
    ]
    return profile.name + (f" ({', '.join(marks)})" if marks else "")


def acceptance_facts(scenario: Scenario, candidates: int | None = None) -> Iterator[Fact]:
    """The profile of acceptance, and what it counts where that is not what a running system accepts."""
    yield Fact("Acceptance", acceptance_text(scenario, candidates))
    for line in acceptance_basis(scenario.profile):
        yield Fact("Acceptance", line, detail=True)


def acceptance_basis(profile: AcceptanceProfile) -> list[str]:
    """Says how a profile counts where a running system would accept differently."""
    if profile.agreement != "teacher-forced":
        return []
    return ["agreement with a text, not what a running system accepts: measure it on the model's own output"]


def kernel_facts(scenario: Scenario) -> Iterator[Fact]:
    """Which kernels were timed and how, and why there are no trees."""
    latency = scenario.latency.name
    parts = [f"{scenario.kernels} kernels, {latency}" if latency == "calibrated" else latency]
    if scenario.backend is not None:
        parts.append(f"verification by {scenario.backend.name}")
    if scenario.chain_only:
        runtime = scenario.runtime
        parts.append(
            f"{runtime.name} has no tree attention: chains only" if runtime.chain_only else "chains only"
        )
    yield Fact("Kernels", "; ".join(parts), detail=True)
    if errors := heldout_text(scenario):
        yield Fact("Errors", errors, detail=True)


def heldout_text(scenario: Scenario) -> str:
    """The mean error of each kind of kernels of a step on shapes that its fit had not seen."""
    errors: dict[str, list[float]] = {}
    for name, fit in scenario.kernel_fits.by_key.items():
        errors.setdefault(name.partition(".")[0], []).append(fit.heldout_error)
    if not errors:
        return ""
    text = ", ".join(f"{section} {span_of_percents(values)}" for section, values in errors.items())
    return f"of kernels on held-out shapes, on average: {text}"


def span_of_percents(values: Sequence[float]) -> str:
    """`5.2 %`, or `5.6-8.5 %`."""
    low, high = percent(min(values)), percent(max(values))
    return high if low == high else f"{low.removesuffix(' %')}-{high}"
