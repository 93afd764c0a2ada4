"""How many experts do several tokens wake together? The law of the union against published counts.

    python benchmarks/expert_union.py            # a second of one core

Prints for chains and for trees the fitted exponent, its errors with one model left out, and those of tokens
that choose independently.
"""

from __future__ import annotations

import numpy as np
import pandas as pd
from common.script import command_line
from common.study import left_out, measured_rows
from scipy.optimize import minimize_scalar

from medusa_sim.arrays import FloatArray
from medusa_sim.step.expert_union import INDEPENDENT, OVERLAPS, Overlap, union


def errors(rows: pd.DataFrame, law: Overlap | float) -> FloatArray:
    """Predicted / measured - 1 of each row."""
    experts, topk, tokens, seen = (
        rows[name].to_numpy(dtype=np.float64) for name in ("experts", "topk", "tokens", "unique_measured")
    )
    return np.asarray(union(experts, topk, 1, tokens, law) / seen - 1.0)


def fitted_beta(rows: pd.DataFrame) -> float:
    """The exponent with the least squared error in the logarithm."""
    found = minimize_scalar(
        lambda beta: float(np.mean(np.log1p(errors(rows, beta)) ** 2)), bounds=(0.3, 1.2), method="bounded"
    )
    return float(found.x)


def main() -> None:
    """Print one line for chains and one for trees."""
    command_line(__doc__).parse_args()
    for kind, every in measured_rows("moe_expert_union").groupby("kind"):
        rows, law = every, OVERLAPS[str(kind)]
        held = left_out(
            rows["model"],
            lambda keep, rows=rows: fitted_beta(rows[keep]),  # type: ignore[misc]
            lambda beta, own, rows=rows: errors(rows[own], beta),  # type: ignore[misc]
        )
        held, own, alone = (np.abs(each) for each in (held, errors(rows, law), errors(rows, INDEPENDENT)))
        print(
            f"{kind}: {len(rows)} counts of {rows['model'].nunique()} models, beta {fitted_beta(rows):.2f} "
            f"(the project's {law.beta}: mean error {own.mean():.1%}, worst {own.max():.0%}); one model left "
            f"out: mean {held.mean():.1%}, worst {held.max():.0%}; independent tokens: {alone.mean():.0%}"
        )


if __name__ == "__main__":
    main()
