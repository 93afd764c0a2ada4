"""vLLM: `--speculative-config` JSON (chains; drafts by batch where that is tested and pays).

Read in vllm/config/speculative.py (0.26 to 0.33), vllm/v1/spec_decode/dynamic/utils.py (0.32) and
docs/features/speculative_decoding/dynamic_speculative_decoding.md: `num_speculative_tokens_per_batch_size`
is a list of inclusive `[low, high, K]` whose first range starts at 1; gaps and what lies above keep the K
before them, 0 switches speculation off. Tree attention was removed (pull request 42121): every method
verifies a chain.
"""

from __future__ import annotations

import shlex
from typing import cast

import msgspec

from medusa_sim.export.chains import ChainPlan, chain_plan, graph_sizes, idle_cost
from medusa_sim.export.names import Versions, engine_method
from medusa_sim.export.schemas import VllmMethod, VllmSpeculativeConfig
from medusa_sim.export.settings import (
    EngineSettings,
    length_note,
    needed_draft,
    range_notes,
    tier_notes,
    too_small,
    tree_note,
)
from medusa_sim.plan.recommendation import Recommendation

ENGINE = "vllm"
VERSIONS = Versions(ENGINE, ("0.24", "0.26", "0.32", "0.33"), "0.33")
_ADAPTIVE = ("eagle", "eagle3", "mtp", "draft-model", "dflash", "dspark", "suffix")


def speculative_config(
    answer: Recommendation, plan: ChainPlan, version: str, draft_path: str | None
) -> VllmSpeculativeConfig:
    """The value of `--speculative-config`. Raises UsageError for a missing checkpoint."""
    method = engine_method(ENGINE, answer.drafting.method, version)
    ngram = answer.drafting.method == "ngram"
    starts = [1, *(tier.batch_min for tier in plan.tiers[1:])]
    schedule = [(start, tier.batch_max, tier.drafts) for start, tier in zip(starts, plan.tiers, strict=True)]
    return VllmSpeculativeConfig(
        method=cast("VllmMethod", method.name),
        num_speculative_tokens=plan.drafts,
        model=needed_draft(answer, ENGINE, draft_path) if method.checkpoint else None,
        prompt_lookup_min=2 if ngram else None,
        prompt_lookup_max=5 if ngram else None,
        parallel_drafting=method.parallel,
        num_speculative_tokens_per_batch_size=schedule if plan.dynamic else None,
    )


def flag(config: VllmSpeculativeConfig) -> str:
    """The words for `vllm serve`."""
    return f"--speculative-config {shlex.quote(msgspec.json.encode(config).decode())}"


def settings(answer: Recommendation, version: str | None, draft_path: str | None) -> EngineSettings:
    """One line for `vllm serve`. Raises UsageError for an unknown version or a missing checkpoint."""
    known, nearest = VERSIONS.chosen(version)
    method = engine_method(ENGINE, answer.drafting.method, known)
    margin = idle_cost(answer)(
        1
    )  # a schedule must gain at least the least that schedules were measured to cost
    plan = chain_plan(
        answer,
        graph_sizes(ENGINE),
        scheduled=known in method.scheduled,
        margin=margin,
        idle_cost=idle_cost(answer),
    )
    config = speculative_config(answer, plan, known, draft_path)
    why = too_small(plan, margin) if known in method.scheduled else method.untested
    notes = [f"written for vLLM {known}", nearest, *tree_note(answer), *tier_notes(plan, why)]
    if plan.dynamic:
        notes.append(
            "a schedule by batch keeps full CUDA graphs with VLLM_USE_V2_MODEL_RUNNER=1 only, and is "
            f"switched off with --data-parallel-size above 1 (then {plan.drafts} drafts at every batch)"
        )
    notes += [
        *range_notes(plan, "--max-num-seqs"),
        *_method_notes(answer, plan, known),
        length_note(answer, "--max-model-len"),
    ]
    return EngineSettings(
        engine=ENGINE, version=known, text=f"{flag(config)}\n", notes=tuple(filter(None, notes)), plan=plan
    )


def _method_notes(answer: Recommendation, plan: ChainPlan, version: str) -> tuple[str, ...]:
    method = answer.drafting.method
    notes = []
    if method in _ADAPTIVE and version in ("0.32", "0.33") and len(plan.possible) > 1:
        notes.append(
            'vLLM can size every step itself: "enable_adaptive_verification": true beside '
            f"num_speculative_tokens {max(tier.drafts for tier in plan.possible)} (full CUDA graphs "
            "needed; no LoRA, no pipeline parallelism). What is left to decide is whether to load the "
            "drafter at all, which is what the break-even batch answers, and the most drafts"
        )
    if method == "mtp":
        notes.append("with more MTP modules than one, K must be a multiple of their number (n_predict)")
    if method == "medusa":
        notes.append(
            "vLLM still loads Medusa heads, but its documentation lists them no more: EAGLE-3 or DFlash "
            "drafters are what it is tested with"
        )
    if engine_method(ENGINE, method, version).parallel:
        notes.append("parallel drafting runs in the V1 model runner (the V2 runner refuses it: vllm#43010)")
    if method == "suffix":
        notes.append(
            "suffix decoding needs `pip install arctic-inference`; num_speculative_tokens is the most that a "
            "match may draft"
        )
    if answer.drafting.kind.looks_up:
        notes.append("a step is wider only where the prompt matches; --acceptance is the rate where it does")
    return tuple(notes)
