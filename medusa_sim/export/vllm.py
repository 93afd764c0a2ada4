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
from typing import Any

import msgspec

from medusa_sim.export.chains import idle_cost
from medusa_sim.export.settings import Chosen, EngineExport, EngineMethod, Versions
from medusa_sim.plan.recommendation import Recommendation

_DIGITS = 4

_TESTED = "vLLM's documentation tests schedules by batch with EAGLE, EAGLE-3 and DFlash only"
_ALL = ("0.24", "0.26", "0.32", "0.33")
_SIZING = ("0.32", "0.33")
"""Versions with `enable_adaptive_verification`."""


def speculative_config(chosen: Chosen) -> dict[str, Any]:
    """The value of `--speculative-config` (vllm/config/speculative.py, 0.33).

    `num_speculative_tokens_per_batch_size`: inclusive (first, last, K), the first from 1, without overlap
    (vllm/v1/spec_decode/dynamic/utils.py).
    """
    plan = chosen.plan
    config: dict[str, Any] = {"method": chosen.method.name, "num_speculative_tokens": plan.drafts}
    if chosen.draft_path is not None:
        config["model"] = chosen.draft_path
    if chosen.drafter == "ngram":
        config |= {"prompt_lookup_min": 2, "prompt_lookup_max": 5}
    if chosen.method.parallel:
        config["parallel_drafting"] = True
    if plan.dynamic:
        tiers = [(start, tier.batch_max, tier.drafts) for start, tier in chosen.starts]
        config["num_speculative_tokens_per_batch_size"] = tiers
    return config


def flag(config: dict[str, Any]) -> str:
    """The words for `vllm serve`."""
    return f"--speculative-config {shlex.quote(msgspec.json.encode(config).decode())}"


class Vllm(EngineExport):
    """The record of vLLM."""

    def write(self, chosen: Chosen) -> str:
        """The flag."""
        return f"{flag(speculative_config(chosen))}\n"

    def margin(self, answer: Recommendation) -> float:
        """The cost of a loaded drafter in plain steps of one request, or more where more was asked for."""
        return max(super().margin(answer), idle_cost(answer)(1))

    def synthetic(self, chosen: Chosen, length: float) -> Iterator[str]:
        """`rejection_sample_method` synthetic takes unconditional rates, one a position."""
        del length
        rates = [round(rate, _DIGITS) for rate in chosen.plan.rates]
        synthetic = {"rejection_sample_method": "synthetic", "synthetic_acceptance_rates": rates}
        yield f"{self.server(chosen)} {flag(speculative_config(chosen) | synthetic)} &"

    def notes(self, chosen: Chosen) -> Iterator[str]:
        """Notes on single versions and methods."""
        method, plan = chosen.drafter, chosen.plan
        if plan.dynamic:
            yield (
                "a schedule by batch keeps full CUDA graphs with VLLM_USE_V2_MODEL_RUNNER=1 only, and is "
                f"switched off with --data-parallel-size above 1 (then {plan.drafts} drafts at every batch)"
            )
        if chosen.version in chosen.method.sizes_itself and len(plan.best_schedule) > 1:
            yield (
                'vLLM can size every step itself: "enable_adaptive_verification": true beside '
                f"num_speculative_tokens {max(tier.drafts for tier in plan.best_schedule)} (full CUDA graphs "
                "needed; no LoRA, no pipeline parallelism). What is left to decide is whether to load the "
                "drafter at all, which is what the break-even batch answers, and the most drafts"
            )
        if method == "mtp":
            yield "with more MTP modules than one, K must be a multiple of their number (n_predict)"
        if method == "medusa":
            yield (
                "vLLM still loads Medusa heads, but its documentation lists them no more: EAGLE-3 or DFlash "
                "drafters are what it is tested with"
            )
        if chosen.method.parallel:
            yield "parallel drafting runs in the V1 model runner (the V2 runner refuses it: vllm#43010)"
        if method == "suffix":
            yield (
                "suffix decoding needs `pip install arctic-inference`; num_speculative_tokens is the most "
                "that a match may draft"
            )
        if chosen.answer.scenario.drafting.drafter_class.looks_up:
            yield (
                "a step is wider only where the prompt matches; --acceptance counts every step, others too"
            )


VLLM = Vllm(
    name="vllm",
    title="vLLM",
    versions=Versions("vllm", _ALL, "0.33"),
    why_one_number=_TESTED,
    batch_option="--max-num-seqs",
    length_option="--max-model-len",
    serve_command='vllm serve "$MODEL"',
    synthetic_by_position=True,
    bench_command=(
        'vllm bench serve --model "$MODEL" --port {port} '
        "{common} --ignore-eos --save-result --result-filename {name}.json"
    ),
    methods={
        "medusa": EngineMethod("medusa", checkpoint=True),
        "eagle": EngineMethod("eagle", checkpoint=True, scheduled=_ALL, sizes_itself=_SIZING),
        "eagle3": EngineMethod("eagle3", checkpoint=True, scheduled=_ALL, sizes_itself=_SIZING),
        "mtp": EngineMethod(
            "mtp",
            checkpoint=False,
            untested=f"{_TESTED}; with MTP the V2 model runner stops at start (vllm#48494)",
            sizes_itself=_SIZING,
        ),
        "draft-model": EngineMethod("draft_model", checkpoint=True, sizes_itself=_SIZING),
        "p-eagle": EngineMethod("eagle3", checkpoint=True, parallel=True),
        "pard": EngineMethod("draft_model", checkpoint=True, parallel=True),
        "dflash": EngineMethod("dflash", checkpoint=True, scheduled=_ALL, sizes_itself=_SIZING),
        "dspark": EngineMethod("dspark", checkpoint=True, versions=("0.32", "0.33"), sizes_itself=_SIZING),
        "ngram": EngineMethod("ngram", checkpoint=False),
        "suffix": EngineMethod("suffix", checkpoint=False, sizes_itself=_SIZING),
    },
    quantises_on_load=True,
    launch_options={
        "--tensor-parallel-size": "attention_tp",
        "--data-parallel-size": "dp",
        "--enable-expert-parallel": "is_ep",
        "--max-num-seqs": "requests_a_rank",
        "--max-model-len": "max_tokens",
        "--quantization": "quantization",
        "--kv-cache-dtype": "kv_dtype",
    },
)
"""vllm/config/speculative.py (SpeculativeMethod); docs/features/speculative_decoding/
dynamic_speculative_decoding.md; MTP schedules stop the V2 runner: vllm-project/vllm#48494. Options of the
whole command: vllm/engine/arg_utils.py, 0.33; --max-num-seqs is of each data-parallel rank.
"""
