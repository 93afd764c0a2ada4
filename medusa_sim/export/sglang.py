"""SGLang: the `--speculative-*` flags (chains and trees), and the file of steps by batch.

Read in docs_new/docs/advanced_features/{speculative_decoding,adaptive_speculative_decoding}.mdx (0.5.23):
num-draft-tokens counts the root, eagle-topk 1 forces num-draft-tokens = num-steps + 1, all three are given or
none. The overlap scheduler (default) takes topk above 1 with page size 1 only (pull request 26997). N-gram
drafting grows a tree of breadth 10 by default. DFLASH counts the target's token in its block, DSPARK does
not. `--speculative-adaptive-config` names steps by the smallest batch of a slot, never 0. Medusa was never
merged.
"""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterator
from typing import cast

import msgspec

from medusa_sim.export.chains import ChainPlan, TreeShape, best_tree, chain_plan, graph_sizes, tree_notes
from medusa_sim.export.names import Versions, engine_method
from medusa_sim.export.schemas import BLOCKS, SglangAlgorithm, SglangFlags, SglangSlot
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

ENGINE = "sglang"
VERSIONS = Versions(ENGINE, ("0.5", "0.5.23"), "0.5.23")
ADAPTIVE_FILE = "speculative_adaptive.json"


def flags_of(answer: Recommendation, plan: ChainPlan, tree: TreeShape | None, version: str) -> SglangFlags:
    """The flags without the checkpoint."""
    method = engine_method(ENGINE, answer.drafting.method, version)
    algorithm = cast("SglangAlgorithm", method.name)
    if algorithm == "NGRAM":
        return SglangFlags(algorithm=algorithm, num_draft_tokens=plan.drafts + 1, ngram_max_bfs_breadth=1)
    if algorithm in BLOCKS:
        rows = plan.drafts + (algorithm == "DFLASH")
        return SglangFlags(algorithm=algorithm, block_size=rows)
    if tree is not None:
        return SglangFlags(
            algorithm=algorithm,
            num_steps=tree.depth,
            eagle_topk=tree.width,
            num_draft_tokens=tree.candidates,
            page_size=1 if version == "0.5.23" else None,
            disable_overlap_schedule=version != "0.5.23",
        )
    slots = None
    if plan.dynamic:
        starts = [1, *(tier.batch_min for tier in plan.tiers[1:])]
        slots = {
            start: SglangSlot(candidate_steps=[tier.drafts])
            for start, tier in zip(starts, plan.tiers, strict=True)
        }
    return SglangFlags(
        algorithm=algorithm,
        num_steps=plan.drafts,
        eagle_topk=1,
        num_draft_tokens=plan.drafts + 1,
        adaptive_slots=slots,
    )


def words(flags: SglangFlags, draft_path: str | None) -> Iterator[str]:
    """The flags as words of the command line."""
    yield from ("--speculative-algorithm", flags.algorithm)
    values = {
        "--speculative-draft-model-path": draft_path,
        "--speculative-num-steps": flags.num_steps,
        "--speculative-eagle-topk": flags.eagle_topk,
        "--speculative-num-draft-tokens": flags.num_draft_tokens,
        "--speculative-ngram-max-bfs-breadth": flags.ngram_max_bfs_breadth,
        f"--speculative-{flags.algorithm.lower()}-block-size": flags.block_size,
        "--page-size": flags.page_size,
    }
    for name, value in values.items():
        if value is not None:
            yield from (name, str(value))
    if flags.disable_overlap_schedule:
        yield "--disable-overlap-schedule"
    if flags.adaptive_slots is not None:
        yield from ("--speculative-adaptive", "--speculative-adaptive-config", ADAPTIVE_FILE)


def adaptive_file(flags: SglangFlags) -> str:
    """The lines that write the file of steps by batch; nothing where there is none."""
    if flags.adaptive_slots is None:
        return ""
    slots = {str(batch): msgspec.to_builtins(slot) for batch, slot in flags.adaptive_slots.items()}
    return f"cat > {ADAPTIVE_FILE} <<'EOF'\n{json.dumps(slots)}\nEOF\n"


def settings(answer: Recommendation, version: str | None, draft_path: str | None) -> EngineSettings:
    """Flags for `python -m sglang.launch_server`, below the lines that write their file where they need one.

    Raises UsageError for Medusa, an unknown version or a missing checkpoint.
    """
    known, nearest = VERSIONS.chosen(version)
    method = engine_method(ENGINE, answer.drafting.method, known)
    margin = answer.question.switching_gain
    plan = chain_plan(answer, graph_sizes(ENGINE), scheduled=known in method.scheduled, margin=margin)
    ngram = answer.drafting.method == "ngram"
    shaped = ngram or method.name in BLOCKS
    tree = None if shaped else best_tree(answer, plan, lambda _: True)
    path = needed_draft(answer, ENGINE, draft_path) if method.checkpoint else None
    flags = flags_of(answer, plan, tree, known)
    notes = [f"written for SGLang {known}", nearest]
    if known == "0.5":
        notes.append("steps by batch are not written before 0.5.23: scheduler and flags changed within 0.5")
    if tree is not None:
        notes += tree_notes(tree)
    else:
        why = too_small(plan, margin) if known in method.scheduled else method.untested
        notes += [*tree_note(answer), *tier_notes(plan, why or "the version does not read it")]
    if plan.dynamic and tree is None:
        notes.append(
            "SGLang cannot switch speculation off by batch; more than one number in candidate_steps lets it "
            "follow the acceptance that it sees"
        )
    if ngram:
        notes.append(
            "breadth 1 is written because a chain was priced; the engine's own default is a tree of 10"
        )
    notes += [*range_notes(plan, "--max-running-requests"), length_note(answer, "--context-length")]
    return EngineSettings(
        engine=ENGINE,
        version=known,
        text=f"{adaptive_file(flags)}{shlex.join(words(flags, path))}\n",
        notes=tuple(filter(None, notes)),
        plan=plan if tree is None else None,
    )
