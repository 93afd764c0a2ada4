"""Text Generation Inference: `--speculate N` (chains; Medusa heads come with the model id; n-gram).

Read in TGI's documentation (conceptual/speculation, basic_tutorials/train_medusa, 3.3): a Medusa
repository given as `--model-id` is recognised by itself, its heads guess by argmax and no tree is built;
without heads `--speculate` drafts n-grams. The project is in maintenance mode.
"""

from __future__ import annotations

import shlex

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

ENGINE = "tgi"
VERSIONS = ("3.3",)
METHODS = ("medusa", "ngram")


def settings(answer: Recommendation, version: str | None, draft_path: str | None) -> EngineSettings:
    """Flags for the launcher. Raises UsageError for other drafters, versions, or a missing checkpoint."""
    known = checked_version(ENGINE, version, VERSIONS)
    method = answer.drafting.method
    if method not in METHODS:
        raise UsageError(
            f"tgi has no {method} speculation (it has {', '.join(METHODS)}); choose vllm or sglang"
        )
    chained, notes = as_chain(answer)
    rows = speculating(chained, ENGINE)
    row = next(row for row in rows if row.candidates > 1)
    flags = ["--speculate", str(row.candidates - 1)]
    if method == "medusa":
        flags = ["--model-id", needed_draft(answer, ENGINE, draft_path), *flags]
    notes = (f"written for TGI {known}", *notes)
    if len(rows) > 1:
        notes += (
            f"TGI runs one number of drafts at every batch: this suits {row.batch_min}..{row.batch_max}",
        )
    return EngineSettings(
        engine=ENGINE,
        version=known,
        text=" ".join(map(shlex.quote, flags)) + "\n",
        notes=(*notes, *one_length_note(answer)),
    )
