"""Figures of the recursive speculative decoding paper (arXiv 2402.14160), predicted beside published."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Literal

import numpy as np

from medusa_sim.data import DataDir
from medusa_sim.reproduce.target import Reproduction

if TYPE_CHECKING:
    import pandas as pd

PAPER = "Recursive Speculative Decoding, arXiv 2402.14160"
BERNOULLI_DRAFTS = (0.1, 0.3, 0.5, 0.7, 0.9)
BERNOULLI_TARGETS = tuple(float(q) for q in np.round(np.linspace(0.0, 1.0, 21), 2))


def rsd_figure1(data_dir: DataDir = None) -> Reproduction:
    """Figure 1: acceptance rate of four methods for Bernoulli draft and target, two draft tokens.

    Columns: draft_p, target_q, method, predicted_acceptance. The calculators are exact.
    """
    import pandas as pd

    from medusa_sim.acceptance.draft_model.rejection import bernoulli_acceptance

    del data_dir
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
    return Reproduction(
        name="rsd-figure1",
        title="RSD Figure 1: acceptance with Bernoulli draft and target, two draft tokens",
        source=f"{PAPER}, section 3 and Figure 1",
        caveat="exact calculators; the paper's figure is a plot without printed values",
        frame=pd.concat(parts, ignore_index=True),
    )


def rsd_figure4(data_dir: DataDir = None) -> Reproduction:
    """Figure 4: block efficiency and MBSU by draft length, best tree of each method."""
    return _block_efficiencies(4, data_dir)


def rsd_figure5(data_dir: DataDir = None) -> Reproduction:
    """Figure 5: block efficiency and MBSU by target budget, best tree of each method."""
    return _block_efficiencies(5, data_dir)


@functools.lru_cache(maxsize=1)
def _comparison() -> pd.DataFrame:
    """Every row of the paper's table, predicted once: both figures and their scores are read off it."""
    from medusa_sim.reproduce.rsd_pairs import pair_comparison, published_table

    return pair_comparison(published_table())


def _block_efficiencies(figure: Literal[4, 5], data_dir: DataDir) -> Reproduction:
    """Columns: pair, decoder, draft_length or budget, block efficiency and MBSU of both, error.

    Each (target, draft, task) is predicted from its own chains of length 2 to 5 alone.
    """
    from medusa_sim.reproduce.rsd_pairs import figure_rows

    del data_dir
    frame = figure_rows(_comparison(), figure).rename(
        columns={"published": "published_block_efficiency", "predicted": "predicted_block_efficiency"}
    )
    frame["error"] = frame["predicted_block_efficiency"] / frame["published_block_efficiency"] - 1.0
    axis = {4: "draft length", 5: "target budget"}[figure]
    return Reproduction(
        name=f"rsd-figure{figure}",
        title=f"RSD Figure {figure}: block efficiency and MBSU by {axis}",
        source=f"{PAPER}, Figure {figure} and the tables of appendix C",
        caveat=(
            "each pair is predicted from its own SD rows of length 2 to 5; six constants of the model were "
            "chosen on these seven pairs (mean over pairs 2.6 % when chosen on the other six)"
        ),
        frame=frame,
    )
