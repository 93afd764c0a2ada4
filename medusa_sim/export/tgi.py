"""Text Generation Inference: `--speculate N` (chains; Medusa heads come with the model id; n-gram).

Read in TGI's documentation (conceptual/speculation, basic_tutorials/train_medusa, 3.3): a Medusa
repository given as `--model-id` is recognised by itself, its heads guess by argmax and no tree is built;
without heads `--speculate` drafts n-grams. The project is in maintenance mode and recommends vLLM, SGLang,
llama.cpp or MLX (huggingface.co/docs/text-generation-inference/en/index).
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

ENGINE = "tgi"
VERSIONS = Versions(ENGINE, ("3.3",), "3.3")


def settings(answer: Recommendation, version: str | None, draft_path: str | None) -> EngineSettings:
    """Flags for the launcher. Raises UsageError for other drafters, versions, or a missing checkpoint."""
    known, nearest = VERSIONS.chosen(version)
    method = engine_method(ENGINE, answer.drafting.method, known)
    plan = chain_plan(answer, (), scheduled=False, margin=0.0)
    flags = ["--speculate", str(plan.drafts)]
    if method.checkpoint:
        flags = ["--model-id", needed_draft(answer, ENGINE, draft_path), *flags]
    notes = [
        f"written for TGI {known}",
        nearest,
        "TGI is in maintenance mode and recommends vLLM, SGLang or llama.cpp; of drafters they serve, train "
        "EAGLE-3 or DFlash",
        *tree_note(answer),
        *tier_notes(plan, "TGI runs one number at every batch"),
        *range_notes(plan, "--max-batch-size"),
        length_note(answer, "--max-total-tokens"),
    ]
    return EngineSettings(
        engine=ENGINE,
        version=known,
        text=f"{shlex.join(flags)}\n",
        notes=tuple(filter(None, notes)),
        plan=plan,
    )
