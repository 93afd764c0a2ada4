"""SpecTr's K-SEQ selection among K independent draft tokens (Sun et al. 2023; RSD paper section 2)."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from medusa_sim.acceptance.draft_model.sd import checked_law, normalised
from medusa_sim.arrays import FloatArray

BISECTIONS = 60
"""Halvings of gamma's interval [1, K]: the error ends below 1e-16 K."""


def _beta(p: FloatArray, q: FloatArray, gamma: FloatArray) -> FloatArray:
    """beta_{p,q}(gamma) = sum_x min(p(x), q(x) / gamma)."""
    return np.asarray(np.minimum(p, q / gamma[..., None]).sum(axis=-1))


def _accepted(beta: FloatArray, draws: int) -> FloatArray:
    """1 - (1 - beta)^K, without cancellation for small beta."""
    return np.asarray(-np.expm1(draws * np.log1p(-np.minimum(beta, 1.0 - 1e-16))))


def k_seq_gamma(p: npt.ArrayLike, q: npt.ArrayLike, draws: int, bisections: int = BISECTIONS) -> FloatArray:
    """The smallest valid gamma, where gamma beta = 1 - (1 - beta)^K, by bisection per context.

    A smaller gamma would give a negative residual, a larger one (K is always valid) accepts less.
    The error is (K - 1) / 2^bisections, upwards.
    """
    draft, target = checked_law(p, "draft law"), checked_law(q, "target law")
    shape = np.broadcast_shapes(draft.shape, target.shape)[:-1]
    low, high = np.ones(shape), np.full(shape, float(draws))
    for _ in range(bisections):
        middle = (low + high) / 2.0
        beta = _beta(draft, target, middle)
        valid = middle * beta >= _accepted(beta, draws)
        low, high = np.where(valid, low, middle), np.where(valid, middle, high)
    return np.asarray(high)


def k_seq_acceptance(p: npt.ArrayLike, q: npt.ArrayLike, draws: int) -> FloatArray:
    """Probability that one of K independent draft tokens is accepted: 1 - (1 - beta(gamma))^K."""
    draft, target = checked_law(p, "draft law"), checked_law(q, "target law")
    return _accepted(_beta(draft, target, k_seq_gamma(draft, target, draws)), draws)


def k_seq_output_law(p: npt.ArrayLike, q: npt.ArrayLike, draws: int) -> FloatArray:
    """Law of the emitted token, accepted or redrawn from the residual; equals q."""
    draft, target = checked_law(p, "draft law"), checked_law(q, "target law")
    gamma = k_seq_gamma(draft, target, draws)
    taken = np.minimum(draft, target / gamma[..., None])
    beta = taken.sum(axis=-1)
    accepted = _accepted(beta, draws)
    scale = np.divide(accepted, beta, out=np.zeros_like(beta), where=beta > 0.0)
    through = taken * scale[..., None]
    left = normalised(np.maximum(target - through, 0.0), target)
    return np.asarray(through + (1.0 - accepted)[..., None] * left)
