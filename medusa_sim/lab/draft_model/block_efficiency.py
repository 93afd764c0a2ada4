"""Expected tokens per step over contexts of moving ease: of chains and RSD-C, SpecTr, RSD-S."""

from __future__ import annotations

from statistics import NormalDist

import numpy as np

from medusa_sim.arrays import FloatArray
from medusa_sim.lab.draft_model.contexts import SURPRISAL_MAX, ContextBank
from medusa_sim.lab.draft_model.ease import EaseProcess

BLOCKS = 800
"""Simulated blocks of beams. Every node carries its exact probability of being reached, so that the standard
error is 0.5 % of the block efficiency or less."""


def branch_block_efficiency(bank: ContextBank, process: EaseProcess, branches: tuple[int, ...]) -> float:
    """Expected tokens per step of RSD-C with those branching factors; a chain is all ones (SD).

    First-child and later-child acceptances are tracked separately: a later child has a higher
    surprisal and leads to harder contexts.
    """
    efficiency = 1.0
    for centre, weight in zip(*process.blocks, strict=True):
        here = process.start(float(centre), bank.ease)
        first, later = bank.surprisal
        on = process.step(float(centre), bank.ease, first)
        for children in branches:
            accepted = here * bank.coverage[:, 0]
            efficiency += weight * accepted.sum()
            after = accepted @ on
            if children > 1:
                rescued = here * (bank.coverage[:, children - 1] - bank.coverage[:, 0])
                efficiency += weight * rescued.sum()
                surprisal = later[:, children - 1]
                after = after + rescued @ process.step(float(centre), bank.ease, surprisal)
            here = after
    return float(efficiency)


def k_seq_block_efficiency(bank: ContextBank, process: EaseProcess, sequences: int, length: int) -> float:
    """Expected tokens per step of SpecTr with `sequences` independent drafts of `length` tokens.

    The state is the number of drafts that share the accepted path (drafts that left it are lost).
    """
    followers = np.zeros((bank.ease.size, sequences + 1, sequences + 1))
    for n in range(1, sequences + 1):
        followers[:, n, : n + 1] = bank.followers(n)
    accepted = followers.sum(axis=2)
    first, later = bank.surprisal[0], bank.surprisal[1][:, min(3, bank.draws) - 1]
    own = np.minimum(1.0, bank.coverage[:, :1] / np.maximum(accepted, 1e-12))  # not rescued by a second draft
    efficiency = 1.0
    for centre, weight in zip(*process.blocks, strict=True):
        on = process.step(float(centre), bank.ease, first)
        after_rescue = process.step(float(centre), bank.ease, later)
        here = np.zeros((bank.ease.size, sequences + 1))
        here[:, sequences] = process.start(float(centre), bank.ease)
        for _ in range(length):
            straight = np.einsum("gn,gnm->gm", here * own, followers)
            rescued = np.einsum("gn,gnm->gm", here * (1.0 - own), followers)
            efficiency += weight * (straight.sum() + rescued.sum())
            here = on.T @ straight + after_rescue.T @ rescued
    return float(efficiency)


def stratified_normal(count: int, rng: np.random.Generator) -> FloatArray:
    """`count` standard normal values, one from the middle of each equal share of them all, shuffled."""
    quantile = NormalDist().inv_cdf
    return rng.permutation(np.array([quantile((i + 0.5) / count) for i in range(count)]))


def truncate_perturbed(parent: FloatArray, perturbed: FloatArray) -> FloatArray:
    """`T(psi_parent, perturbed)` of equation 11 over the last axis (largest perturbed first).

    `-log(e^-u - e^-Z + e^-phi)` with u the parent's psi and Z the largest child's perturbed value, in
    the stable form of Kool et al. (2019), appendix B.3; the largest child gets u itself.
    """
    largest = perturbed[..., :1]
    gap = np.minimum(perturbed - largest, 0.0)
    with np.errstate(divide="ignore"):
        v = parent[..., None] - perturbed + np.log1p(-np.exp(gap))
    v = np.where(gap < 0.0, v, -np.inf)
    return np.asarray(parent[..., None] - np.maximum(v, 0.0) - np.log1p(np.exp(-np.abs(v))))


def beam_block_efficiency(bank: ContextBank, process: EaseProcess, width: int, length: int) -> float:
    """Expected tokens per step of RSD-S with beam `width` and draft `length`.

    Deterministic: the same bank and process give the same number (fixed seed).
    """
    family = bank.family
    rng = np.random.default_rng(family.seed + 2)
    block = process.block_spread * stratified_normal(BLOCKS, rng)
    apart = process.position_spread * stratified_normal(BLOCKS, rng)[:, None]
    phi = np.zeros((BLOCKS, 1))  # log draft of the sequence
    psi = np.zeros((BLOCKS, 1))  # its truncated perturbed log draft
    reached = np.ones((BLOCKS, 1))
    grade_step = float(bank.ease[1] - bank.ease[0])
    kept = min(width, bank.draws)
    efficiency = 1.0
    for _ in range(length):
        ease = process.mean + block[:, None] + apart
        grade = np.clip(np.rint((ease - bank.ease[0]) / grade_step), 0, bank.ease.size - 1).astype(np.int64)
        context = rng.integers(0, family.contexts, size=ease.shape)
        log_draft = bank.log_draft[grade, context, :kept]
        children = truncate_perturbed(psi, phi[..., None] + bank.perturbed[grade, context, :kept])
        chosen = np.argsort(-children.reshape(BLOCKS, -1), axis=1, kind="stable")[:, :width]

        def pick(values: FloatArray, chosen: np.ndarray = chosen) -> FloatArray:
            return np.asarray(np.take_along_axis(values.reshape(BLOCKS, -1), chosen, axis=1))

        reached = pick(reached[..., None] * bank.accepted[grade, context, :kept])
        efficiency += float(reached.sum()) / BLOCKS
        phi, psi = pick(phi[..., None] + log_draft), pick(children)
        surprisal = np.minimum(-pick(log_draft), SURPRISAL_MAX)
        before = np.take_along_axis(apart, chosen // kept, axis=1)
        fresh = process.position_spread * np.sqrt(1.0 - family.persistence**2) * rng.normal(size=before.shape)
        apart = family.persistence * before + fresh - family.drift * surprisal
    return efficiency
