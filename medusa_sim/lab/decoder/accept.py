"""Which drafted tokens a verification step keeps: greedy, typical, and rejection that keeps the law.

Greedy and typical acceptance look at every node at once. Rejection walks from the root: at each node
its drafted children are tried in order against the target's law there; if all fail, one token is
drawn from what is left of it. The laws `target` and `draft` are fp64 (`law`).

Only drafted nodes can be accepted: a node without a parent is padding and never counts.

Random decisions of drafting and acceptance all go through one object, so that tests can enumerate them. Laws
are fp64 on the CPU: acceptance must not be decided in half precision.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Literal

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from medusa_sim.arrays import FloatArray
from medusa_sim.lab.decoder.cache import ancestor_mask


def law(logits: Tensor, temperature: float) -> Tensor:
    """softmax(logits / temperature) in fp64 on the CPU; the one-hot argmax at temperature 0.

    logits: (..., vocab).
    """
    wide = logits.detach().to(device="cpu", dtype=torch.float64)
    if temperature == 0.0:
        return torch.zeros_like(wide).scatter_(-1, wide.argmax(-1, keepdim=True), 1.0)
    # Shifted first: a tiny temperature must not make infinities of finite logits.
    return torch.softmax((wide - wide.amax(-1, keepdim=True)) / temperature, dim=-1)


def padded_top(values: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """The `count` largest values (..., n) in order and their places; -inf and -1 where there are no more."""
    top = values.topk(min(count, values.shape[-1]), dim=-1)
    padding = (0, count - top.values.shape[-1])
    best = functional.pad(top.values, padding, value=-torch.inf)
    return best, functional.pad(top.indices, padding, value=-1).masked_fill(best.isneginf(), -1)


class Draws:
    """Random decisions of one sequence. Each sequence has its own, so a batch does not change its text."""

    def __init__(self, seed: int) -> None:
        self.generator = torch.Generator().manual_seed(seed)

    def happens(self, probability: float) -> bool:
        """True with that probability."""
        return float(torch.rand((), dtype=torch.float64, generator=self.generator)) < probability

    def token(self, p: Tensor) -> int:
        """One token from the law p (vocab,)."""
        return int(torch.multinomial(p, 1, generator=self.generator))

    def tokens_with_replacement(self, laws: Tensor, count: int) -> Tensor:
        """(rows, count) independent tokens from each row of laws (rows, vocab)."""
        return torch.multinomial(laws, count, replacement=True, generator=self.generator)

    def tokens_without_replacement(self, laws: Tensor, count: int) -> Tensor:
        """(rows, count) distinct tokens in the order drawn (Gumbel top-k); -1 behind the support's end."""
        return padded_top(laws.log() + self.gumbel(laws.shape), count)[1]

    def gumbel(self, shape: torch.Size) -> Tensor:
        """Standard Gumbel variables, fp64."""
        uniform = torch.rand(shape, dtype=torch.float64, generator=self.generator)
        tiny = torch.finfo(torch.float64).tiny
        return -(-uniform.clamp(min=tiny).log()).clamp(min=tiny).log()


Rule = Literal["recursive", "multi-round", "k-seq"]
EPSILON, DELTA = 0.09, 0.3
"""Defaults of typical acceptance in public decoding (`posterior_threshold`, `posterior_alpha`)."""
_MASS_MIN = 1e-14
"""A residual law with less mass than this is rounding: target and draft were equal."""


class TreeShape:
    """A tree on the host: the parent of every node (-1: none), and its children as they are to be tried."""

    __slots__ = ("children", "parents")

    def __init__(self, parents: list[int]) -> None:
        self.parents = parents
        self.children: list[list[int]] = [[] for _ in parents]
        for node, parent in enumerate(parents):
            if parent >= 0:
                self.children[parent].append(node)


@dataclass(frozen=True, slots=True, kw_only=True)
class Draft:
    """Candidates of one step: n nodes, the root (already emitted, not yet in the cache) first."""

    tokens: Tensor
    """(batch, n)."""
    parents: Tensor | TreeShape
    """(batch, n), -1 for the root and unused nodes, a parent before its children, siblings as they are tried;
    the shape where all trees are alike.
    """
    depths: Tensor
    """(batch, n), or (n,) where all trees are alike."""
    mask: Tensor
    """(batch, n, n), or (n, n): which nodes each node sees."""
    laws: Tensor | None = None
    """(batch, n, vocab) fp64: what the children of a node were drawn from; None: drafts are certain."""
    rule: Rule = "recursive"
    """How rejection treats siblings."""

    @property
    def shapes(self) -> list[TreeShape]:
        """The tree of each sequence."""
        if isinstance(self.parents, TreeShape):
            return [self.parents] * self.tokens.shape[0]
        return [TreeShape(parents) for parents in self.parents.tolist()]


