"""What engines refuse at start, as their own configuration says; each raises ValueError."""

from collections.abc import Mapping
from itertools import pairwise
from typing import Any


def require(condition: bool, message: str) -> None:
    if not condition:
        raise ValueError(message)


def vllm(config: Mapping[str, Any]) -> None:
    """vllm/config/speculative.py and vllm/v1/spec_decode/dynamic/utils.py (0.33)."""
    method, drafts = config["method"], config["num_speculative_tokens"]
    require(drafts > 0, "num_speculative_tokens must be above 0")
    bare = ("ngram", "ngram_gpu", "suffix", "mtp", "dspark")
    require(config.get("model") is not None or method in bare, f"method {method} needs a model")
    is_parallel = config.get("parallel_drafting", False)
    require(not is_parallel or method in ("eagle3", "draft_model"), "parallel_drafting: P-EAGLE and PARD")
    if "prompt_lookup_min" in config:
        require(1 <= config["prompt_lookup_min"] <= config["prompt_lookup_max"], "lookup_min above max")
    if (schedule := config.get("num_speculative_tokens_per_batch_size")) is not None:
        require(bool(schedule) and schedule[0][0] == 1, "the first batch range must start at 1")
        require(all(0 < low <= high and k >= 0 for low, high, k in schedule), "a batch range is upside down")
        require(all(b[0] > a[1] for a, b in pairwise(schedule)), "batch ranges overlap")
        require(max(k for _, _, k in schedule) <= drafts, "drafts more than num_speculative_tokens: clamped")
    rates, sampled = config.get("synthetic_acceptance_rates"), config.get("rejection_sample_method")
    require((rates is not None) == (sampled == "synthetic"), "rates belong to synthetic")
    if rates is not None:
        require(len(rates) == drafts, "one synthetic rate a position is needed")
        require(all(0.0 <= rate <= 1.0 for rate in rates), "a synthetic rate is outside 0..1")
        require(all(b <= a for a, b in pairwise(rates)), "synthetic rates may not rise")


def tensorrt(config: Mapping[str, Any], version: str) -> None:
    """tensorrt_llm/llmapi/llm_args.py.

    1.2 reads a schedule as "batch >= key" and wants key 1 at max_draft_len; 1.3 reads "batch <= key, beyond
    the last 0" and wants the smallest key at max_draft_len.
    """
    kind = config["decoding_type"]
    old_mtp = kind == "MTP" and version == "1.2"
    drafts = config.get("num_nextn_predict_layers" if old_mtp else "max_draft_len") or 0
    require(drafts > 0, "the number of drafts must be above 0")
    is_named = config.get("speculative_model") is not None
    require(is_named or kind in ("MTP", "NGram", "SA"), f"{kind} needs speculative_model")
    require(version == "1.4" or kind not in ("PARD", "DFlash", "DSpark", "SA"), f"{kind} is read from 1.4 on")
    is_tree = config.get("use_dynamic_tree", False)
    if (schedule := config.get("draft_len_schedule")) is not None:
        require(min(schedule) >= 1 and min(schedule.values()) >= 0, "batches from 1 and drafts from 0")
        first = 1 if version == "1.2" else min(schedule)
        require(schedule.get(first) == drafts, f"draft_len_schedule[{first}] must equal max_draft_len")
        require(max(schedule.values()) <= drafts, "draft lengths may not exceed max_draft_len")
        require(not is_tree, "a schedule belongs to chains")
    if is_tree:
        require(kind == "Eagle3" and version != "1.2", "dynamic trees: Eagle3 from 1.3")
        topk, total = config.get("dynamic_tree_max_topK") or 0, config.get("max_total_draft_tokens") or 0
        require(topk > 0, "dynamic_tree_max_topK must be above 0")
        require(drafts <= total <= topk * drafts, "max_total_draft_tokens must lie in depth..topK * depth")


def sglang(options: Mapping[str, Any], slots: Mapping[str, Any] | None = None) -> None:
    """docs_new/docs/advanced_features/{speculative_decoding,adaptive_speculative_decoding}.mdx (0.5.23).

    slots: what the file of steps by batch holds.
    """
    given = {name.removeprefix("--speculative-"): value for name, value in options.items()}
    kind = str(given["algorithm"])
    numbers = [given.get(name) for name in ("num-steps", "eagle-topk", "num-draft-tokens")]
    if kind == "NGRAM":
        require(int(given.get("num-draft-tokens") or 0) >= 2, "NGRAM needs draft tokens")
        return
    if kind in ("DFLASH", "DSPARK"):
        block = int(given.get(f"{kind.lower()}-block-size") or 0)
        require(block >= 1 and numbers[0] is None, "a block size, and no steps")
        return
    require(all(value is not None and int(value) >= 1 for value in numbers), "steps, topk, tokens together")
    steps, topk, tokens = (int(value or 0) for value in numbers)
    if topk == 1:
        require(tokens == steps + 1, "topk 1 forces num_draft_tokens = num_steps + 1")
    else:
        require(tokens <= 1 + topk + (steps - 1) * topk**2, "more draft tokens than the tree can grow")
        is_alone = "--page-size" in options and int(options["--page-size"]) == 1
        require(is_alone or "--disable-overlap-schedule" in options, "topk above 1 needs page_size 1")
    require(("adaptive-config" in given) == bool(slots), "the file of steps is named where there is one")
    if slots:
        require(kind in ("EAGLE", "EAGLE3") and topk == 1, "adaptive steps need EAGLE and topk 1")
        require(min(map(int, slots)) == 1, "the first slot must start at batch 1")
        for slot in slots.values():
            candidates = slot["candidate_steps"]
            require(bool(candidates) and min(candidates) >= 1, "candidate_steps: whole numbers from 1")
