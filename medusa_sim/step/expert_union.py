"""Distinct experts that the tokens of a step wake in a layer: the union whose weights are read.

    (X1)  union = E (1 - product over i < a of (p + i) / (p + i + t)),   p = a (E / k - 1),   t = b q^beta

E experts, k of them for each token, b sequences with q tokens each. Some experts are popular: how likely a
token is to choose one has a Beta distribution over the experts, of mean k / E and shape a (`POPULARITY`), and
the product is the chance that t tokens leave one out. Were all as likely, it would be (1 - k / E)^t. Tokens
of different sequences choose independently (t = b q at beta 1); those of one sequence are alike and share
experts, so that q of them wake as many as q^beta would. beta 0.78 meets the published unions of chains;
trees, whose branches begin alike, share more. Known alternatives: `independent` tokens, and `disjoint` ones,
which share no expert while there are any left (what benchmarks call balanced). In numbers: of E = 128 experts
with k = 8 for each token, four sequences of one token wake 28. With four candidates each, 16 tokens, they
wake 61: as many as 11.8 tokens of different sequences. All 16 of these would wake 73.

Under expert parallelism each of R ranks holds E / R experts, and all wait for the one that most of the union
falls to. Of u experts in E (or, without an end, of pairs) it has

    (X7)  u / R + c sqrt(u / R (1 - 1 / R) (1 - u / E)),   c = quantile of (R - 3/8) / (R + 1/4)

the normal's, which is the expected largest of R normals (Blom 1958, within 5 % from two ranks on).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from medusa_sim.arrays import FloatArray, as_float
from medusa_sim.operators.operator import Size
from medusa_sim.step import OverlapName

POPULARITY = 2
"""Shape of the Beta distribution of (X1), large where experts are alike. DeepSeek and gpt-oss in three
engines fit best with 2 (`benchmarks/hierarchy.py`; 1, 2, 3 and alike were tried). Two tokens of Cohere's
mixture share 11.8 % of its 128 experts, which 1 gives (2: 9.1, alike: 6.25).
"""
FEW = 16
"""Experts below which the shape grows as their number falls, to 4 for eight: few large ones are more alike.
Mixtral's three sources each ask for 4 or more (`benchmarks/moe_speculation.py`, `serving_validation.py`).
"""
_LEAST = 1e-12
"""Beside 1: every token chooses every expert."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Overlap:
    """How far tokens of one sequence share experts."""

    name: OverlapName
    beta: float | None
    """Exponent of (X1); None: they share none while there are any left."""
    low: float
    """Lower end of its spread over models and texts, which belongs in the band of whatever rests on it."""
    high: float
    """Upper end."""
    source: str
    """Where it was measured."""


CHAIN = Overlap(
    name="chain",
    beta=0.78,
    low=0.6,
    high=1.0,
    source="least squares on unions of 4 to 16 consecutive tokens of four models with 128 or 256 experts "
    "(cohere.com/blog/mixture-of-experts-models-get-more-from-speculative-decoding; "
    "github.com/Luce-Org/lucebox pull request 501; two public notes of measurements)",
)
TREE = Overlap(
    name="tree",
    beta=0.67,
    low=0.56,
    high=0.72,
    source="unions of trees of 31 to 255 tokens on OLMoE-1B-7B, Qwen3-30B-A3B and Mixtral-8x7B "
    "(MoE-Spec, arXiv 2602.16052)",
)
INDEPENDENT = Overlap(
    name="independent", beta=1.0, low=1.0, high=1.0, source="every token chooses alone: 46 % above chains"
)
DISJOINT = Overlap(
    name="disjoint", beta=None, low=1.0, high=1.0, source="no two tokens share an expert: balanced benchmarks"
)
OVERLAPS: dict[str, Overlap] = {each.name: each for each in (CHAIN, TREE, INDEPENDENT, DISJOINT)}


def union(
    experts: Size, topk: Size, batch: Size, query_tokens: Size, overlap: Overlap | float = CHAIN
) -> FloatArray:
    """Distinct experts that `batch` sequences with `query_tokens` each wake in a layer, an expectation (X1).

    overlap: a law, or its exponent beta. Arrays broadcast. Never below topk, never above experts.
    """
    all_of_them, chosen = as_float(experts), as_float(topk)
    sequences, tokens = as_float(batch), as_float(query_tokens)
    beta = overlap.beta if isinstance(overlap, Overlap) else overlap
    if beta is None:
        return np.minimum(all_of_them, sequences * tokens * chosen)
    woken: FloatArray = all_of_them * (1.0 - left_out_share(all_of_them, chosen, sequences * tokens**beta))
    return woken


def left_out_share(experts: Size, topk: Size, tokens: Size) -> FloatArray:
    """Share of experts that none of so many independent tokens chooses (X1)."""
    every = as_float(experts)
    shape = POPULARITY * np.maximum(FEW // every, 1.0)
    other = np.maximum(shape * (every / as_float(topk) - 1.0), _LEAST)
    share: FloatArray = np.ones(())
    for step in range(int(shape.max())):
        left = (other + step) / (other + step + as_float(tokens))
        share = share * np.where(step < shape, left, 1.0)
    return share


def of_busiest(of_all: Size, ranks: int, held: Size = np.inf) -> FloatArray:
    """Of so many experts or pairs of all ranks those of the busiest one, an expectation (X7).

    held: the most that one rank can have. Never below an even share.
    """
    from statistics import NormalDist

    mean = as_float(of_all) / ranks
    spread = np.sqrt(mean * (1.0 - 1.0 / ranks) * np.maximum(1.0 - mean / held, 0.0))
    largest = NormalDist().inv_cdf((ranks - 0.375) / (ranks + 0.25))
    busiest: FloatArray = np.minimum(mean + largest * spread, held)
    return busiest


def union_band(
    experts: Size, topk: Size, batch: Size, query_tokens: Size, overlap: Overlap = CHAIN
) -> tuple[FloatArray, FloatArray]:
    """(low, high) of `union` over the spread of the exponent."""
    if overlap.beta is None:
        hit = union(experts, topk, batch, query_tokens, overlap)
        return hit, hit
    low, high = (union(experts, topk, batch, query_tokens, beta) for beta in (overlap.low, overlap.high))
    return low, high
