"""Which drafted tokens a verification step keeps: greedy, typical, and rejection that keeps the law.

Greedy and typical acceptance look at every node at once. Rejection walks from the root: at each node
its drafted children are tried in order against the target's law p there; if all fail, one token is
drawn from what is left of p. p and q are fp64 (`draws.law`).

Only drafted nodes can be accepted: a node without a parent is padding and never counts.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from medusa_sim.decoder.draws import Draws, law
from medusa_sim.decoder.tree_attention import ancestor_mask

Rule = Literal["recursive", "multi-round", "k-seq"]
EPSILON, DELTA = 0.09, 0.3
"""Defaults of typical acceptance in public decoding (`posterior_threshold`, `posterior_alpha`)."""
_MASS_MIN = 1e-14
"""A residual law with less mass than this is rounding: p and q were equal."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Draft:
    """Candidates of one step. n nodes, the root (already emitted, not yet in the cache) first.

    tokens: (batch, n). parents: (batch, n), -1 for the root and for unused nodes, a parent before its
    children, siblings in the order in which they are to be tried. depths, mask: (batch, n) and
    (batch, n, n), or without the batch where all trees are alike. laws: q, from which the children of
    a node were drawn: (batch, n, vocab) fp64, or None where drafting is deterministic (q = 1).
    """

    tokens: Tensor
    parents: Tensor
    depths: Tensor
    mask: Tensor
    laws: Tensor | None = None
    rule: Rule = "recursive"

    @property
    def is_used(self) -> Tensor:
        """(batch, n) bool: the root and every node with a parent."""
        used = self.parents >= 0
        used[:, 0] = True
        return used


def draft_of(tokens: Tensor, parents: Tensor, laws: Tensor | None = None, rule: Rule = "recursive") -> Draft:
    """A draft whose trees differ between sequences: mask and depths from the parents."""
    mask = ancestor_mask(parents)
    return Draft(tokens=tokens, parents=parents, depths=mask.sum(-1) - 1, mask=mask, laws=laws, rule=rule)


@dataclass(frozen=True, slots=True)
class Verdict:
    """Accepted nodes (batch, d) in order from depth 1, entries after `counts` (batch,) undefined; the node
    whose logits gave the next token (batch,), and that token (batch,).
    """

    nodes: Tensor
    counts: Tensor
    last: Tensor
    next_tokens: Tensor


def accept_greedy(draft: Draft, logits: Tensor) -> Verdict:
    """Keeps the longest path whose tokens are the argmax at their parents. logits: (batch, n, vocab)."""
    best = logits.argmax(-1)
    matches = draft.tokens == torch.gather(best, 1, draft.parents.clamp(min=0))
    return _longest_path(draft, matches, torch.zeros_like(matches, dtype=torch.float32), best)


def accept_typical(
    draft: Draft, logits: Tensor, *, temperature: float, epsilon: float = EPSILON, delta: float = DELTA
) -> Verdict:
    """Keeps the longest path whose tokens all have p > min(epsilon, delta exp(-H)) (section 2.3.1).

    H is the entropy of p at the parent, p the law at `temperature`. Of paths of equal length the
    likeliest is kept. The next token is the argmax, as the paper's first token is always greedy.
    """
    wide = logits.to(torch.float64) / temperature
    log_p = torch.log_softmax(wide, dim=-1)
    entropy = -(log_p.exp() * log_p).nan_to_num(0.0).sum(-1)
    log_threshold = torch.minimum(torch.full_like(entropy, epsilon), delta * torch.exp(-entropy)).log()
    parents = draft.parents.clamp(min=0)
    token_log_p = log_p[torch.arange(log_p.shape[0], device=log_p.device)[:, None], parents, draft.tokens]
    passes = token_log_p > torch.gather(log_threshold, 1, parents)
    return _longest_path(draft, passes, token_log_p, logits.argmax(-1))


def _longest_path(draft: Draft, passes: Tensor, scores: Tensor, next_of_node: Tensor) -> Verdict:
    """The deepest node whose whole path passes; ties by the sum of scores, then by node order."""
    batch, nodes = draft.tokens.shape
    used = draft.is_used
    fails = used & ~passes
    fails[:, 0] = False
    mask = draft.mask.expand(batch, nodes, nodes)
    depths = draft.depths.expand(batch, nodes)
    is_kept = used & ~(mask & fails[:, None, :]).any(-1)
    counts = torch.where(is_kept, depths, torch.zeros_like(depths)).amax(-1)
    scores = scores.masked_fill(~used, 0.0)
    scores[:, 0] = 0.0
    path_score = torch.where(
        mask, scores[:, None, :], torch.zeros((), dtype=scores.dtype, device=scores.device)
    ).sum(-1)
    eligible = is_kept & (depths == counts[:, None])
    last = path_score.masked_fill(~eligible, -torch.inf).argmax(-1)
    rows = torch.arange(batch, device=last.device)
    on_path = mask[rows, last]  # (batch, n); ancestors sorted by depth are the path
    order = torch.where(on_path, depths, torch.full_like(depths, nodes)).argsort(dim=-1, stable=True)
    return Verdict(order[:, 1:], counts, last, next_of_node[rows, last])


