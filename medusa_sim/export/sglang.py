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
from collections.abc import Callable, Iterator
from typing import cast

import msgspec

from medusa_sim.export.chains import TreeShape
from medusa_sim.export.schemas import BLOCKS, SglangAlgorithm, SglangFlags, SglangSlot
from medusa_sim.export.settings import Chosen, EngineExport, EngineMethod

ADAPTIVE_FILE = "speculative_adaptive.json"


def flags_of(chosen: Chosen) -> SglangFlags:
    """The flags without the checkpoint."""
    plan, tree = chosen.plan, chosen.tree
    algorithm = cast("SglangAlgorithm", chosen.method.name)
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
            page_size=1 if chosen.version == "0.5.23" else None,
            disable_overlap_schedule=chosen.version != "0.5.23",
        )
    slots = None
    if plan.dynamic:
        slots = {start: SglangSlot(candidate_steps=[tier.drafts]) for start, tier in chosen.starts}
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


class Sglang(EngineExport):
    """The record of SGLang."""

    def write(self, chosen: Chosen) -> str:
        """The flags, behind the lines that write the file."""
        flags = flags_of(chosen)
        return f"{adaptive_file(flags)}{shlex.join(words(flags, chosen.draft_path))}\n"

    def synthetic(self, chosen: Chosen, whole: float) -> Iterator[str]:
        """`SGLANG_SIMULATE_ACC_LEN` counts the bonus token."""
        flags = flags_of(chosen)
        if file := adaptive_file(flags):
            yield file.rstrip("\n")
        yield (
            f"SGLANG_SIMULATE_ACC_LEN={whole:.2f} SGLANG_SIMULATE_ACC_METHOD=match-expected \\\n"
            "SGLANG_SIMULATE_ACC_TOKEN_MODE=real-draft-token \\\n"
            f"{self.serve} --port {self.port} {shlex.join(words(flags, chosen.draft_path))} &"
        )

    def remarks(self, chosen: Chosen) -> Iterator[str]:
        """What is special to versions and methods."""
        if chosen.version == "0.5":
            yield "steps by batch are not written before 0.5.23: scheduler and flags changed within 0.5"
        if chosen.plan.dynamic and chosen.tree is None:
            yield (
                "SGLang cannot switch speculation off by batch; more than one number in candidate_steps lets "
                "it follow the acceptance that it sees"
            )
        if chosen.drafter == "ngram":
            yield "breadth 1 is written because a chain was priced; the engine's own default is a tree of 10"

    def trees(self, method: EngineMethod, version: str) -> Callable[[TreeShape], bool] | None:
        """Any, of what grows one."""
        del version
        return None if method.name == "NGRAM" or method.name in BLOCKS else lambda _: True
