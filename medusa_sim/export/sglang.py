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

from medusa_sim.export.chains import TreeShape
from medusa_sim.export.settings import Chosen, EngineExport, EngineMethod, Versions, option_words

ADAPTIVE_FILE = "speculative_adaptive.json"
_LATER = ("0.5.23",)
_UNREAD = "the version does not read it"
BLOCKS = ("DFLASH", "DSPARK")
"""Algorithms that draft a block in one pass."""


def options(chosen: Chosen) -> dict[str, int | str | bool | None]:
    """The flags of `sglang.launch_server` that speculate, and their values; True where one stands alone."""
    plan, tree, algorithm = chosen.plan, chosen.tree, chosen.method.name
    given: dict[str, int | str | bool | None] = {
        "--speculative-algorithm": algorithm,
        "--speculative-draft-model-path": chosen.draft_path,
    }
    if algorithm == "NGRAM":
        breadth = {"--speculative-ngram-max-bfs-breadth": 1}
        return {**given, "--speculative-num-draft-tokens": plan.drafts + 1, **breadth}
    if algorithm in BLOCKS:
        block = f"--speculative-{algorithm.lower()}-block-size"
        return {**given, block: plan.drafts + (algorithm == "DFLASH")}
    given |= {
        "--speculative-num-steps": plan.drafts if tree is None else tree.depth,
        "--speculative-eagle-topk": 1 if tree is None else tree.width,
        "--speculative-num-draft-tokens": plan.drafts + 1 if tree is None else tree.candidates,
    }
    if tree is not None:
        is_later = chosen.version in _LATER
        given |= {"--page-size": 1} if is_later else {"--disable-overlap-schedule": True}
    elif plan.dynamic:
        given |= {"--speculative-adaptive": True, "--speculative-adaptive-config": ADAPTIVE_FILE}
    return given


def flags(chosen: Chosen) -> str:
    """The same as one types them."""
    return shlex.join(
        word for option, value in options(chosen).items() for word in option_words(option, value)
    )


def adaptive_file(chosen: Chosen) -> str:
    """The lines that write the file of steps by the smallest batch of a slot; nothing where there is none."""
    if not chosen.plan.dynamic or chosen.tree is not None:
        return ""
    slots = {str(start): {"candidate_steps": [tier.drafts]} for start, tier in chosen.starts}
    return f"cat > {ADAPTIVE_FILE} <<'EOF'\n{json.dumps(slots)}\nEOF\n"


class Sglang(EngineExport):
    """The record of SGLang."""

    def write(self, chosen: Chosen) -> str:
        """The lines that write the file, then the flags."""
        return f"{adaptive_file(chosen)}{flags(chosen)}\n"

    def synthetic(self, chosen: Chosen, length: float) -> Iterator[str]:
        """`SGLANG_SIMULATE_ACC_LEN` counts the bonus token."""
        if file := adaptive_file(chosen):
            yield file.rstrip("\n")
        yield (
            f"SGLANG_SIMULATE_ACC_LEN={length:.2f} SGLANG_SIMULATE_ACC_METHOD=match-expected \\\n"
            "SGLANG_SIMULATE_ACC_TOKEN_MODE=real-draft-token \\\n"
            f"{self.server(chosen)} {flags(chosen)} &"
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
