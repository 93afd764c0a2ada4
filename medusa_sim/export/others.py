"""Engines that take one number of drafts as flags (TGI, llama.cpp), and JSON for no engine in particular.

TGI: read in its documentation (conceptual/speculation, basic_tutorials/train_medusa, 3.3): a Medusa
repository given as `--model-id` is recognised by itself, its heads guess by argmax and no tree is built;
without heads `--speculate` drafts n-grams. The project is in maintenance mode and recommends vLLM, SGLang,
llama.cpp or MLX (huggingface.co/docs/text-generation-inference/en/index).

llama.cpp: read in docs/speculative.md and the options of llama-server of builds b9235 (draft-mtp) to b10532.
A draft stops early where its own probability falls below `--spec-draft-p-min`; 0 is written, because a chain
of fixed length was priced.

JSON: a versioned file with trees, for code of one's own.
"""

from __future__ import annotations

import json
import shlex
from typing import Any

from medusa_sim.export.settings import Chosen, EngineExport, EngineSettings, Versions
from medusa_sim.plan.quantities import scenario_values
from medusa_sim.plan.recommendation import Recommendation
from medusa_sim.plan.schedule_row import ScheduleRow


class Tgi(EngineExport):
    """The record of TGI."""

    def write(self, chosen: Chosen) -> str:
        """Flags for the launcher."""
        model = ["--model-id", chosen.draft_path] if chosen.draft_path is not None else []
        return f"{shlex.join([*model, '--speculate', str(chosen.plan.drafts)])}\n"

    def remarks(self, chosen: Chosen) -> tuple[str, ...]:
        """What its own documentation says of it."""
        del chosen
        return (
            "TGI is in maintenance mode and recommends vLLM, SGLang or llama.cpp; of drafters they serve, "
            "train EAGLE-3 or DFlash",
        )


class LlamaCpp(EngineExport):
    """The record of llama.cpp."""

    def write(self, chosen: Chosen) -> str:
        """Flags for llama-server."""
        flags, drafts = ["--spec-type", chosen.method.name], str(chosen.plan.drafts)
        if chosen.draft_path is not None:
            flags += ["--spec-draft-model", chosen.draft_path]
        if chosen.drafter == "ngram":
            flags += ["--spec-ngram-simple-size-m", drafts]
        else:
            flags += ["--spec-draft-n-max", drafts, "--spec-draft-p-min", "0"]
        return f"{shlex.join(flags)}\n"


def row_values(row: ScheduleRow) -> dict[str, Any]:
    """What running a row needs."""
    names = (
        "batch_min", "batch_max", "seq_len", "candidates", "drafts", "width", "chain", "paths",
        "tokens_per_step", "speedup",
    )  # fmt: skip
    values = {name: getattr(row, name) for name in names}
    return {**values, "paths": None if row.paths is None else [list(path) for path in row.paths]}


def json_settings(answer: Recommendation, version: str | None, draft_path: str | None) -> EngineSettings:
    """One object: what it was computed for and the schedule. Raises UsageError for an unknown version."""
    known, _ = Versions("json", ("1",), "1").chosen(version)
    values = {
        "schema": f"medusa-sim/schedule/{known}",
        **scenario_values(answer.scenario, "gpu", "model", "tp", "ep", "drafter"),
        "draft_path": draft_path,
        **scenario_values(answer.scenario, "acceptance"),
        "enable": answer.enable,
        "loses_from_length": answer.break_even_context.loses_from,
        "schedule": [row_values(row) for row in answer.schedule],
    }
    text = json.dumps(values, indent=1, allow_nan=False) + "\n"
    return EngineSettings(engine="json", version=known, text=text)
