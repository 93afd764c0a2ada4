"""Errors of the RSD paper's pairs by group and by pair, for the bounds that tests hold."""

import numpy as np
import pandas as pd


def comparison_summary(comparison: pd.DataFrame) -> pd.DataFrame:
    """Mean absolute, signed mean and worst absolute error by group, over `predicted` rows and per pair."""
    unseen = comparison[comparison["group"] != "observed"]
    parts = [("all predicted", unseen), *unseen.groupby("group"), *unseen.groupby("pair")]
    return pd.DataFrame(
        [
            {
                "rows_of": name,
                "rows": len(part),
                "mean_absolute": float(part["error"].abs().mean()),
                "signed_mean": float(part["error"].mean()),
                "worst": float(np.abs(part["error"]).max()),
            }
            for name, part in parts
        ]
    )
