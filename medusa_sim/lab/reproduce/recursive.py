"""Figures of the recursive speculative decoding paper (arXiv 2402.14160), predicted beside published.

Its Figures 4 and 5 are block efficiencies of (target, draft, task) pairs.
"""

from __future__ import annotations

import functools
from pathlib import Path
from typing import TYPE_CHECKING, Literal, TypeVar

import numpy as np

from medusa_sim.arrays import FloatArray
from medusa_sim.errors import DataError
from medusa_sim.lab.block_efficiency.prediction import predicted_efficiencies
from medusa_sim.lab.block_efficiency.rejection import (
    k_seq_acceptance,
    multi_round_children,
    optimal_acceptance,
    recursive_children_of_draws,
)
from medusa_sim.lab.block_efficiency.shape import METHODS, parsed_shape
from medusa_sim.lab.reproduce.published import shipped
from medusa_sim.reading.tables import numbered_csv_table

if TYPE_CHECKING:
    import pandas as pd


BERNOULLI_DRAFTS = (0.1, 0.3, 0.5, 0.7, 0.9)
BERNOULLI_TARGETS = tuple(float(q) for q in np.round(np.linspace(0.0, 1.0, 21), 2))


def rsd_figure1() -> pd.DataFrame:
    """Figure 1: acceptance rate of four methods for Bernoulli draft and target, two draft tokens.

    Columns: draft_p, target_q, method, predicted_acceptance. The calculators are exact.
    """
    import pandas as pd

    drafts, targets = np.meshgrid(BERNOULLI_DRAFTS, BERNOULLI_TARGETS, indexing="ij")
    parts = [
        pd.DataFrame(
            {
                "draft_p": drafts.ravel(),
                "target_q": targets.ravel(),
                "method": method,
                "predicted_acceptance": acceptance.ravel(),
            }
        )
        for method, acceptance in bernoulli_acceptance(drafts, targets).items()
    ]
    return pd.concat(parts, ignore_index=True)


_DRAWS = 2
_INSIDE = 1e-15
"""At 0 or 1 the draft has no second token to draw; recursive rejection takes the limit from inside."""


def bernoulli_acceptance(p: FloatArray, q: FloatArray) -> dict[str, FloatArray]:
    """Acceptance rate by method for Bernoulli draft and target of means p and q (of one shape).

    Keys as in Figure 1: `Multi-Round SD`, `K-SEQ`, `OTM` (sampling with replacement) and `Recur. Rej. Samp.`
    (without), which is 1 everywhere: two distinct tokens are the whole vocabulary.
    """
    draft, target = (np.stack([1.0 - mean, mean], axis=-1) for mean in (p, q))
    inside = np.clip(np.ravel(p), _INSIDE, 1.0 - _INSIDE)
    pair = np.stack([1.0 - inside, inside], axis=-1), target.reshape(-1, 2)
    in_order = [
        recursive_children_of_draws(*pair, np.tile([first, 1 - first], (inside.size, 1))).sum(axis=-1)
        for first in range(2)
    ]
    return {
        "Multi-Round SD": np.asarray(multi_round_children(draft, target, _DRAWS).sum(axis=-1)),
        "K-SEQ": k_seq_acceptance(draft, target, _DRAWS),
        "OTM": optimal_acceptance(draft, target, _DRAWS),
        "Recur. Rej. Samp.": (pair[0] * np.stack(in_order, axis=-1)).sum(axis=-1).reshape(np.shape(p)),
    }


@functools.lru_cache(maxsize=1)
def _comparison() -> pd.DataFrame:
    """Every row of the paper's table, predicted once: both figures and their scores are read off it."""
    return pair_comparison(published_table())


def block_efficiencies(figure: Literal[4, 5]) -> pd.DataFrame:
    """Columns: pair, decoder, draft_length or budget, block efficiency and MBSU of both, error.

    Each (target, draft, task) is predicted from its own chains of length 2 to 5 alone.
    """
    frame = figure_rows(_comparison(), figure).rename(
        columns={"published": "published_block_efficiency", "predicted": "predicted_block_efficiency"}
    )
    frame["error"] = frame["predicted_block_efficiency"] / frame["published_block_efficiency"] - 1.0
    return frame


Numbers = TypeVar("Numbers", float, "pd.Series[float]")
FOLDER = "profiles/acceptance/rsd"
COLUMNS = ("target", "draft", "task", "experiment", "decoder", "spec", "block_efficiency", "draft_ratio")
OBSERVED_LENGTH_MAX = 5
"""SD rows up to this length are what a prediction may see."""

MISREAD_SPECS = {
    "112-1-1-1-1": "12-1-1-1-1",
    "25-1-1-1": "5-1-1-1",
    "26-1-1-1-1": "6-1-1-1-1",
    "25-1-1-1-1-1": "5-1-1-1-1-1",
}
"""Specs of the table that carry a digit of the row above. Appendix C.3 of the paper lists every tree
that was run, and the right-hand ones are in it."""


