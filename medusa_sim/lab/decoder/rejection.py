"""Rejection of drafts at one node that keeps the target's distribution: recursive, multi-round and K-SEQ.

A rule takes two distributions, (vocab,) in fp64: the target's at the node, and the one that the drafts were
drawn from; then the drafts in order, and the draws that decide. It returns the index of the kept draft and
the target's distribution, or None and the distribution (vocab,) of the token to draw instead.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

import torch
from torch import Tensor

from medusa_sim.lab.block_efficiency.rejection import k_seq_gamma
from medusa_sim.lab.decoder.candidates import RejectionRule
from medusa_sim.lab.decoder.distributions import Draws

_MASS_MIN = 1e-14
"""A residual distribution with less mass than this is rounding: target and draft were equal."""


def _normalised(weights: Tensor, fallback: Tensor) -> Tensor:
    """What sums to 1: weights / sum; `fallback` where no mass is left (the distributions were equal)."""
    mass = weights.sum()
    return weights / mass if float(mass) > _MASS_MIN else fallback


def _ratio(target: float, draft: float) -> float:
    """min(1, target / draft); a token that the draft distribution calls impossible is never kept."""
    return min(1.0, target / draft) if draft > 0.0 else 0.0


def recursive_rejection(
    target: Tensor, draft: Tensor | None, drafted: Sequence[int], draws: Draws, *, strikes: bool = True
) -> tuple[int | None, Tensor]:
    """Drafts without replacement, in the order drawn (RSD paper, section 3.1; Sequoia's sampler).

    Returns the index of the kept draft, or None and the distribution of the token to draw instead. After each
    rejection target becomes norm((target - draft)+) and draft loses the rejected token (`strikes`) and is
    **renormalised**: without that the distribution is wrong from the third draft on. draft None: each
    draft is certain (1 on it).
    """
    for index, token in enumerate(drafted):
        own = float(target[token])
        if draws.happens(own if draft is None else _ratio(own, float(draft[token]))):
            return index, target
        if draft is None:
            rest = target.clone()
            rest[token] = 0.0
        else:
            rest = (target - draft).clamp(min=0.0)
            if strikes:
                draft = draft.clone()
                draft[token] = 0.0
                draft = _normalised(draft, draft)
        target = _normalised(rest, target)
    return None, target


multi_round_rejection = partial(recursive_rejection, strikes=False)
"""Independent drafts (SpecInfer; with one, speculative decoding): their distribution never changes."""


def k_seq(target: Tensor, draft: Tensor, drafted: Sequence[int], draws: Draws) -> tuple[int | None, Tensor]:
    """Independent drafts, each kept with min(1, target / (gamma draft)) (SpecTr, K-SEQ)."""
    k = len(drafted)
    gamma = float(k_seq_gamma(draft.numpy(), target.numpy(), k))
    for index, token in enumerate(drafted):
        if draws.happens(_ratio(float(target[token]), gamma * float(draft[token]))):
            return index, target
    kept = torch.minimum(draft, target / gamma)
    beta = float(kept.sum())
    share = (1.0 - (1.0 - beta) ** k) / beta if beta > _MASS_MIN else 0.0
    return None, _normalised((target - share * kept).clamp(min=0.0), target)


REJECTION_RULES: dict[RejectionRule, Callable[..., tuple[int | None, Tensor]]] = {
    "recursive": recursive_rejection,
    "multi-round": multi_round_rejection,
    "k-seq": k_seq,
}
"""By the name that a draft carries."""