def accept_by_rejection(
    draft: Draft, logits: Tensor, *, temperature: float, draws: Sequence[Draws]
) -> Verdict:
    """Keeps drafted tokens such that the emitted text has the target's law at `temperature`.

    One `draws` per sequence. Rules: `recursive` (drafts without replacement, or deterministic: RSD,
    Medusa, n-gram), `multi-round` (independent drafts: speculative decoding, SpecInfer), `k-seq` (SpecTr).
    """
    batch, nodes = draft.tokens.shape
    paths: list[list[int]] = []
    next_tokens: list[int] = []
    tokens, parents = draft.tokens.tolist(), draft.parents.tolist()
    for b in range(batch):
        path, token = _walk(draft, logits[b], b, tokens[b], parents[b], temperature, draws[b])
        paths.append(path)
        next_tokens.append(token)
    width = max(1, nodes - 1)
    padded = torch.tensor([path + [0] * (width - len(path)) for path in paths], device=logits.device)
    counts = torch.tensor([len(path) for path in paths], device=logits.device)
    last = torch.tensor([path[-1] if path else 0 for path in paths], device=logits.device)
    return Verdict(padded, counts, last, torch.tensor(next_tokens, device=logits.device))


def _walk(
    draft: Draft,
    logits: Tensor,
    b: int,
    tokens: list[int],
    parents: list[int],
    temperature: float,
    draws: Draws,
) -> tuple[list[int], int]:
    """Accepted nodes of one sequence and the token that follows them."""
    path: list[int] = []
    here = [0]  # nodes with the same text: independent drafts may repeat each other, and then share children
    while True:
        p = law(logits[here[0]], temperature)
        children = [node for node, parent in enumerate(parents) if parent in here]
        if not children:
            return path, draws.token(p)
        drafted = [tokens[node] for node in children]
        q = None if draft.laws is None else draft.laws[b, here[0]]
        chosen, left = _RULES[draft.rule](p, q, drafted, draws)
        if chosen is None:
            return path, draws.token(left)
        path.append(children[chosen])
        repeats = draft.rule != "recursive"
        here = [node for node, token in zip(children, drafted, strict=True) if token == drafted[chosen]]
        here = here if repeats else [children[chosen]]


def _normalised(weights: Tensor, fallback: Tensor) -> Tensor:
    """What sums to 1: weights / sum; `fallback` where no mass is left (p = q: rejection never happens)."""
    mass = weights.sum()
    return weights / mass if float(mass) > _MASS_MIN else fallback


def _ratio(p: float, q: float) -> float:
    """min(1, p / q); a token that the draft law calls impossible is never kept."""
    return min(1.0, p / q) if q > 0.0 else 0.0


def recursive_rejection(
    p: Tensor, q: Tensor | None, drafted: Sequence[int], draws: Draws
) -> tuple[int | None, Tensor]:
    """Drafts without replacement, in the order drawn (RSD paper, section 3.1; Sequoia's sampler).

    Returns the index of the kept draft, or None and the law of the token to draw instead. After each
    rejection p becomes norm((p - q)+) and q loses the rejected token and is **renormalised**: without
    that the law is wrong from the third draft on. q None: each draft is certain (q = 1 on it).
    """
    for index, token in enumerate(drafted):
        if q is None:
            if draws.happens(float(p[token])):
                return index, p
            rest = p.clone()
            rest[token] = 0.0
            p = _normalised(rest, p)
            continue
        if draws.happens(_ratio(float(p[token]), float(q[token]))):
            return index, p
        p = _normalised((p - q).clamp(min=0.0), p)
        q = q.clone()
        q[token] = 0.0
        q = _normalised(q, q)
    return None, p


def multi_round_rejection(
    p: Tensor, q: Tensor | None, drafted: Sequence[int], draws: Draws
) -> tuple[int | None, Tensor]:
    """Independent drafts from q (SpecInfer; with one draft, speculative decoding): q never changes."""
    if q is None:
        return recursive_rejection(p, None, drafted, draws)
    for index, token in enumerate(drafted):
        if draws.happens(_ratio(float(p[token]), float(q[token]))):
            return index, p
        p = _normalised((p - q).clamp(min=0.0), p)
    return None, p


def k_seq_factor(p: Tensor, q: Tensor, k: int) -> float:
    """The gamma of K-SEQ: the root of gamma beta(gamma) = 1 - (1 - beta(gamma))^k in [1, k].

    beta(gamma) = sum_x min(q(x), p(x) / gamma) is the chance that one draft is kept (SpecTr, algorithm 2).
    Below the root the residual would be negative, above it drafts are wasted.
    """
    p_array, q_array = p.numpy(), q.numpy()

    def excess(gamma: float) -> float:
        beta = float(np.minimum(q_array, p_array / gamma).sum())
        return gamma * beta - (1.0 - (1.0 - beta) ** k)

    low, high = 1.0, float(k)
    if excess(low) >= 0.0:
        return low
    for _ in range(55):  # to the last bit of fp64
        middle = 0.5 * (low + high)
        low, high = (low, middle) if excess(middle) >= 0.0 else (middle, high)
    return high


def k_seq(p: Tensor, q: Tensor | None, drafted: Sequence[int], draws: Draws) -> tuple[int | None, Tensor]:
    """Independent drafts, each kept with min(1, p / (gamma q)) (SpecTr, K-SEQ)."""
    if q is None:
        return recursive_rejection(p, None, drafted, draws)
    k = len(drafted)
    gamma = k_seq_factor(p, q, k)
    for index, token in enumerate(drafted):
        if draws.happens(_ratio(float(p[token]), gamma * float(q[token]))):
            return index, p
    kept = torch.minimum(q, p / gamma)
    beta = float(kept.sum())
    share = (1.0 - (1.0 - beta) ** k) / beta if beta > _MASS_MIN else 0.0
    return None, _normalised((p - share * kept).clamp(min=0.0), p)


_RULES = {"recursive": recursive_rejection, "multi-round": multi_round_rejection, "k-seq": k_seq}
