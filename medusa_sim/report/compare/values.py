"""A comparison as plain values and as rows, in full precision."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from medusa_sim.report.compare.screen import launch_text
from medusa_sim.report.compare.sentences import sentence, surer_text
from medusa_sim.report.compare.warnings import price_notes
from medusa_sim.report.formats import json_row, json_value
from medusa_sim.report.words.caveats import as_sentence
from medusa_sim.report.words.measured import measured_text
from medusa_sim.setups.comparison import Comparison
from medusa_sim.setups.setup import SET_UP

if TYPE_CHECKING:
    import pandas as pd

    from medusa_sim.setups.loaded import Loaded


def with_warnings(answer: Comparison) -> pd.DataFrame:
    """The table with a column `warnings`: numbers, from 1, of each row's own in `Comparison.warnings`."""
    number = {line: place for place, line in enumerate(answer.warnings, start=1)}
    warned = {
        key: " ".join(str(number[line]) for line in lines) for key, lines in answer.warnings_by_set_up.items()
    }
    keys = answer.table[list(SET_UP)].itertuples(index=False, name=None)
    return answer.table.assign(warnings=[warned[key] for key in keys])


def compare_values(
    answer: Comparison, fleets: Sequence[Loaded] = (), draft_path: str | None = None
) -> dict[str, Any]:
    """Values of the JSON besides its rows."""
    return {
        "answer": sentence(answer),
        "surer": as_sentence(surer_text(answer)) if surer_text(answer) else "",
        "launch": launch_text(answer, draft_path),
        "under_load": [
            {
                **{name: json_row(fleet.row)[name] for name in (*SET_UP, "drafts", "batch")},
                "gpus": fleet.gpus,
                "replicas": fleet.replicas,
                "goodput_share": fleet.share,
                "usd_per_million_tokens": json_value(fleet.usd_per_million_tokens),
                "metrics": {name: json_value(value) for name, value in fleet.point.mean.items()},
            }
            for fleet in fleets
        ],
        "measured": as_sentence(measured_text(answer)),
        "measure": answer.measure,
        "chosen": answer.chosen and json_row(answer.chosen),
        "chosen_without_speculation": answer.chosen_plain and json_row(answer.chosen_plain),
        "runners_up": [json_row(row) for row in answer.runners_up.to_dict("records")],
        "refused": [{"setup": item.setup, "reason": item.reason} for item in answer.refused],
        "warnings": [*answer.warnings, *price_notes(answer)],
    }
