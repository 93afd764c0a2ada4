"""Rows per second of a large sweep: every column computed, nothing rendered, one thread.

2 GPUs x 2 models x 64 batches x 64 lengths x 128 counts, scope model, calibrated. numpy's
elementwise arithmetic uses no threads, and `make bench` allows BLAS one. Or run
`python benchmarks/sweep_rows.py --latency roofline`, or `--models qwen3-30b-a3b` for a mixture of experts.
"""

from __future__ import annotations

import argparse
import json
import resource
import time
from typing import TYPE_CHECKING

from medusa_sim.latency.by_name import LatencyName
from medusa_sim.plan.scenario import Scenario
from medusa_sim.plan.sweep import SweepTable, sweep
from medusa_sim.step.workload import Grid

if TYPE_CHECKING:
    from collections.abc import Sequence

GPUS = ("a100-80gb-pcie", "h100-sxm")
MODELS = ("vicuna-7b", "llama-2-70b")


def measured(
    latency: LatencyName, repeats: int, models: Sequence[str] = MODELS
) -> dict[str, float | int | str]:
    """Rows, the seconds of each repeat, and the peak memory of the process."""
    grid = Grid.of(range(1, 65), range(128, 128 * 64 + 1, 128), range(1, 129))
    scenarios = [
        Scenario(gpu=gpu, model=model, runtime="cuda-graph", latency=latency)
        for gpu in GPUS
        for model in models
    ]
    seconds = []
    rows = 0
    for _ in range(repeats):
        start = time.perf_counter()
        rows = sum(_complete(table) for table in sweep(scenarios, grid))
        seconds.append(time.perf_counter() - start)
    return {
        "latency": latency,
        "models": ",".join(models),
        "rows": rows,
        "best_s": min(seconds),
        "median_s": sorted(seconds)[len(seconds) // 2],
        "rows_per_s": rows / min(seconds),
        "peak_memory_bytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
    }


def _complete(table: SweepTable) -> int:
    """The rows of a table, after making sure that each has all its columns."""
    columns = {**table.text, **table.numbers, **table.codes}
    missing = set(table.COLUMNS) - set(columns)
    assert not missing, missing
    assert all(column.size == table.rows for column in (*table.numbers.values(), *table.codes.values()))
    return table.rows


def main(arguments: Sequence[str] | None = None) -> None:
    """Print one JSON object."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--latency", choices=("calibrated", "roofline"), default="calibrated")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--models", default=",".join(MODELS))
    given = parser.parse_args(arguments)
    print(json.dumps(measured(given.latency, given.repeats, given.models.split(","))))


if __name__ == "__main__":
    main()
