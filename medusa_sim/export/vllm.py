"""vLLM: `--speculative-config` JSON (chains; drafts by batch for methods that allow it).

Read in the documentation of vLLM 0.24 (docs/features/speculative_decoding/dynamic_speculative_decoding.md)
and the source of vllm/config/speculative.py, 0.26: `num_speculative_tokens_per_batch_size` is a list of
inclusive `[low, high, K]` whose first range starts at 1; K is at most `num_speculative_tokens` and 0 switches
speculation off. Tree attention was removed from the engine, so every method verifies a chain.
"""

from __future__ import annotations

import json
import shlex
from typing import Any

from medusa_sim.export.settings import (
    EngineSettings,
    as_chain,
    checked_version,
    needed_draft,
    one_length_note,
    speculating,
)
from medusa_sim.plan.recommend import Recommendation

ENGINE = "vllm"
VERSIONS = ("0.24", "0.26")
METHODS = {
    "medusa": "medusa",
    "eagle": "eagle3",
    "mtp": "mtp",
    "draft-model": "draft_model",
    "ngram": "ngram",
}
SCHEDULED = ("eagle", "mtp", "draft-model")
"""Methods whose number of drafts may follow the batch; Medusa and n-gram run a fixed number."""


def config(answer: Recommendation, draft_path: str | None) -> tuple[dict[str, Any], tuple[str, ...]]:
    """The value of `--speculative-config` and its notes."""
    chained, notes = as_chain(answer)
    rows = speculating(chained, ENGINE)
    method = answer.drafting.method
    drafts = max(row.candidates - 1 for row in rows)
    values: dict[str, Any] = {"method": METHODS[method]}
    if method not in ("ngram", "mtp"):
        values["model"] = needed_draft(answer, ENGINE, draft_path)
    if method == "ngram":
        values |= {"prompt_lookup_min": 2, "prompt_lookup_max": 5}
    ends = [row.batch_max for row in rows]
    starts = [1, *(end + 1 for end in ends[:-1])]
    schedule = [[start, end, row.candidates - 1] for start, end, row in zip(starts, ends, rows, strict=True)]
    if rows[0].batch_min > 1:
        notes += (f"batches below {rows[0].batch_min} were not searched and use its number of drafts",)
    if method in SCHEDULED and len(schedule) > 1:
        values["num_speculative_tokens"] = drafts
        values["num_speculative_tokens_per_batch_size"] = schedule
    else:
        first = next(row for row in rows if row.candidates > 1)
        values["num_speculative_tokens"] = first.candidates - 1
        if len(schedule) > 1:
            notes += (
                f"vLLM runs a fixed number of drafts with {METHODS[method]}: {first.candidates - 1} suits "
                f"batch {first.batch_min}..{first.batch_max}; beyond, the schedule asks for "
                + ", ".join(f"{k} at {low}..{high}" for low, high, k in schedule[1:]),
            )
    if method == "eagle":
        notes += ("method eagle3 is written; use eagle for a checkpoint of EAGLE or EAGLE-2",)
    return values, notes


def settings(answer: Recommendation, version: str | None, draft_path: str | None) -> EngineSettings:
    """One line for `vllm serve`. Raises UsageError for an unknown version or a missing checkpoint."""
    known = checked_version(ENGINE, version, VERSIONS)
    values, notes = config(answer, draft_path)
    text = f"--speculative-config {shlex.quote(json.dumps(values))}\n"
    notes = (f"written for vLLM {known}", *notes, *one_length_note(answer))
    return EngineSettings(engine=ENGINE, version=known, text=text, notes=notes)