def draft_of(tokens: Tensor, parents: Tensor, laws: Tensor | None = None, rule: Rule = "recursive") -> Draft:
    """A draft whose trees differ between sequences: mask and depths from the parents."""
    mask = ancestor_mask(parents)
    return Draft(tokens=tokens, parents=parents, depths=mask.sum(-1) - 1, mask=mask, laws=laws, rule=rule)


@dataclass(slots=True)
class Verdict:
    """Of each sequence: the accepted nodes in order from depth 1, and their tokens and the one after them.

    That last token's law is in the logits of the last accepted node, or of the root (node 0).
    """

    paths: list[list[int]] = field(default_factory=list)
    texts: list[list[int]] = field(default_factory=list)

    def add(self, path: list[int], tokens: Sequence[int], following: int) -> None:
        """The next sequence's, whose nodes hold `tokens`."""
        self.paths.append(path)
        self.texts.append([*(tokens[node] for node in path), following])

    @property
    def next_tokens(self) -> list[int]:
        """What follows the accepted nodes."""
        return [text[-1] for text in self.texts]


def accept_greedy(draft: Draft, logits: Tensor) -> Verdict:
    """Keeps the longest path whose tokens are the argmax at their parents. logits: (batch, n, vocab)."""
    best = _likeliest(logits)
    if draft.tokens.shape[1] == 1:
        return Verdict([[] for _ in best], best)
    verdict = Verdict()
    for tokens, wanted, shape in zip(draft.tokens.tolist(), best, draft.shapes, strict=True):
        last, deeper = [0], [0]
        while deeper:
            last = deeper
            deeper = [c for node in last for c in shape.children[node] if tokens[c] == wanted[node]]
        verdict.add(_path(shape.parents, last[0]), tokens, wanted[last[0]])
    return verdict


def accept_typical(
    draft: Draft,
    logits: Tensor,
    *,
    temperature: float,
    epsilon: float = EPSILON,
    delta: float = DELTA,
    draws: Sequence[Draws] | None = None,
) -> Verdict:
    """Keeps the longest path whose tokens all have p > min(epsilon, delta exp(-H)) (section 2.3.1).

    H is the entropy of p at the parent, p the law at `temperature`. Of paths of equal length the
    likeliest is kept. The next token is the argmax, as the paper's first token is always greedy, or, with
    `draws`, drawn from the typical tokens (`sampling="typical"` of the public code): text repeats less.
    """
    best = _likeliest(logits)
    verdict = Verdict()
    for b, (tokens, shape) in enumerate(zip(draft.tokens.tolist(), draft.shapes, strict=True)):
        children = shape.children
        reached = {0: 0.0}  # nodes of one depth, and ln p of their paths
        deeper = reached
        while deeper:
            reached, deeper = deeper, {}
            for node, log_p in reached.items():
                if not children[node]:
                    continue
                each, threshold = _log_law(logits[b, node], temperature, epsilon, delta)
                own = {c: float(each[tokens[c]]) for c in children[node]}
                deeper |= {c: log_p + value for c, value in own.items() if value > threshold}
        last = max(reached, key=lambda node: (reached[node], -node))
        following: int = best[b][last]
        if draws is not None:
            following = typical_token(logits[b, last], temperature, draws[b], epsilon=epsilon, delta=delta)
        verdict.add(_path(shape.parents, last), tokens, following)
    return verdict


def typical_token(
    logits: Tensor, temperature: float, draws: Draws, *, epsilon: float = EPSILON, delta: float = DELTA
) -> int:
    """One token drawn from the law (vocab,) at `temperature`, of those that typical acceptance keeps."""
    log_p, threshold = _log_law(logits, temperature, epsilon, delta)
    p = np.where(log_p > threshold, np.exp(log_p), 0.0)
    return draws.token(torch.from_numpy(p / p.sum())) if p.any() else int(logits.argmax())


