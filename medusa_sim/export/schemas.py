"""What engines accept, written from their sources: every exported setting is built as one of these.

A value that the engine would refuse at start cannot be built (ValueError), so it cannot be written.
"""

from __future__ import annotations

from itertools import pairwise
from typing import Literal, TypeAlias

import msgspec

VllmMethod: TypeAlias = Literal[
    "ngram", "ngram_gpu", "medusa", "mlp_speculator", "draft_model", "suffix", "eagle", "eagle3", "mtp",
    "dflash", "dspark",
]  # fmt: skip
SglangAlgorithm: TypeAlias = Literal["EAGLE", "EAGLE3", "NEXTN", "STANDALONE", "NGRAM", "DFLASH", "DSPARK"]
BLOCKS: tuple[SglangAlgorithm, ...] = ("DFLASH", "DSPARK")
"""Algorithms that draft a block in one pass."""
TensorrtDecoding: TypeAlias = Literal[
    "Eagle3", "MTP", "Draft_Target", "NGram", "PARD", "DFlash", "DSpark", "SA"
]


def _require(condition: bool, message: str) -> None:
    if not condition:
        raise ValueError(message)


class VllmSpeculativeConfig(
    msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True
):
    """`--speculative-config` of vLLM (vllm/config/speculative.py, 0.33).

    `num_speculative_tokens_per_batch_size`: inclusive (first, last, K), the first from 1, without overlap
    (vllm/v1/spec_decode/dynamic/utils.py). `synthetic_acceptance_rates`: unconditional, one a position.
    """

    method: VllmMethod
    num_speculative_tokens: int
    model: str | None = None
    prompt_lookup_min: int | None = None
    prompt_lookup_max: int | None = None
    parallel_drafting: bool = False
    num_speculative_tokens_per_batch_size: list[tuple[int, int, int]] | None = None
    enable_adaptive_verification: bool = False
    rejection_sample_method: Literal["standard", "synthetic", "block"] = "standard"
    synthetic_acceptance_rates: list[float] | None = None

    def __post_init__(self) -> None:
        _require(self.num_speculative_tokens > 0, "num_speculative_tokens must be above 0")
        _require(
            self.model is not None or self.method in ("ngram", "ngram_gpu", "suffix", "mtp", "dspark"),
            f"method {self.method} needs a model",
        )
        _require(
            not self.parallel_drafting or self.method in ("eagle3", "draft_model"),
            "parallel_drafting is of eagle3 (P-EAGLE) and draft_model (PARD)",
        )
        if self.prompt_lookup_min is not None and self.prompt_lookup_max is not None:
            _require(1 <= self.prompt_lookup_min <= self.prompt_lookup_max, "prompt_lookup_min above max")
        self._check_schedule()
        self._check_synthetic()

    def _check_schedule(self) -> None:
        schedule = self.num_speculative_tokens_per_batch_size
        if schedule is None:
            return
        _require(bool(schedule) and schedule[0][0] == 1, "the first batch range must start at 1")
        _require(all(0 < low <= high and k >= 0 for low, high, k in schedule), "a batch range is upside down")
        _require(all(b[0] > a[1] for a, b in pairwise(schedule)), "batch ranges overlap")
        _require(
            max(k for _, _, k in schedule) <= self.num_speculative_tokens,
            "the schedule drafts more than num_speculative_tokens, which the engine would clamp",
        )

    def _check_synthetic(self) -> None:
        rates = self.synthetic_acceptance_rates
        _require(
            (rates is not None) == (self.rejection_sample_method == "synthetic"),
            "synthetic_acceptance_rates belong to rejection_sample_method synthetic",
        )
        if rates is not None:
            _require(len(rates) == self.num_speculative_tokens, "one synthetic rate a position is needed")
            _require(all(0.0 <= rate <= 1.0 for rate in rates), "a synthetic rate is outside 0..1")
            _require(all(b <= a for a, b in pairwise(rates)), "synthetic rates may not rise")


