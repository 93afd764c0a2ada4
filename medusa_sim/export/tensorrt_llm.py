"""TensorRT-LLM: the YAML of `--config` with `speculative_config` (chains, dynamic trees, drafts by batch).

Read in tensorrt_llm/llmapi/llm_args.py, _torch/speculative/{drafter,interface,utils}.py and
docs/source/features/speculative-decoding.md. `pip install tensorrt-llm` gives 1.2.1. `draft_len_schedule`
changed its meaning between 1.2 (`{1: 4, 4: 2, 8: 0}`: batch >= key) and 1.3 (`{4: 4, 8: 2, 32: 1}`: batch <=
key, beyond the last 0; pull request 10860), and who reads it. `use_dynamic_tree` of Eagle3 works from 1.3; in
1.2 its own warning says not to use it. Medusa existed in the removed engine backend only.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import cast

from medusa_sim.export.chains import TreeShape
from medusa_sim.export.schemas import TensorrtDecoding, TensorrtSpeculativeConfig
from medusa_sim.export.settings import Chosen, EngineExport, EngineMethod
from medusa_sim.outside.escaping import for_comment

LARGEST_BATCH = 2048
"""`max_batch_size` of the engine by default: a schedule that shall not end goes on to here."""
SYNCHRONOUS = ("ngram", "draft-model")
"""Methods whose documentation asks for `disable_overlap_scheduler: true`."""

_NUMBERS = (
    "max_draft_len", "num_nextn_predict_layers", "speculative_model", "max_matching_ngram_size",
    "dynamic_tree_max_topK", "max_total_draft_tokens",
)  # fmt: skip


def schedule(chosen: Chosen) -> dict[int, int] | None:
    """`draft_len_schedule` in the meaning of that version; None where the number of drafts is fixed."""
    if not chosen.plan.dynamic or chosen.tree is not None:
        return None
    if chosen.version == "1.2":
        return {start: tier.drafts for start, tier in chosen.starts}
    *before, last = chosen.plan.tiers
    ends = {tier.batch_max: tier.drafts for tier in before}
    return ends if last.drafts == 0 else {**ends, max(LARGEST_BATCH, last.batch_max): last.drafts}


def speculative_config(chosen: Chosen) -> TensorrtSpeculativeConfig:
    """The value of `speculative_config`."""
    method, tree = chosen.method, chosen.tree
    old_mtp = method.name == "MTP" and chosen.version == "1.2"
    drafts = chosen.plan.drafts if tree is None else tree.depth
    return TensorrtSpeculativeConfig(
        decoding_type=cast("TensorrtDecoding", method.name),
        version=chosen.version,
        max_draft_len=None if old_mtp else drafts,
        num_nextn_predict_layers=drafts if old_mtp else None,
        speculative_model=chosen.draft_path,
        max_matching_ngram_size=5 if method.name == "NGram" else None,
        draft_len_schedule=schedule(chosen),
        use_dynamic_tree=tree is not None,
        dynamic_tree_max_topK=None if tree is None else tree.width,
        max_total_draft_tokens=None if tree is None else tree.candidates - 1,
    )


def _yaml(chosen: Chosen) -> Iterator[str]:
    return yaml_lines(speculative_config(chosen), synchronous=chosen.drafter in SYNCHRONOUS)


def yaml_lines(config: TensorrtSpeculativeConfig, *, synchronous: bool) -> Iterator[str]:
    """Lines of the configuration file."""
    if synchronous:
        yield "disable_overlap_scheduler: true"
    yield "speculative_config:"
    yield f"  decoding_type: {config.decoding_type}"
    for name in _NUMBERS:
        if (value := getattr(config, name)) is not None:
            yield f"  {name}: {json.dumps(value)}"
    if config.use_dynamic_tree:
        yield "  use_dynamic_tree: true"
    if config.draft_len_schedule is not None:
        yield "  draft_len_schedule:"
        yield from (f"    {batch}: {drafts}" for batch, drafts in config.draft_len_schedule.items())


class TensorrtLlm(EngineExport):
    """The record of TensorRT-LLM."""

    def write(self, chosen: Chosen) -> str:
        """The file."""
        return (
            "\n".join(
                [for_comment(f"# TensorRT-LLM {chosen.version}, written by medusa-sim"), *_yaml(chosen)]
            )
            + "\n"
        )

    def synthetic(self, chosen: Chosen, whole: float) -> Iterator[str]:
        """`TLLM_SPEC_DECODE_FORCE_NUM_ACCEPTED_TOKENS` does not count the bonus token."""
        yield "cat > speculative.yaml <<'EOF'"
        yield from _yaml(chosen)
        yield "EOF"
        yield (
            f"TLLM_SPEC_DECODE_FORCE_NUM_ACCEPTED_TOKENS={whole - 1.0:.2f} \\\n"
            f"{self.serve} --port {self.port} --config speculative.yaml &"
        )

    def trees(self, method: EngineMethod, version: str) -> Callable[[TreeShape], bool] | None:
        """Dynamic trees, within their top-k."""
        if method.name != "Eagle3" or version == "1.2":
            return None
        return lambda shape: shape.depth <= shape.candidates - 1 <= shape.width * shape.depth

    def remarks(self, chosen: Chosen) -> Iterator[str]:
        """What is special to versions and methods."""
        if chosen.is_default:
            yield (
                "1.2 is what pip installs; draft_len_schedule means the opposite from 1.3 on: give "
                "--engine-version 1.3 or 1.4 for a release candidate"
            )
        if chosen.tree is not None:
            yield "dynamic trees do not run with sliding-window or latent (MLA) attention"
        plan = chosen.plan
        if plan.dynamic and chosen.tree is None and chosen.version != "1.2" and plan.tiers[-1].drafts == 0:
            yield (
                "after a time at 0 drafts the drafter's own cache is stale and acceptance recovers late "
                "(NVIDIA/TensorRT-LLM#16888, open)"
            )
        if chosen.method.name == "PARD":
            yield (
                "TensorRT-LLM runs 2 K tokens a request with PARD, not K + 1 (pull request 12262): "
                "verification costs more than priced here where it is not free"
            )
