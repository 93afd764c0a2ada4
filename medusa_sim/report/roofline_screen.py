"""Operators under the roof, for people: what binds each phase, then a line for each operator."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from medusa_sim.gpus.gpu import Gpu
from medusa_sim.grid.quantity import BY_NAME
from medusa_sim.grid.roofline import roof_of
from medusa_sim.report.charts.roofline import PHASE_TITLES
from medusa_sim.report.screen import Fact, Screen
from medusa_sim.report.table import TextTable
from medusa_sim.report.words.numbers import duration, percent, significant, times
from medusa_sim.scenario.scenario import Scenario
from medusa_sim.units import GIGA, TERA

if TYPE_CHECKING:
    import pyarrow as pa


def roofline_screen(points: pa.Table, scenario: Scenario, asked: str) -> Screen:
    """Where the roof bends, what each phase waits for and reaches, its operators with the most work."""
    sentences = _sentences(points, scenario.gpu, scenario.shard.dtype)
    rows = points.to_pylist()
    most = [row for row in rows if row["batch"] == max(other["batch"] for other in rows)]
    last = {(row["phase"], row["op"]): row for row in sorted(most, key=lambda row: row["query_tokens"])}
    heaviest = list(last.values())
    heaviest.sort(key=lambda row: (list(PHASE_TITLES).index(row["phase"]), -row["time_us"]))
    title = "the largest batch and most tokens of each phase"
    return Screen(
        asked=(
            f"{asked}: {scenario.model.name} {scenario.model.numbers} on {scenario.gpus_text}, "
            f"{scenario.runtime.name}"
        ),
        answer=tuple(sentences),
        tables=(_table(heaviest, title),),
        details=(_table(rows, "every operator"),),
        facts=(
            Fact("Columns", "allowed: what the datasheet allows; bound by: what the operator waits for"),
            Fact("Next", f"--verbose lists all {len(rows)} points, --plot FILE.png draws them"),
        ),
    )


def _sentences(points: pa.Table, gpu: Gpu, dtype: str) -> list[str]:
    """Where the roof bends, and what each phase waits for and reaches."""
    roof = roof_of(gpu, dtype)
    lines = [
        f"{gpu.name} computes {significant(roof.peak_flops_per_s / TERA, 3)} TFLOP/s in {dtype} and reads "
        f"{significant(roof.bandwidth_bytes_per_s / GIGA, 4)} GB/s: below {roof.ridge:.0f} FLOP a byte an "
        "operator waits for memory."
    ]
    names = ("phase", "flops", "time_us", "flops_per_s", "roofline_flops_per_s", "bound")
    columns = {name: np.asarray(points.column(name).to_pylist()) for name in names}
    for phase, title in PHASE_TITLES.items():
        here = columns["phase"] == phase
        if not here.any():
            continue
        time_us = columns["time_us"][here]
        on_memory = time_us[columns["bound"][here] == "memory"].sum() / time_us.sum()
        allowed_us = time_us * columns["flops_per_s"][here] / columns["roofline_flops_per_s"][here]
        longer = float(time_us.sum() / allowed_us.sum())
        lines.append(
            f"In {title}, operators wait for memory {percent(float(on_memory), 0)} of the time and take "
            f"{times(longer)} as long as the datasheet allows."
        )
    return lines


def _table(rows: Sequence[Mapping[str, Any]], title: str) -> TextTable:
    """A line for each operator: work in GFLOP and GB, FLOP/byte, time, TFLOP/s predicted and allowed."""
    lengths = len({row["seq_len"] for row in rows}) > 1
    return TextTable.by_column(
        {
            "op": [str(row["op"]) for row in rows],
            "phase": [str(row["phase"]) for row in rows],
            "batch": [str(row["batch"]) for row in rows],
            **({"length": [str(row["seq_len"]) for row in rows]} if lengths else {}),
            "tokens": [str(row["query_tokens"]) for row in rows],
            "GFLOP": [significant(row["flops"] / GIGA, 4) for row in rows],
            "GB": [significant(row["bytes"] / GIGA, 3) for row in rows],
            "FLOP/byte": [significant(row["operational_intensity"], 3) for row in rows],
            "time": [duration(row["time_us"]) for row in rows],
            "TFLOP/s": [significant(row["flops_per_s"] / TERA, 3) for row in rows],
            "allowed": [significant(row["roofline_flops_per_s"] / TERA, 3) for row in rows],
            BY_NAME["bound"].title: [str(row["bound"]) for row in rows],
        },
        words=("op", "phase", BY_NAME["bound"].title),
        title=title,
        expendable=("GFLOP", "length", "GB", "batch", "tokens"),
    )