class SglangSlot(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Steps to choose from at the batches of one slot of `--speculative-adaptive-config` (SGLang 0.5.23)."""

    candidate_steps: list[int]

    def __post_init__(self) -> None:
        _require(
            bool(self.candidate_steps) and min(self.candidate_steps) >= 1,
            "candidate_steps must be a non-empty list of whole numbers from 1",
        )


class SglangFlags(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True):
    """The speculative flags of `sglang.launch_server` (docs advanced_features/speculative_decoding).

    topk 1 forces draft tokens = steps + 1; a tree holds at most topk + (steps - 1) topk^2 drafts and the
    root, and runs with page_size 1 under the overlap scheduler, or without that scheduler.
    """

    algorithm: SglangAlgorithm
    draft_model_path: str | None = None
    num_steps: int | None = None
    eagle_topk: int | None = None
    num_draft_tokens: int | None = None
    ngram_max_bfs_breadth: int | None = None
    block_size: int | None = None
    page_size: int | None = None
    disable_overlap_schedule: bool = False
    adaptive_slots: dict[int, SglangSlot] | None = None

    def __post_init__(self) -> None:
        if self.algorithm == "NGRAM":
            _require(
                self.num_draft_tokens is not None and self.num_draft_tokens >= 2, "NGRAM needs draft tokens"
            )
            return
        if self.algorithm in BLOCKS:
            _require((self.block_size or 0) >= 1 and self.num_steps is None, "a block size, and no steps")
            return
        given = (self.num_steps, self.eagle_topk, self.num_draft_tokens)
        _require(
            all(value is not None and value >= 1 for value in given), "steps, topk and tokens go together"
        )
        steps, topk, tokens = (value or 0 for value in given)
        if topk == 1:
            _require(tokens == steps + 1, "topk 1 forces num_draft_tokens = num_steps + 1")
        else:
            _require(tokens <= 1 + topk + (steps - 1) * topk**2, "more draft tokens than the tree can grow")
            _require(self.page_size == 1 or self.disable_overlap_schedule, "topk above 1 needs page_size 1")
        if self.adaptive_slots is not None:
            _require(
                self.algorithm in ("EAGLE", "EAGLE3") and topk == 1, "adaptive steps need EAGLE and topk 1"
            )
            _require(min(self.adaptive_slots) == 1, "the first slot must start at batch 1")


class TensorrtSpeculativeConfig(
    msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True
):
    """`speculative_config` of TensorRT-LLM (tensorrt_llm/llmapi/llm_args.py).

    version: "1.2" reads a schedule as "batch >= key" and wants key 1 at max_draft_len; from "1.3" it reads
    "batch <= key, beyond the last 0" and wants the smallest key at max_draft_len. In 1.2 the number of MTP
    drafts is num_nextn_predict_layers, which overwrites max_draft_len.
    """

    decoding_type: TensorrtDecoding
    version: str
    max_draft_len: int | None = None
    num_nextn_predict_layers: int | None = None
    speculative_model: str | None = None
    max_matching_ngram_size: int | None = None
    draft_len_schedule: dict[int, int] | None = None
    use_dynamic_tree: bool = False
    dynamic_tree_max_topK: int | None = None  # noqa: N815  # the engine's own spelling
    max_total_draft_tokens: int | None = None

    def __post_init__(self) -> None:
        old_mtp = self.decoding_type == "MTP" and self.version == "1.2"
        drafts = self.num_nextn_predict_layers if old_mtp else self.max_draft_len
        _require(drafts is not None and drafts > 0, "the number of drafts must be above 0")
        _require(
            self.speculative_model is not None or self.decoding_type in ("MTP", "NGram", "SA"),
            f"{self.decoding_type} needs speculative_model",
        )
        _require(
            self.version == "1.4" or self.decoding_type not in ("PARD", "DFlash", "DSpark", "SA"),
            f"{self.decoding_type} is read from 1.4 on",
        )
        self._check_schedule(drafts or 0)
        self._check_tree(drafts or 0)

    def _check_schedule(self, drafts: int) -> None:
        schedule = self.draft_len_schedule
        if schedule is None:
            return
        _require(min(schedule) >= 1 and min(schedule.values()) >= 0, "batches from 1 and drafts from 0")
        first = 1 if self.version == "1.2" else min(schedule)
        _require(schedule.get(first) == drafts, f"draft_len_schedule[{first}] must equal max_draft_len")
        _require(max(schedule.values()) <= drafts, "draft lengths may not exceed max_draft_len")
        _require(not self.use_dynamic_tree, "a schedule belongs to chains")

    def _check_tree(self, drafts: int) -> None:
        if not self.use_dynamic_tree:
            return
        _require(self.decoding_type == "Eagle3" and self.version != "1.2", "dynamic trees: Eagle3 from 1.3")
        topk, total = self.dynamic_tree_max_topK or 0, self.max_total_draft_tokens or 0
        _require(topk > 0, "dynamic_tree_max_topK must be above 0")
        _require(drafts <= total <= topk * drafts, "max_total_draft_tokens must lie in depth..topK * depth")
