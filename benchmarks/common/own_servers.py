"""Runs of servers that people gave to the project (profiles/servers), as `validate served` reads them."""

from __future__ import annotations

import pandas as pd

from common.measured_pairs import joined, pairs_of
from common.script import ROOT
from medusa_sim.lab.validate.served import compared, read_served


def pairs() -> pd.DataFrame:
    """Every run that can be priced as a pair (`common/measured_pairs.py`)."""
    return joined(
        pairs_of(
            runs.assign(
                engine=runs.runtime.str.rpartition("-")[0], version=runs.runtime.str.rpartition("-")[2],
                gpu=runs.gpu, gpus=runs.tp.fillna(1), requests=runs.concurrency, measured=runs.measured_ms,
                predicted=runs.predicted_ms, low=runs.low_ms, high=runs.high_ms, dtype=runs.dtype.fillna(""),
                tokens=runs.prompt.astype(str) + " + " + runs.output.astype(str), cell=path.stem,
                what=["time per token with drafts" if drafts else "time per token" for drafts in runs.drafts],
            ),
            kind="served", fitted="no", data=path.relative_to(ROOT).as_posix(),
        )
        for path in sorted((ROOT / "profiles" / "servers").glob("*.csv"))
        for runs in [compared(read_served(path)).query("refused == ''")]
    )  # fmt: skip
