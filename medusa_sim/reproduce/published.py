"""Figures that papers print, as shipped in `profiles/`, and the grids that the Medusa paper plots."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from medusa_sim import data
from medusa_sim.errors import SpecError
from medusa_sim.latency.measured import OPERATOR_PROFILES
from medusa_sim.operators.table import read_rows
from medusa_sim.reading import read_toml

if TYPE_CHECKING:
    import pandas as pd

PUBLISHED = "profiles/published"
PAPER_GPU = "a100-80gb-pcie"

BATCHES = (1, 2, 4, 8, 16, 32, 64)
SEQ_LENS = (128, 256, 512, 1024, 2048, 4096, 8192)
CANDIDATES = (1, 16, 32, 48, 64, 80, 96, 112)
"""Axes of the Medusa paper's Tables 6 to 8 and Figures 9 to 23."""


def read_published(name: str) -> pd.DataFrame:
    """Rows of `profiles/published/<name>.csv` as printed. Raises SpecError where the file is missing."""
    import pandas as pd

    return pd.read_csv(_shipped(f"{PUBLISHED}/{name}.csv"))


def cited(name: str) -> str:
    """Paper and place in which the rows of `profiles/published/<name>.csv` are printed."""
    meta = read_toml(_shipped(f"{PUBLISHED}/meta.toml"))
    entry = meta["files"][f"{name}.csv"]
    return f"{meta['papers'][entry['paper']]['source']}: {entry['where']}"


def operator_table(name: str) -> pd.DataFrame:
    """Checked operator rows of `profiles/operators/a100-80gb-pcie/<name>.csv`, one of the paper's tables.

    `published_tflops_per_s` and `published_op_intensity` are as printed; `time_us` follows from the first.
    """
    rows = read_rows(_shipped(f"{OPERATOR_PROFILES}/{PAPER_GPU}/{name}.csv"), need_time=True)
    columns = ("published_tflops_per_s", "published_op_intensity")
    return rows.assign(**{column: rows[column].astype(float) for column in columns})


def _shipped(path: str) -> Path:
    """A shipped file. The user's own data never stands in for what a paper printed."""
    found = data.shipped_dir() / path
    if not found.is_file():
        raise SpecError(f"{path} is missing: the installation is incomplete; install medusa-sim again")
    return found
