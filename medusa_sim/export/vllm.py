"""vLLM: `--speculative-config` JSON (chains; drafts by batch where that is tested and pays).

Read in vllm/config/speculative.py (0.26 to 0.33), vllm/v1/spec_decode/dynamic/utils.py (0.32) and
docs/features/speculative_decoding/dynamic_speculative_decoding.md: `num_speculative_tokens_per_batch_size`
is a list of inclusive `[low, high, K]` whose first range starts at 1; gaps and what lies above keep the K
before them, 0 switches speculation off. Tree attention was removed (pull request 42121): every method
verifies a chain.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from typing import cast

import msgspec

from medusa_sim.export.chains import idle_cost
from medusa_sim.export.schemas import VllmMethod, VllmSpeculativeConfig
from medusa_sim.export.settings import Chosen, EngineExport
from medusa_sim.plan.recommendation import Recommendation

_DIGITS = 4

_ADAPTIVE = ("eagle", "eagle3", "mtp", "draft-model", "dflash", "dspark", "suffix")


def speculative_config(chosen: Chosen) -> VllmSpeculativeConfig:
    """The value of `--speculative-config`."""
    method, plan = chosen.method, chosen.plan
    ngram = chosen.drafter == "ngram"
    schedule = [(start, tier.batch_max, tier.drafts) for start, tier in chosen.starts]
    return VllmSpeculativeConfig(
        method=cast("VllmMethod", method.name),
        num_speculative_tokens=plan.drafts,
        model=chosen.draft_path,
        prompt_lookup_min=2 if ngram else None,
        prompt_lookup_max=5 if ngram else None,
        parallel_drafting=method.parallel,
        num_speculative_tokens_per_batch_size=schedule if plan.dynamic else None,
    )


def flag(config: VllmSpeculativeConfig) -> str:
    """The words for `vllm serve`."""
    return f"--speculative-config {shlex.quote(msgspec.json.encode(config).decode())}"


class Vllm(EngineExport):
    """The record of vLLM."""

    def write(self, chosen: Chosen) -> str:
        """The flag."""
        return f"{flag(speculative_config(chosen))}\n"

    def margin(self, answer: Recommendation) -> float:
        """At least the least that schedules were measured to cost."""
        return idle_cost(answer)(1)

    def synthetic(self, chosen: Chosen, whole: float) -> Iterator[str]:
        """`rejection_sample_method` synthetic takes unconditional rates by position."""
        del whole
        rates = [round(rate, _DIGITS) for rate in chosen.plan.rates]
        config = msgspec.structs.replace(
            speculative_config(chosen), rejection_sample_method="synthetic", synthetic_acceptance_rates=rates
        )
        yield f"{self.serve} --port {self.port} {flag(config)} &"

    def remarks(self, chosen: Chosen) -> list[str]:
        """What is special to versions and methods."""
        method, plan, notes = chosen.drafter, chosen.plan, []
        if plan.dynamic:
            notes.append(
                "a schedule by batch keeps full CUDA graphs with VLLM_USE_V2_MODEL_RUNNER=1 only, and is "
                f"switched off with --data-parallel-size above 1 (then {plan.drafts} drafts at every batch)"
            )
        if method in _ADAPTIVE and chosen.version in ("0.32", "0.33") and len(plan.possible) > 1:
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
        if chosen.method.parallel:
            notes.append(
                "parallel drafting runs in the V1 model runner (the V2 runner refuses it: vllm#43010)"
            )
        if method == "suffix":
            notes.append(
                "suffix decoding needs `pip install arctic-inference`; num_speculative_tokens is the most "
                "that a match may draft"
            )
        if chosen.answer.drafting.kind.looks_up:
            notes.append(
                "a step is wider only where the prompt matches; --acceptance counts every step, others too"
            )
        return notes
