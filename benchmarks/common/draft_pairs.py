"""Trees and long chains of pairs of target and draft, predicted from short chains of their own."""

from __future__ import annotations

from pathlib import Path

import pandas as pd

from common.measured_pairs import joined, pairs_of
from common.script import ROOT
from medusa_sim.lab.block_efficiency.prediction import prediction_band
from medusa_sim.lab.block_efficiency.shape import parsed_shape
from medusa_sim.lab.reproduce.recursive import own_pair_table, pair_comparison, published_table

TREE = ("SpecTr", "4x3")
"""Observed beside the chains, where one tree is."""


def compared(path: Path, also: tuple[str, str] | None) -> pd.DataFrame:
    """Every row that was not observed, with its band."""
    frame = pair_comparison(path, also=also)
    frame = frame[frame["group"] != "observed"].reset_index(drop=True)
    shapes = [parsed_shape(*row) for row in zip(frame["decoder"], frame["spec"], strict=True)]
    low, high = prediction_band(shapes, frame["predicted"].to_numpy(), with_tree=also is not None)
    inside = (frame["published"] >= low) & (frame["published"] <= high)
    return frame.assign(low=low, high=high, inside=inside)


def pairs() -> pd.DataFrame:
    """Every such row, from chains alone, as a pair (`common/measured_pairs.py`)."""
    found = {path: compared(path, None) for path in (published_table(), own_pair_table())}
    return joined(
        pairs_of(
            own.assign(measured=own.published, model=own["pair"], cell=own.decoder + " " + own.spec),
            kind="acceptance", what="tokens of a step, from chains", engine="draft model", gpu="", family="",
            fitted="no", data=path.relative_to(ROOT).as_posix(),
        )
        for path, own in found.items()
    )  # fmt: skip
