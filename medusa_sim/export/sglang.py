"""SGLang: the `--speculative-*` flags (trees by depth, top-k and size; one setting for all batches).

Read in SGLang's documentation (advanced_features/speculative_decoding, 0.5): num-draft-tokens counts the
root, eagle-topk 1 forces num-draft-tokens = num-steps + 1, and all three are given or none. The engine
grows its own tree of that shape; an explicit list of paths cannot be given, and Medusa was never merged.
"""

from __future__ import annotations

import shlex

from medusa_sim.errors import UsageError
from medusa_sim.export.settings import (
    EngineSettings,
    checked_version,
    needed_draft,
    one_length_note,
    speculating,
)
from medusa_sim.plan.recommend import Recommendation

ENGINE = "sglang"
VERSIONS = ("0.5",)
ALGORITHMS = {"eagle": "EAGLE3", "mtp": "EAGLE", "draft-model": "STANDALONE", "ngram": "NGRAM"}


def settings(answer: Recommendation, version: str | None, draft_path: str | None) -> EngineSettings:
    """Flags for `python -m sglang.launch_server`.

    Raises UsageError for Medusa, an unknown version or a missing checkpoint.
    """
    known = checked_version(ENGINE, version, VERSIONS)
    method = answer.drafting.method
    if method not in ALGORITHMS:
        raise UsageError(
            f"sglang has no {method} speculation (it was never merged; it has {', '.join(ALGORITHMS)}); "
            "train an EAGLE layer or choose tgi or vllm"
        )
    rows = speculating(answer, ENGINE)
    row = next(row for row in rows if row.candidates > 1)
    flags = ["--speculative-algorithm", ALGORITHMS[method]]
    notes = [f"written for SGLang {known}"]
    if method in ("eagle", "draft-model"):
        flags += ["--speculative-draft-model-path", needed_draft(answer, ENGINE, draft_path)]
    if method == "ngram":
        flags += ["--speculative-num-draft-tokens", str(row.candidates)]
    else:
        topk = max(row.width, 1)
        flags += [
            "--speculative-num-steps", str(row.drafts),
            "--speculative-eagle-topk", str(topk),
            "--speculative-num-draft-tokens", str(row.candidates),
        ]  # fmt: skip
        if topk > 1:
            notes.append(
                "the engine grows a tree of this depth, top-k and size at run time from the draft's own "
                "scores; the listed paths cannot be given to it"
            )
    if method == "eagle":
        notes.append("EAGLE3 is written; use EAGLE for a checkpoint of EAGLE or EAGLE-2")
    if len(rows) > 1:
        told = ", ".join(
            f"{other.candidates if other.candidates > 1 else 'off'} at {other.batch_min}..{other.batch_max}"
            for other in rows
            if other is not row
        )
        notes.append(
            f"SGLang runs one setting at every batch: this suits {row.batch_min}..{row.batch_max}; the "
            f"schedule asks for {told} (draft tokens)"
        )
    return EngineSettings(
        engine=ENGINE,
        version=known,
        text=" ".join(map(shlex.quote, flags)) + "\n",
        notes=(*notes, *one_length_note(answer)),
    )
