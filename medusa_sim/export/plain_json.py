"""Settings for no engine in particular: a versioned JSON file with trees, for code of one's own."""

from __future__ import annotations

import json
from typing import Any

from medusa_sim.export.names import Versions
from medusa_sim.export.settings import EngineSettings
from medusa_sim.plan.recommendation import Recommendation
from medusa_sim.plan.schedule import ScheduleRow

ENGINE = "json"
VERSIONS = Versions(ENGINE, ("1",), "1")


def row_values(row: ScheduleRow) -> dict[str, Any]:
    """What running a row needs."""
    return {
        "batch_min": row.batch_min,
        "batch_max": row.batch_max,
        "seq_len": row.seq_len,
        "candidates": row.candidates,
        "drafts": row.drafts,
        "width": row.width,
        "chain": row.chain,
        "paths": None if row.paths is None else [list(path) for path in row.paths],
        "tokens_per_step": row.tokens_per_step,
        "speedup": row.speedup,
    }


def settings(answer: Recommendation, version: str | None, draft_path: str | None) -> EngineSettings:
    """One object: what it was computed for and the schedule. Raises UsageError for an unknown version."""
    known, _ = VERSIONS.chosen(version)
    values = {
        "schema": f"medusa-sim/schedule/{known}",
        "gpu": answer.gpu.name,
        "model": answer.setting.model.name,
        "tp": answer.scenario.parallel.tp,
        "ep": answer.scenario.parallel.ep,
        "drafter": answer.drafting.method,
        "draft_path": draft_path,
        "acceptance": answer.profile.name,
        "enable": answer.enable,
        "loses_from_length": answer.break_even_context.loses_from,
        "schedule": [row_values(row) for row in answer.schedule],
    }
    text = json.dumps(values, indent=1, allow_nan=False) + "\n"
    return EngineSettings(engine=ENGINE, version=known, text=text)
