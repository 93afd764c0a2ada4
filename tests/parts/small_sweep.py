"""A sweep that is small and fast, which tests of parts cut up and compute."""

from pathlib import Path

import pandas as pd

from medusa_sim.api import Scenario
from medusa_sim.grid.axes import Grid
from medusa_sim.parts.folder import PartFolder
from medusa_sim.parts.running import Advance, Done, Shard, compute_here, run_parts
from medusa_sim.parts.works import SweepParts

FAST = {"runtime": "cuda-graph", "latency": "roofline"}
GRID = Grid.of(range(1, 9), [512, 1024, 2048], [1, 2, 4, 8, 16])
SWEEP = (
    "sweep", "--latency", "roofline", "--runtime", "cuda-graph", "--batch", "1..8:1", "--candidates", "1..8",
)  # fmt: skip


def scenarios() -> tuple[Scenario, ...]:
    return tuple(Scenario(gpu=gpu, **FAST) for gpu in ("a100-80gb-pcie", "l40s"))


def work(*, all_rows: bool = True, part_rows: int = 20) -> SweepParts:
    return SweepParts.of(scenarios(), GRID, all_rows=all_rows, part_rows=part_rows)


def read(folder: Path) -> pd.DataFrame:
    return pd.read_parquet(folder).astype({"gpu": str, "model": str})


def nothing(computed: int, rows: int) -> None:
    del computed, rows


def run_here(
    parts: SweepParts, folder: PartFolder, shard: Shard | None = None, advance: Advance = nothing
) -> Done:
    return run_parts(parts, folder, compute_here, advance, shard)
