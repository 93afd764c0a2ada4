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

import msgspec

from medusa_sim.export.chains import TreeShape
from medusa_sim.export.settings import Chosen, EngineExport, EngineMethod, Versions, require

ADAPTIVE_FILE = "speculative_adaptive.json"
_LATER = ("0.5.23",)
_UNREAD = "the version does not read it"
BLOCKS = ("DFLASH", "DSPARK")
"""Algorithms that draft a block in one pass."""


class SglangSlot(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Steps to choose from at the batches of one slot of `--speculative-adaptive-config` (SGLang 0.5.23)."""

    candidate_steps: list[int]

    def __post_init__(self) -> None:
        require(
            bool(self.candidate_steps) and min(self.candidate_steps) >= 1,
            "candidate_steps must be a non-empty list of whole numbers from 1",
        )


class SglangFlags(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True):
    """The speculative flags of `sglang.launch_server` (docs advanced_features/speculative_decoding).

    topk 1 forces draft tokens = steps + 1; a tree holds at most topk + (steps - 1) topk^2 drafts and the
    root, and runs with page_size 1 under the overlap scheduler, or without that scheduler.
    """

    algorithm: str
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
            require(
                self.num_draft_tokens is not None and self.num_draft_tokens >= 2, "NGRAM needs draft tokens"
            )
            return
        if self.algorithm in BLOCKS:
            require((self.block_size or 0) >= 1 and self.num_steps is None, "a block size, and no steps")
            return
        given = (self.num_steps, self.eagle_topk, self.num_draft_tokens)
        require(
            all(value is not None and value >= 1 for value in given), "steps, topk and tokens go together"
        )
        steps, topk, tokens = (value or 0 for value in given)
        if topk == 1:
            require(tokens == steps + 1, "topk 1 forces num_draft_tokens = num_steps + 1")
        else:
            require(tokens <= 1 + topk + (steps - 1) * topk**2, "more draft tokens than the tree can grow")
            require(self.page_size == 1 or self.disable_overlap_schedule, "topk above 1 needs page_size 1")
        if self.adaptive_slots is not None:
            require(
                self.algorithm in ("EAGLE", "EAGLE3") and topk == 1, "adaptive steps need EAGLE and topk 1"
            )
            require(min(self.adaptive_slots) == 1, "the first slot must start at batch 1")


def flags_of(chosen: Chosen) -> SglangFlags:
    """The flags without the checkpoint."""
    plan, tree = chosen.plan, chosen.tree
    algorithm = chosen.method.name
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
        """The lines that write the file, then the flags."""
        flags = flags_of(chosen)
        return f"{adaptive_file(flags)}{shlex.join(words(flags, chosen.draft_path))}\n"

    def synthetic(self, chosen: Chosen, length: float) -> Iterator[str]:
        """`SGLANG_SIMULATE_ACC_LEN` counts the bonus token."""
        flags = flags_of(chosen)
        if file := adaptive_file(flags):
            yield file.rstrip("\n")
        yield (
            f"SGLANG_SIMULATE_ACC_LEN={length:.2f} SGLANG_SIMULATE_ACC_METHOD=match-expected \\\n"
            "SGLANG_SIMULATE_ACC_TOKEN_MODE=real-draft-token \\\n"
            f"{self.server(chosen)} {shlex.join(words(flags, chosen.draft_path))} &"
        )

    def notes(self, chosen: Chosen) -> Iterator[str]:
        """Notes on single versions and methods."""
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


SGLANG = Sglang(
    name="sglang",
    title="SGLang",
    versions=Versions("sglang", ("0.5", "0.5.23"), "0.5.23"),
    why_one_number="SGLang adapts the steps of EAGLE and EAGLE3 only",
    missing_methods={
        "medusa": "it was never merged",
    },
    idle_drafter_costs=False,
    batch_option="--max-running-requests",
    length_option="--context-length",
    serve_command='python -m sglang.launch_server --model-path "$MODEL"',
    port=30000,
    bench_command=(
        "python -m sglang.bench_serving --backend sglang --port {port} "
        "{common} --random-range-ratio 1 --output-file {name}.jsonl"
    ),
    kv_dtypes=("fp8_e4m3", "bf16"),
    methods={
        "eagle": EngineMethod("EAGLE", checkpoint=True, scheduled=_LATER, untested=_UNREAD),
        "eagle3": EngineMethod("EAGLE3", checkpoint=True, scheduled=_LATER, untested=_UNREAD),
        "mtp": EngineMethod("EAGLE", checkpoint=False, scheduled=_LATER, untested=_UNREAD),
        "draft-model": EngineMethod("STANDALONE", checkpoint=True),
        "ngram": EngineMethod("NGRAM", checkpoint=False),
        "dflash": EngineMethod("DFLASH", checkpoint=True, versions=_LATER),
        "dspark": EngineMethod("DSPARK", checkpoint=True, versions=_LATER),
    },
    quantises_on_load=True,
    launch_options={
        "--tp": "tp",
        "--ep": "ep",
        "--enable-dp-attention": "is_dp",
        "--dp": "dp",
        "--max-running-requests": "requests",
        "--context-length": "max_tokens",
        "--quantization": "quantization",
        "--kv-cache-dtype": "kv_dtype",
    },
)
"""docs_new/docs/advanced_features/{speculative_decoding,adaptive_speculative_decoding}.mdx. Options of the
whole command: sglang/srt/server_args.py, 0.5.
"""
