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
from medusa_sim.export.settings import Chosen, EngineExport, EngineMethod, Versions

_DIGITS = 4

_SCHEDULED = ("0.24", "0.26", "0.32", "0.33")
_UNTESTED = "vLLM's documentation tests schedules by batch with EAGLE, EAGLE-3 and DFlash only"
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


def _synthetic(chosen: Chosen, whole: float) -> Iterator[str]:
    """`rejection_sample_method` synthetic takes unconditional rates by position."""
    del whole
    rates = [round(rate, _DIGITS) for rate in chosen.plan.rates]
    config = msgspec.structs.replace(
        speculative_config(chosen), rejection_sample_method="synthetic", synthetic_acceptance_rates=rates
    )
    yield f"{VLLM.serve} --port {VLLM.port} {flag(config)} &"


def _remarks(chosen: Chosen) -> list[str]:
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
        notes.append("parallel drafting runs in the V1 model runner (the V2 runner refuses it: vllm#43010)")
    if method == "suffix":
        notes.append(
            "suffix decoding needs `pip install arctic-inference`; num_speculative_tokens is the most that a "
            "match may draft"
        )
    if chosen.answer.drafting.kind.looks_up:
        notes.append(
            "a step is wider only where the prompt matches; --acceptance counts every step, others too"
        )
    return notes


VLLM = EngineExport(
    name="vllm",
    title="vLLM",
    versions=Versions("vllm", ("0.24", "0.26", "0.32", "0.33"), "0.33"),
    # vllm/config/speculative.py (SpeculativeMethod); docs/features/speculative_decoding/
    # dynamic_speculative_decoding.md; MTP schedules stop the V2 runner: vllm-project/vllm#48494.
    methods={
        "medusa": EngineMethod(name="medusa", checkpoint=True, untested=_UNTESTED),
        "eagle": EngineMethod(name="eagle", checkpoint=True, scheduled=_SCHEDULED),
        "eagle3": EngineMethod(name="eagle3", checkpoint=True, scheduled=_SCHEDULED),
        "mtp": EngineMethod(
            name="mtp",
            checkpoint=False,
            untested=f"{_UNTESTED}; with MTP the V2 model runner stops at start (vllm#48494)",
        ),
        "draft-model": EngineMethod(name="draft_model", checkpoint=True, untested=_UNTESTED),
        "p-eagle": EngineMethod(name="eagle3", checkpoint=True, untested=_UNTESTED, parallel=True),
        "pard": EngineMethod(name="draft_model", checkpoint=True, untested=_UNTESTED, parallel=True),
        "dflash": EngineMethod(name="dflash", checkpoint=True, scheduled=_SCHEDULED),
        "dspark": EngineMethod(name="dspark", checkpoint=True, untested=_UNTESTED, versions=("0.32", "0.33")),
        "ngram": EngineMethod(name="ngram", checkpoint=False, untested=_UNTESTED),
        "suffix": EngineMethod(name="suffix", checkpoint=False, untested=_UNTESTED),
    },
    write=lambda chosen: f"{flag(speculative_config(chosen))}\n",
    remarks=_remarks,
    # a schedule must gain at least the least that schedules were measured to cost
    margin=lambda answer: idle_cost(answer)(1),
    batch_cap="--max-num-seqs",
    length_cap="--max-model-len",
    gpus="--tensor-parallel-size {tp}",
    more_gpus=(("ep", "--enable-expert-parallel"),),
    serve='vllm serve "$MODEL"',
    bench='vllm bench serve --model "$MODEL" --port {port} {common} --ignore-eos --save-result '
    "--result-filename {name}.json",
    synthetic=_synthetic,
)
