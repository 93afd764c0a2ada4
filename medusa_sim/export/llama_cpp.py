"""llama.cpp: `--spec-type` and `--spec-draft-n-max` of llama-server (chains, one number at every batch).

Read in docs/speculative.md and the options of llama-server of builds b9235 (draft-mtp) to b10532. A draft
stops early where its own probability falls below `--spec-draft-p-min`; 0 is written, because a chain of fixed
length was priced.
"""

from __future__ import annotations

import shlex

from medusa_sim.export.chains import chain_plan
from medusa_sim.export.names import Versions, engine_method
from medusa_sim.export.settings import (
    EngineSettings,
    length_note,
    needed_draft,
    range_notes,
    tier_notes,
    tree_note,
)
from medusa_sim.plan.recommendation import Recommendation

ENGINE = "llama-cpp"
VERSIONS = Versions(ENGINE, ("b9235", "b10532"), "b10532", ahead=None)


def settings(answer: Recommendation, version: str | None, draft_path: str | None) -> EngineSettings:
    """Flags for llama-server. Raises UsageError for Medusa, an unknown build or a missing checkpoint."""
    known, nearest = VERSIONS.chosen(version)
    method = engine_method(ENGINE, answer.drafting.method, known)
    plan = chain_plan(answer, (), scheduled=False, margin=0.0)
    flags = ["--spec-type", method.name]
    if method.checkpoint:
        flags += ["--spec-draft-model", needed_draft(answer, ENGINE, draft_path)]
    if answer.drafting.method == "ngram":
        flags += ["--spec-ngram-simple-size-m", str(plan.drafts)]
    else:
        flags += ["--spec-draft-n-max", str(plan.drafts), "--spec-draft-p-min", "0"]
    notes = [
        f"written for llama.cpp {known}",
        nearest,
        *tree_note(answer),
        *tier_notes(plan, "llama.cpp drafts one number at every batch"),
        *range_notes(plan, "--parallel"),
        length_note(answer, "--ctx-size"),
    ]
    return EngineSettings(
        engine=ENGINE,
        version=known,
        text=f"{shlex.join(flags)}\n",
        notes=tuple(filter(None, notes)),
        plan=plan,
    )