def published_table() -> Path:
    """The shipped copy of the paper's tables. SpecError when the installation lacks it."""
    return shipped(f"{FOLDER}/block_efficiency.csv")


def own_pair_table() -> Path:
    """The same of the shipped checkpoints (`benchmarks/own_pair.py`). SpecError where it is missing."""
    return shipped(f"{FOLDER}/own_pair.csv")


def read_block_efficiencies(path: Path) -> pd.DataFrame:
    """The table with one row per (target, draft, task, decoder, spec), autoregressive rows left out.

    Adds `pair` ("target / draft / task") and `experiments` ("length", "budget" or "budget length", where
    the row was printed); misread specs are corrected.

    Raises:
        DataError: missing columns, an unknown decoder, or no row.
    """
    frame = numbered_csv_table(path, COLUMNS, text=("spec",))
    frame = frame[frame["decoder"] != "AR"].copy()
    frame["spec"] = frame["spec"].replace(MISREAD_SPECS)
    frame["pair"] = frame["target"] + " / " + frame["draft"] + " / " + frame["task"]
    same = ["pair", "decoder", "spec"]
    printed = frame.groupby(same)["experiment"].agg(lambda names: " ".join(sorted(set(names))))
    frame = frame.drop_duplicates(same).merge(printed.rename("experiments").reset_index(), on=same)
    if frame.empty or not set(frame["decoder"]) <= set(METHODS):
        raise DataError(f"{path}: decoders {', '.join(METHODS)} are known, and at least one row is needed")
    return frame.reset_index(drop=True)


def mbsu(efficiency: Numbers, draft_length: Numbers, draft_ratio: Numbers) -> Numbers:
    """Memory-bound speed-up: efficiency / (L r + 1), r = draft size / target size (RSD appendix C.2).

    The paper's text gives r upside down (target / draft); its tables use draft / target.
    """
    return efficiency / (draft_length * draft_ratio + 1.0)


def pair_comparison(path: Path, also: tuple[str, str] | None = None) -> pd.DataFrame:
    """Predicted beside published for every row, each pair from its own SD rows of length 2..5 alone.

    also: decoder and spec of one tree that is observed too.

    Columns: pair, decoder, spec, experiments, length, budget (draft tokens a step may process), group
    (`observed`, `long chain` or the decoder), published, predicted, error (predicted / published - 1),
    published_mbsu, predicted_mbsu.
    """
    import pandas as pd

    frames, tree = [], None if also is None else parsed_shape(*also)
    for _, group in read_block_efficiencies(path).groupby("pair", sort=True):
        shapes = [parsed_shape(*row) for row in zip(group["decoder"], group["spec"], strict=True)]
        seen = [
            (shape.method == "SD" and 2 <= shape.length <= OBSERVED_LENGTH_MAX) or shape == tree
            for shape in shapes
        ]
        known = zip(shapes, group["block_efficiency"].tolist(), strict=True)
        observed = [each for each, given in zip(known, seen, strict=True) if given]
        unseen = ["long chain" if shape.method == "SD" else shape.method for shape in shapes]
        frames.append(
            group.assign(
                decoder=[shape.method for shape in shapes],
                length=[shape.length for shape in shapes],
                budget=[shape.candidates - 1 for shape in shapes],
                group=np.where(seen, "observed", unseen),
                predicted=predicted_efficiencies(observed, shapes),
            )
        )
    rows = pd.concat(frames, ignore_index=True).rename(columns={"block_efficiency": "published"})
    rows["error"] = rows["predicted"] / rows["published"] - 1.0
    for kind in ("published", "predicted"):
        rows[f"{kind}_mbsu"] = mbsu(rows[kind], rows["length"], rows["draft_ratio"])
    return rows[[
        "pair", "decoder", "spec", "experiments", "length", "budget", "group", "published", "predicted",
        "error", "published_mbsu", "predicted_mbsu",
    ]]  # fmt: skip


def figure_rows(comparison: pd.DataFrame, figure: Literal[4, 5]) -> pd.DataFrame:
    """The RSD paper's Figure 4 (by draft length) or 5 (by target budget): the best tree of each method.

    Columns: pair, decoder, draft_length or budget, then published and predicted block efficiency and
    MBSU, each the largest over the trees of appendix C.3 that the table gives.
    """
    axis = {4: "length", 5: "budget"}[figure]
    rows = comparison[comparison["experiments"].str.contains(axis)]
    values = ["published", "predicted", "published_mbsu", "predicted_mbsu"]
    best = rows.groupby(["pair", axis, "decoder"], as_index=False)[values].max()
    return best.rename(columns={"length": "draft_length"})
