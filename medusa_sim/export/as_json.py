"""JSON for no engine in particular: a versioned file with trees, for code of one's own."""

from __future__ import annotations

import json
from typing import Any

from medusa_sim.export.settings import EngineSettings, Versions
from medusa_sim.grid.quantities import scenario_values
from medusa_sim.plan.recommendation import Recommendation
from medusa_sim.plan.schedule_row import ScheduleRow


def row_values(row: ScheduleRow) -> dict[str, Any]:
    """Values of one row that an engine needs to run it."""
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
