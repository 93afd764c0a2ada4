"""Which drafted tokens a verification step keeps: greedy, typical, or by rejection.

Greedy and typical acceptance look at every node at once. Rejection, which keeps the target's distribution,
walks from the root: at each node its drafted children are tried in order (`rejection`); if all fail, one
token is drawn from what is left of the target's. Only drafted nodes can be accepted: a node without a parent
is padding.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from medusa_sim.arrays import FloatArray
from medusa_sim.lab.decoder.candidates import Draft
from medusa_sim.lab.decoder.distributions import Draws, distribution
from medusa_sim.lab.decoder.rejection import REJECTION_RULES

EPSILON, DELTA = 0.09, 0.3
"""Defaults of typical acceptance in public decoding (`posterior_threshold`, `posterior_alpha`)."""


class Accepted(NamedTuple):
    """What a step accepts of one sequence: nodes in order from depth 1; their tokens and the one after them.

    That last token's distribution is in the logits of the last accepted node, or of the root (node 0).
    """

    path: list[int]
    text: list[int]


def _accepted(path: list[int], tokens: Sequence[int], following: int) -> Accepted:
    """tokens: of all nodes."""
    return Accepted(path, [*(tokens[node] for node in path), following])


def accept_greedy(draft: Draft, logits: Tensor) -> list[Accepted]:
    """Keeps the longest path whose tokens are the argmax at their parents. logits: (batch, n, vocab)."""
    best = _likeliest(logits)
    if draft.tokens.shape[1] == 1:
        return [Accepted([], text) for text in best]
    accepted = []
    for tokens, wanted, shape in zip(draft.tokens.tolist(), best, draft.trees, strict=True):
        last, deeper = [0], [0]
        while deeper:
            last = deeper
            deeper = [c for node in last for c in shape.children[node] if tokens[c] == wanted[node]]
        accepted.append(_accepted(_path(shape.parents, last[0]), tokens, wanted[last[0]]))
    return accepted


def accept_typical(
    draft: Draft,
    logits: Tensor,
    *,
    temperature: float,
    epsilon: float = EPSILON,
    delta: float = DELTA,
    draws: Sequence[Draws] | None = None,
) -> list[Accepted]:
    """Keeps the longest path whose tokens all have p > min(epsilon, delta exp(-H)) (section 2.3.1).

    H is the entropy of p at the parent, p the distribution at `temperature`. Of paths of equal length the
    likeliest is kept. The next token is the argmax, as the paper's first token is always greedy, or, with
    `draws`, drawn from the typical tokens (`sampling="typical"` of the public code): text repeats less.
    """
    best = _likeliest(logits)
    accepted = []
    for b, (tokens, shape) in enumerate(zip(draft.tokens.tolist(), draft.trees, strict=True)):
        children = shape.children
        reached = {0: 0.0}  # nodes of one depth, and ln p of their paths
        deeper = reached
        while deeper:
            reached, deeper = deeper, {}
            for node, log_p in reached.items():
                if not children[node]:
                    continue
                each, threshold = _log_distribution(logits[b, node], temperature, epsilon, delta)
                own = {c: float(each[tokens[c]]) for c in children[node]}
                deeper |= {c: log_p + value for c, value in own.items() if value > threshold}
        last = max(reached, key=lambda node: (reached[node], -node))
        following: int = best[b][last]
        if draws is not None:
            following = typical_token(logits[b, last], temperature, draws[b], epsilon=epsilon, delta=delta)
        accepted.append(_accepted(_path(shape.parents, last), tokens, following))
    return accepted


def typical_token(
    logits: Tensor, temperature: float, draws: Draws, *, epsilon: float = EPSILON, delta: float = DELTA
) -> int:
    """One token drawn at `temperature` from those that typical acceptance keeps. logits: (vocab,)."""
    log_p, threshold = _log_distribution(logits, temperature, epsilon, delta)
    p = np.where(log_p > threshold, np.exp(log_p), 0.0)
    return draws.token(torch.from_numpy(p / p.sum())) if p.any() else int(logits.argmax())


def _log_distribution(
    logits: Tensor, temperature: float, epsilon: float, delta: float
) -> tuple[FloatArray, float]:
    """Ln p (vocab,) in fp64, and ln of the least probability of a typical token."""
    wide = logits.detach().to(device="cpu", dtype=torch.float64).numpy()
    with np.errstate(over="ignore"):
        log_p = (wide - wide.max()) / temperature
    p = np.exp(log_p)
    mass = p.sum()
    log_p -= np.log(mass)
    possible = p > 0.0
    least = min(epsilon, delta * math.exp(float(p[possible] @ log_p[possible]) / mass))
    return log_p, math.log(least) if least > 0.0 else -math.inf


def _likeliest(logits: Tensor) -> list[list[int]]:
    """Argmax of (batch, n, vocab) on the host."""
    tokens: list[list[int]] = logits.argmax(-1).tolist()
    return tokens


def _path(parents: list[int], last: int) -> list[int]:
    path = []
    while last > 0:
        path.append(last)
        last = parents[last]
    return path[::-1]


def accept_by_rejection(
    draft: Draft, logits: Tensor, *, temperature: float, draws: Sequence[Draws]
) -> list[Accepted]:
    """Keeps drafted tokens such that the emitted text has the target's distribution at `temperature`.

    One `draws` per sequence. Rules: `recursive` (drafts without replacement, or deterministic: RSD,
    Medusa, n-gram), `multi-round` (independent drafts: speculative decoding, SpecInfer), `k-seq` (SpecTr).
    """
    accepted = []
    for b, (tokens, shape) in enumerate(zip(draft.tokens.tolist(), draft.trees, strict=True)):
        distributions = None if draft.distributions is None else draft.distributions[b]
        rule = REJECTION_RULES["recursive" if distributions is None else draft.rejection_rule]
        path: list[int] = []
        here = [0]  # nodes with the same text: independent drafts may repeat each other, and share children
        while True:
            left = distribution(logits[b, here[0]], temperature)
            children = sorted(node for parent in here for node in shape.children[parent])
            drafted = [tokens[node] for node in children]
            if not children:
                break
            chosen, left = rule(
                left, None if distributions is None else distributions[here[0]], drafted, draws[b]
            )
            if chosen is None:
                break
            path.append(children[chosen])
            here = [node for node, token in zip(children, drafted, strict=True) if token == drafted[chosen]]
            here = [children[chosen]] if draft.rejection_rule == "recursive" else here
        accepted.append(_accepted(path, tokens, draws[b].token(left)))
    return accepted
