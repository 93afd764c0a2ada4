"""Where the measured rows lie that are not part of this project (CONTRIBUTING.md), and which GPU is which."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import pandas as pd

GPU_OF_ROWS = {
    "a100_sxm": "a100-80gb-sxm",
    "h100_sxm": "h100-sxm",
    "h200_sxm": "h200-sxm",
    "b200_sxm": "b200",
    "gb200": "gb200",
    "l40s": "l40s",
    "rtx_pro_6000_server": "rtx-pro-6000",
}
"""`gpu` of rows under moe_tp -> hardware file."""


def data_folder(given: str | Path = "") -> Path:
    """`given`, else $MEDUSA_SIM_DATA, else ../shared/data beside the checkout."""
    beside = Path(__file__).resolve().parents[2] / "shared" / "data"
    return Path(given or os.environ.get("MEDUSA_SIM_DATA") or beside)


def present(path: Path) -> Path:
    """The path; where measured rows are not there, the script ends with a line that says so."""
    if not path.exists():
        sys.exit(
            f"no rows at {path}: they are not part of this project (CONTRIBUTING.md); give the folder that "
            "holds them in MEDUSA_SIM_DATA"
        )
    return path


def named_rows(table: pd.DataFrame) -> Iterator[Any]:
    """Rows as named tuples; only the file knows the types of their columns."""
    return iter(table.itertuples())