def _log_law(logits: Tensor, temperature: float, epsilon: float, delta: float) -> tuple[FloatArray, float]:
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
) -> Verdict:
    """Keeps drafted tokens such that the emitted text has the target's law at `temperature`.

    One `draws` per sequence. Rules: `recursive` (drafts without replacement, or deterministic: RSD,
    Medusa, n-gram), `multi-round` (independent drafts: speculative decoding, SpecInfer), `k-seq` (SpecTr).
    """
    verdict = Verdict()
    for b, (tokens, shape) in enumerate(zip(draft.tokens.tolist(), draft.shapes, strict=True)):
        laws = None if draft.laws is None else draft.laws[b]
        rule = _RULES["recursive" if laws is None else draft.rule]
        path: list[int] = []
        here = [0]  # nodes with the same text: independent drafts may repeat each other, and share children
        while True:
            left = law(logits[b, here[0]], temperature)
            children = sorted(node for parent in here for node in shape.children[parent])
            drafted = [tokens[node] for node in children]
            if not children:
                break
            chosen, left = rule(left, None if laws is None else laws[here[0]], drafted, draws[b])
            if chosen is None:
                break
            path.append(children[chosen])
            here = [node for node, token in zip(children, drafted, strict=True) if token == drafted[chosen]]
            here = [children[chosen]] if draft.rule == "recursive" else here
        verdict.add(path, tokens, draws[b].token(left))
    return verdict


def _normalised(weights: Tensor, fallback: Tensor) -> Tensor:
    """What sums to 1: weights / sum; `fallback` where no mass is left (the laws were equal)."""
    mass = weights.sum()
    return weights / mass if float(mass) > _MASS_MIN else fallback


def _ratio(target: float, draft: float) -> float:
    """min(1, target / draft); a token that the draft law calls impossible is never kept."""
    return min(1.0, target / draft) if draft > 0.0 else 0.0


def recursive_rejection(
    target: Tensor, draft: Tensor | None, drafted: Sequence[int], draws: Draws, *, strikes: bool = True
) -> tuple[int | None, Tensor]:
    """Drafts without replacement, in the order drawn (RSD paper, section 3.1; Sequoia's sampler).

    Returns the index of the kept draft, or None and the law of the token to draw instead. After each
    rejection target becomes norm((target - draft)+) and draft loses the rejected token (`strikes`) and is
    **renormalised**: without that the law is wrong from the third draft on. draft None: each
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
"""Independent drafts (SpecInfer; with one, speculative decoding): their law never changes."""


def k_seq_factor(target: Tensor, draft: Tensor, k: int) -> float:
    """The gamma of K-SEQ: the root of gamma beta(gamma) = 1 - (1 - beta(gamma))^k in [1, k].

    beta(gamma) = sum_x min(draft(x), target(x) / gamma) is the chance that one draft is kept
    (SpecTr, algorithm 2). Below the root the residual would be negative, above it drafts are wasted.
    """
    target_array, draft_array = target.numpy(), draft.numpy()

    def excess(gamma: float) -> float:
        beta = float(np.minimum(draft_array, target_array / gamma).sum())
        return gamma * beta - (1.0 - (1.0 - beta) ** k)

    low, high = 1.0, float(k)
    if excess(low) >= 0.0:
        return low
    for _ in range(55):  # to the last bit of fp64
        middle = 0.5 * (low + high)
        low, high = (low, middle) if excess(middle) >= 0.0 else (middle, high)
    return high


def k_seq(target: Tensor, draft: Tensor, drafted: Sequence[int], draws: Draws) -> tuple[int | None, Tensor]:
    """Independent drafts, each kept with min(1, target / (gamma draft)) (SpecTr, K-SEQ)."""
    k = len(drafted)
    gamma = k_seq_factor(target, draft, k)
    for index, token in enumerate(drafted):
        if draws.happens(_ratio(float(target[token]), gamma * float(draft[token]))):
            return index, target
    kept = torch.minimum(draft, target / gamma)
    beta = float(kept.sum())
    share = (1.0 - (1.0 - beta) ** k) / beta if beta > _MASS_MIN else 0.0
    return None, _normalised((target - share * kept).clamp(min=0.0), target)


_RULES: dict[Rule, Callable[..., tuple[int | None, Tensor]]] = {
    "recursive": recursive_rejection,
    "multi-round": multi_round_rejection,
    "k-seq": k_seq,
}
