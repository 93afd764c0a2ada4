"""The union of experts against published counts: fitted exponents, and errors with one model left out.

The counts are not part of this project (CONTRIBUTING.md); their folder is the argument, $MEDUSA_SIM_DATA, or
../shared/data.
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pandas as pd
from recorded import data_folder, present
from scipy.optimize import minimize_scalar
from scores import left_out

from medusa_sim.arrays import FloatArray
from medusa_sim.step.workload import INDEPENDENT, OVERLAPS, Overlap, union

ROOT = Path(__file__).resolve().parents[1]


def errors(rows: pd.DataFrame, law: Overlap | float) -> FloatArray:
    """Predicted / measured - 1 of each row."""
    sizes = (rows[name].to_numpy(dtype=np.float64) for name in ("experts", "topk", "tokens"))
    experts, topk, tokens = sizes
    found = union(experts, topk, 1, tokens, law)
    ratio: FloatArray = found / rows["unique_measured"].to_numpy(dtype=np.float64) - 1.0
    return ratio


def fitted_beta(rows: pd.DataFrame) -> float:
    """The exponent with the least squared error in the logarithm."""

    def cost(beta: float) -> float:
        return float(np.mean(np.log1p(errors(rows, beta)) ** 2))

    return float(minimize_scalar(cost, bounds=(0.3, 1.2), method="bounded").x)


def held_out(rows: pd.DataFrame) -> FloatArray:
    """Errors of each model's rows with the exponent of the others."""
    return left_out(
        rows["model"], lambda keep: fitted_beta(rows[keep]), lambda beta, own: errors(rows[own], beta)
    )


def main() -> None:
    """Print one line for chains and one for trees."""
    table = pd.read_csv(present(data_folder(*sys.argv[1:2]) / "engines" / "moe_expert_union.csv"))
    for kind, rows in table.groupby("kind"):
        law = OVERLAPS[str(kind)]
        held, own, alone = held_out(rows), errors(rows, law), errors(rows, INDEPENDENT)
        print(
            f"{kind}: {len(rows)} counts of {rows['model'].nunique()} models, beta {fitted_beta(rows):.2f} "
            f"(the project's {law.beta}: mean error {np.mean(np.abs(own)):.1%}, "
            f"worst {np.max(np.abs(own)):.0%}); "
            f"one model left out: mean {np.mean(np.abs(held)):.1%}, worst {np.max(np.abs(held)):.0%}; "
            f"independent tokens: {np.mean(np.abs(alone)):.0%}"
        )


if __name__ == "__main__":
    main()
