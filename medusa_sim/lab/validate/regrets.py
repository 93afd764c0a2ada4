"""What a wrong choice of count costs: chosen by predicted times of linear layers, paid in measured ones."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from medusa_sim.acceptance.profile import AcceptanceProfile
from medusa_sim.lab.validate.comparison import choice_of

if TYPE_CHECKING:
    import pandas as pd


REGRET_BATCHES = tuple(range(1, 17))
REGRET_CANDIDATES = (1, 8, *range(16, 129, 8))
_FEWEST_COUNTS = 4
"""Counts that must have been measured at a batch for a choice among them."""
_NOT_IN_A_LAYER = ("lm_head", "embed_tokens")


@dataclass(frozen=True, slots=True, kw_only=True)
class Regret:
    """Speedup given away by choosing the count with predicted times, for one group of linear layers.

    mean, worst: over the batches, as fractions of the attainable speedup; always_64: mean of always
    taking 64 candidates. worst_at: batch, chosen count and best count of the worst case.
    """

    model: str
    cases: int
    mean: float
    worst: float
    worst_at: str
    always_64: float


def regrets(frame: pd.DataFrame, acceptance: AcceptanceProfile) -> list[Regret]:
    """Choice regret of every model whose linear layers were all measured at the same m.

    A model is a value of the column `given_source` (or `model`); a layer's time is the sum over its
    linear layers. Cases are batches 1..16; counts 1, 8, 16..128 by 8 wherever batch x count was measured.
    """
    groups = next((name for name in ("given_source", "model") if name in frame), None)
    linear = frame[frame["m"].notna() & frame["n"].notna() & frame["k"].notna()]
    linear = linear[~linear["op"].isin(_NOT_IN_A_LAYER)]
    if groups is None or linear.empty:
        return []
    by_model = []
    for model, rows in linear.groupby(groups, sort=True):
        if rows["op"].nunique() >= 2:
            by_model += _model_regret(str(model), rows, acceptance)
    return by_model


def _model_regret(model: str, rows: pd.DataFrame, acceptance: AcceptanceProfile) -> list[Regret]:
    measured_at, predicted_at = (
        rows.pivot_table(index="m", columns="op", values=name, aggfunc="median").dropna()
        for name in ("time_us", "predicted_us")
    )
    sizes = measured_at.index.to_numpy(dtype=np.int64)
    measured = measured_at.to_numpy(dtype=np.float64).sum(axis=1)
    predicted = predicted_at.to_numpy(dtype=np.float64).sum(axis=1)
    candidates = np.asarray(REGRET_CANDIDATES, dtype=np.int64)
    tokens = acceptance.tokens_per_step(candidates)
    regret, always, baseline = [], [], []
    for batch in REGRET_BATCHES:
        present = np.isin(batch * candidates, sizes)
        if present.sum() < _FEWEST_COUNTS or not present[0]:
            continue
        at = np.searchsorted(sizes, batch * candidates[present])
        counts, gain = candidates[present].tolist(), tokens[present] / measured[at]
        choice = choice_of(model, batch, counts, gain, tokens[present] / predicted[at])
        regret.append(choice.regret)
        baseline.append(f"batch {batch}: {choice.predicted} for {choice.measured}")
        if 64 in counts:
            always.append(1.0 - float(gain[counts.index(64)] / gain.max()))
    if not regret:
        return []
    worst = int(np.argmax(regret))
    return [
        Regret(
            model=model,
            cases=len(regret),
            mean=float(np.mean(regret)),
            worst=regret[worst],
            worst_at=baseline[worst],
            always_64=float(np.mean(always)) if always else float("nan"),
        )
    ]
