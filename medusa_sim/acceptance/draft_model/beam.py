"""Stochastic beam search over sampled contexts: tokens per step of RSD-S (RSD paper 3.2.1, Algorithm 7)."""

from __future__ import annotations

import numpy as np

from medusa_sim.acceptance.draft_model.contexts import SURPRISAL_MAX, ContextBank
from medusa_sim.acceptance.draft_model.ease import EaseProcess, stratified_normal
from medusa_sim.arrays import FloatArray

BLOCKS = 800
"""Simulated blocks. Every node of a beam carries its exact probability of being reached, so that the
standard error is 0.5 % of the block efficiency or less."""


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
