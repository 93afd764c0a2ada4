"""Expected tokens per step over contexts of moving sharpness: of chains and RSD-C, SpecTr, RSD-S.

tau = 1 + sum over levels of the draft of P(a token of that level is accepted)
"""

from __future__ import annotations

from statistics import NormalDist

import numpy as np

from medusa_sim.arrays import FloatArray
from medusa_sim.lab.block_efficiency.contexts import SURPRISAL_MAX, Contexts
from medusa_sim.lab.block_efficiency.sharpness import SharpnessProcess

BLOCKS = 800
"""Simulated blocks of beams. Every node carries its exact probability of being reached, so that the standard
error is 0.5 % of the block efficiency or less."""


def branch_block_efficiency(
    contexts: Contexts, process: SharpnessProcess, branches: tuple[int, ...]
) -> float:
    """Of RSD-C with those branching factors; a chain is all ones (SD).

    P_1 = start, P_t+1 = (P_t a_1) T_first + (P_t (a_b - a_1)) T_later, a_b the acceptance of b children and T
    the steps of sharpness. A later child has a higher surprisal and leads to flatter contexts.
    """
    tau = 1.0
    for centre, weight in zip(*process.blocks, strict=True):
        reached = process.start(float(centre), contexts.sharpness)
        first, later = contexts.surprisal
        after_first = process.step(float(centre), contexts.sharpness, first)
        for children in branches:
            accepted = reached * contexts.acceptance[:, 0]
            tau += weight * accepted.sum()
            following = accepted @ after_first
            if children > 1:
                rescued = reached * (contexts.acceptance[:, children - 1] - contexts.acceptance[:, 0])
                tau += weight * rescued.sum()
                surprisal = later[:, children - 1]
                following = following + rescued @ process.step(float(centre), contexts.sharpness, surprisal)
            reached = following
    return float(tau)


def k_seq_block_efficiency(contexts: Contexts, process: SharpnessProcess, drafts: int, length: int) -> float:
    """Of SpecTr with so many independent drafts of `length` tokens.

    As RSD-C, where the state is besides how many drafts share the accepted path (drafts that left it are
    lost): n of them become m with the probability `followers` (D2).
    """
    followers = np.zeros((contexts.sharpness.size, drafts + 1, drafts + 1))
    for n in range(1, drafts + 1):
        followers[:, n, : n + 1] = contexts.followers(n)
    accepted = followers.sum(axis=2)
    first, later = contexts.surprisal[0], contexts.surprisal[1][:, min(3, contexts.children) - 1]
    # share that a second draft did not rescue
    unaided = np.minimum(1.0, contexts.acceptance[:, :1] / np.maximum(accepted, 1e-12))
    tau = 1.0
    for centre, weight in zip(*process.blocks, strict=True):
        after_first = process.step(float(centre), contexts.sharpness, first)
        after_rescue = process.step(float(centre), contexts.sharpness, later)
        reached = np.zeros((contexts.sharpness.size, drafts + 1))
        reached[:, drafts] = process.start(float(centre), contexts.sharpness)
        for _ in range(length):
            straight = np.einsum("gn,gnm->gm", reached * unaided, followers)
            rescued = np.einsum("gn,gnm->gm", reached * (1.0 - unaided), followers)
            tau += weight * (straight.sum() + rescued.sum())
            reached = after_first.T @ straight + after_rescue.T @ rescued
    return float(tau)


def stratified_normal(count: int, rng: np.random.Generator) -> FloatArray:
    """`count` standard normal values, one from the middle of each equal share of them all, shuffled."""
    quantile = NormalDist().inv_cdf
    return rng.permutation(np.array([quantile((i + 0.5) / count) for i in range(count)]))


def truncate_perturbed(parent: FloatArray, perturbed: FloatArray) -> FloatArray:
    """`T(psi_parent, perturbed)` of RSD's equation 11 over the last axis (largest perturbed first).

    `-log(e^-u - e^-Z + e^-phi)` with u the parent's psi and Z the largest child's perturbed value, in
    the stable form of Kool et al. (2019), appendix B.3; the largest child gets u itself.
    """
    largest = perturbed[..., :1]
    gap = np.minimum(perturbed - largest, 0.0)
    with np.errstate(divide="ignore"):
        v = parent[..., None] - perturbed + np.log1p(-np.exp(gap))
    v = np.where(gap < 0.0, v, -np.inf)
    return np.asarray(parent[..., None] - np.maximum(v, 0.0) - np.log1p(np.exp(-np.abs(v))))


def beam_block_efficiency(contexts: Contexts, process: SharpnessProcess, width: int, length: int) -> float:
    """Of RSD-S (D6) with beam `width`: stochastic beam search in simulated blocks, each node with the exact
    probability that it is reached. The same contexts and process give the same number (fixed seed).
    """
    model, x = contexts.model, contexts.sharpness
    rng = np.random.default_rng(model.seed + 2)
    block = process.block_spread * stratified_normal(BLOCKS, rng)
    position = process.position_spread * stratified_normal(BLOCKS, rng)[:, None]
    phi = np.zeros((BLOCKS, 1))  # log draft of the path
    psi = np.zeros((BLOCKS, 1))  # its truncated perturbed log draft
    reached = np.ones((BLOCKS, 1))
    kept = min(width, contexts.children)
    tau = 1.0
    for _ in range(length):
        nearest = np.rint((process.mean + block[:, None] + position - x[0]) / float(x[1] - x[0]))
        level = np.clip(nearest, 0, x.size - 1).astype(np.int64)
        context = rng.integers(0, model.contexts, size=level.shape)
        log_draft, perturbed, accepted = (each[level, context, :kept] for each in contexts.draws)
        children = truncate_perturbed(psi, phi[..., None] + perturbed)
        chosen = np.argsort(-children.reshape(BLOCKS, -1), axis=1, kind="stable")[:, :width]

        def pick(values: FloatArray, chosen: np.ndarray = chosen) -> FloatArray:
            return np.asarray(np.take_along_axis(values.reshape(BLOCKS, -1), chosen, axis=1))

        reached = pick(reached[..., None] * accepted)
        tau += float(reached.sum()) / BLOCKS
        phi, psi = pick(phi[..., None] + log_draft), pick(children)
        surprisal = np.minimum(-pick(log_draft), SURPRISAL_MAX)
        before = np.take_along_axis(position, chosen // kept, axis=1)
        fresh = process.position_spread * np.sqrt(1.0 - model.correlation**2) * rng.normal(size=before.shape)
        position = model.correlation * before + fresh - model.surprisal_cost * surprisal
    return tau
