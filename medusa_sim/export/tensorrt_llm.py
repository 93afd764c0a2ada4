"""TensorRT-LLM: the YAML of `--config` with `speculative_config` (chains, dynamic trees, drafts by batch).

Read in tensorrt_llm/llmapi/llm_args.py, _torch/speculative/{drafter,interface,utils}.py and
docs/source/features/speculative-decoding.md. `pip install tensorrt-llm` gives 1.2.1. `draft_len_schedule`
changed its meaning between 1.2 (`{1: 4, 4: 2, 8: 0}`: batch >= key) and 1.3 (`{4: 4, 8: 2, 32: 1}`: batch <=
key, beyond the last 0; pull request 10860), and who reads it. `use_dynamic_tree` of Eagle3 works from 1.3; in
1.2 its own warning says not to use it. Medusa existed in the removed engine backend only.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import cast

from medusa_sim.export.chains import (
    ChainPlan,
    TreeShape,
    best_tree,
    chain_plan,
    graph_sizes,
    idle_cost,
    tree_notes,
)
from medusa_sim.export.names import Versions, engine_method
from medusa_sim.export.schemas import TensorrtDecoding, TensorrtSpeculativeConfig
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

ENGINE = "tensorrt-llm"
VERSIONS = Versions(ENGINE, ("1.2", "1.3", "1.4"), "1.2")
LARGEST_BATCH = 2048
"""`max_batch_size` of the engine by default: a schedule that shall not end goes on to here."""

SYNCHRONOUS = ("ngram", "draft-model")
"""Methods whose documentation asks for `disable_overlap_scheduler: true`."""


def schedule(plan: ChainPlan, version: str) -> dict[int, int] | None:
    """`draft_len_schedule` in the meaning of that version; None where the number of drafts is fixed."""
    if not plan.dynamic:
        return None
    if version == "1.2":
        starts = [1, *(tier.batch_min for tier in plan.tiers[1:])]
        return {start: tier.drafts for start, tier in zip(starts, plan.tiers, strict=True)}
    *before, last = plan.tiers
    ends = {tier.batch_max: tier.drafts for tier in before}
    return ends if last.drafts == 0 else {**ends, max(LARGEST_BATCH, last.batch_max): last.drafts}


def speculative_config(
    answer: Recommendation, plan: ChainPlan, tree: TreeShape | None, version: str, draft_path: str | None
) -> TensorrtSpeculativeConfig:
    """The value of `speculative_config`. Raises UsageError for a missing checkpoint."""
    method = engine_method(ENGINE, answer.drafting.method, version)
    old_mtp = method.name == "MTP" and version == "1.2"
    drafts = plan.drafts if tree is None else tree.depth
    return TensorrtSpeculativeConfig(
        decoding_type=cast("TensorrtDecoding", method.name),
        version=version,
        max_draft_len=None if old_mtp else drafts,
        num_nextn_predict_layers=drafts if old_mtp else None,
        speculative_model=needed_draft(answer, ENGINE, draft_path) if method.checkpoint else None,
        max_matching_ngram_size=5 if method.name == "NGram" else None,
        draft_len_schedule=schedule(plan, version) if tree is None else None,
        use_dynamic_tree=tree is not None,
        dynamic_tree_max_topK=None if tree is None else tree.width,
        max_total_draft_tokens=None if tree is None else tree.candidates - 1,
    )


def yaml_lines(config: TensorrtSpeculativeConfig, *, synchronous: bool) -> Iterator[str]:
    """Lines of the configuration file."""
    if synchronous:
        yield "disable_overlap_scheduler: true"
    yield "speculative_config:"
    yield f"  decoding_type: {config.decoding_type}"
    for name in (
        "max_draft_len",
        "num_nextn_predict_layers",
        "speculative_model",
        "max_matching_ngram_size",
        "dynamic_tree_max_topK",
        "max_total_draft_tokens",
    ):
        value = getattr(config, name)
        if value is not None:
            yield f"  {name}: {json.dumps(value)}"
    if config.use_dynamic_tree:
        yield "  use_dynamic_tree: true"
    if config.draft_len_schedule is not None:
        yield "  draft_len_schedule:"
        yield from (f"    {batch}: {drafts}" for batch, drafts in config.draft_len_schedule.items())


def _within_top_k(shape: TreeShape) -> bool:
    return shape.depth <= shape.candidates - 1 <= shape.width * shape.depth


def settings(answer: Recommendation, version: str | None, draft_path: str | None) -> EngineSettings:
    """A YAML file. Raises UsageError for Medusa, an unknown version or a missing checkpoint."""
    known, nearest = VERSIONS.chosen(version)
    method = engine_method(ENGINE, answer.drafting.method, known)
    margin = answer.question.switching_gain
    scheduled = known in method.scheduled
    plan = chain_plan(
        answer, graph_sizes(ENGINE), scheduled=scheduled, margin=margin, idle_cost=idle_cost(answer)
    )
    grows = method.name == "Eagle3" and known != "1.2"
    tree = best_tree(answer, plan, _within_top_k) if grows else None
    config = speculative_config(answer, plan, tree, known, draft_path)
    synchronous = answer.drafting.method in SYNCHRONOUS
    lines = [f"# TensorRT-LLM {known}, written by medusa-sim", *yaml_lines(config, synchronous=synchronous)]
    notes = [f"written for TensorRT-LLM {known}", nearest]
    if version is None:
        notes.append(
            "1.2 is what pip installs; draft_len_schedule means the opposite from 1.3 on: give "
            "--engine-version 1.3 or 1.4 for a release candidate"
        )
    if tree is not None:
        notes += [*tree_notes(tree), "dynamic trees do not run with sliding-window or latent (MLA) attention"]
    else:
        why = too_small(plan, margin) if scheduled else method.untested
        notes += [*tree_note(answer), *tier_notes(plan, why)]
    if plan.dynamic and tree is None and known != "1.2" and plan.tiers[-1].drafts == 0:
        notes.append(
            "after a time at 0 drafts the drafter's own cache is stale and acceptance recovers late "
            "(NVIDIA/TensorRT-LLM#16888, open)"
        )
    if method.name == "PARD":
        notes.append(
            "TensorRT-LLM runs 2 K tokens a request with PARD, not K + 1 (pull request 12262): verification "
            "costs more than priced here where it is not free"
        )
    notes += [*range_notes(plan, "max_batch_size"), length_note(answer, "max_seq_len")]
    return EngineSettings(
        engine=ENGINE,
        version=known,
        text="\n".join(lines) + "\n",
        notes=tuple(filter(None, notes)),
        plan=plan if tree is None else None,
    )
