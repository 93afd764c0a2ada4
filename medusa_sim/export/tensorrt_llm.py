"""TensorRT-LLM: the YAML of `--config` with `speculative_config` (chains; drafts by batch).

Read in the API reference of TensorRT-LLM 1.3.0rc29 and pull request NVIDIA/TensorRT-LLM#10860 (merged
2026-03-13). `draft_len_schedule` changed its meaning there: up to 1.2 `{1: 4, 4: 2, 8: 0}` reads "batch >=
key", from 1.3 `{4: 4, 8: 2, 32: 1}` reads "batch <= key, beyond the last 0". Medusa existed in the removed
engine backend only. `eagle_choices` exists, but its documentation speaks of one draft sequence: a chain.
"""

from __future__ import annotations

from medusa_sim.errors import UsageError
from medusa_sim.export.settings import (
    EngineSettings,
    as_chain,
    checked_version,
    needed_draft,
    one_length_note,
    speculating,
)
from medusa_sim.plan.recommend import Recommendation
from medusa_sim.plan.schedule_row import ScheduleRow

ENGINE = "tensorrt-llm"
VERSIONS = ("1.2", "1.3")
DECODING_TYPES = {"eagle": "Eagle3", "mtp": "MTP", "draft-model": "Draft_Target", "ngram": "NGram"}


def schedule(rows: list[ScheduleRow], version: str) -> dict[int, int]:
    """`draft_len_schedule` in the meaning of that version."""
    if version == "1.2":
        return {1 if i == 0 else row.batch_min: row.candidates - 1 for i, row in enumerate(rows)}
    last = max(i for i, row in enumerate(rows) if row.candidates > 1)
    return {row.batch_max: row.candidates - 1 for row in rows[: last + 1]}


def settings(answer: Recommendation, version: str | None, draft_path: str | None) -> EngineSettings:
    """A YAML file. Raises UsageError for Medusa, an unknown version or a missing checkpoint."""
    known = checked_version(ENGINE, version, VERSIONS)
    method = answer.drafting.method
    if method not in DECODING_TYPES:
        raise UsageError(
            f"tensorrt-llm has no {method} speculation any more (it went with the engine backend; it has "
            f"{', '.join(DECODING_TYPES)}); choose tgi or vllm"
        )
    chained, notes = as_chain(answer)
    rows = speculating(chained, ENGINE)
    drafts = max(row.candidates - 1 for row in rows)
    lines = [
        f"# TensorRT-LLM {known}, written by medusa-sim",
        "speculative_config:",
        f"  decoding_type: {DECODING_TYPES[method]}",
        f"  max_draft_len: {drafts}",
    ]
    if method in ("eagle", "draft-model"):
        lines.append(f"  speculative_model: {_scalar(needed_draft(answer, ENGINE, draft_path))}")
    if method == "ngram":
        lines.append("  max_matching_ngram_size: 5")
    if len(rows) > 1:
        by_batch = schedule(rows, known)
        if known == "1.2" and by_batch[1] != drafts:
            raise UsageError(
                "tensorrt-llm 1.2 wants its longest draft at batch 1, this schedule has it later; "
                "ask for one batch or write for 1.3"
            )
        lines += ["  draft_len_schedule:", *(f"    {batch}: {length}" for batch, length in by_batch.items())]
    return EngineSettings(
        engine=ENGINE,
        version=known,
        text="\n".join(lines) + "\n",
        notes=(f"written for TensorRT-LLM {known}", *notes, *one_length_note(answer)),
    )


def _scalar(text: str) -> str:
    """A double-quoted YAML scalar."""
    escaped = text.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'
