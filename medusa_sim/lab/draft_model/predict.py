"""Block efficiencies of draft-model methods from a few chain measurements of the same pair and task.

A user has measured speculative decoding with short chains and asks what longer chains, SpecTr, RSD-C
or RSD-S would give. Two numbers, mean and spread of the ease of contexts, are fitted to the
observations, and where a tree is among them how softly the two models part; everything else
(`ContextFamily`) is common to all pairs. What was measured is predicted as it was measured, and chains go
through all measured ones (`chains`).
"""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from typing import TypeAlias

import numpy as np

from medusa_sim.acceptance.heads import NORMAL_90TH
from medusa_sim.arrays import FloatArray
from medusa_sim.errors import DataError
from medusa_sim.lab.draft_model.block_efficiency import (
    beam_block_efficiency,
    branch_block_efficiency,
    k_seq_block_efficiency,
)
from medusa_sim.lab.draft_model.chains import chain_through, possible
from medusa_sim.lab.draft_model.contexts import ContextBank, ContextFamily
from medusa_sim.lab.draft_model.ease import EaseProcess
from medusa_sim.lab.draft_model.shape import DraftMethod, DraftShape, parsed_shape

BANK_DRAWS = 12
"""Children followed in every context; wider targets get a bank of their own."""

MEASURED_ERROR = NORMAL_90TH * ContextFamily().observation_error
"""80 % half-width, relative, of what was measured itself."""

SOFTNESS = (1.0, 1.25, 1.6, 2.0, 2.5)
"""Values for a pair, tried in this order (`ContextFamily.softened`)."""

CHAINS_SEEN: dict[DraftMethod, float] = {"SD": 0.051, "RSD-C": 0.050, "SpecTr": 0.069, "RSD-S": 0.053}
"""80 % of predictions from SD of length 2..5 lie within this fraction of the measured value (SD: chains of 6
to 30): quantiles over the seven given pairs of the RSD paper and the shipped pair at two temperatures
(profiles/acceptance/rsd), each with the same weight."""
TREE_SEEN: dict[DraftMethod, float] = {"SD": 0.051, "RSD-C": 0.036, "SpecTr": 0.042, "RSD-S": 0.054}
"""The same where one tree was observed too."""


@functools.lru_cache(maxsize=8)
def context_bank(family: ContextFamily, draws: int) -> ContextBank:
    """The bank of a family, made once per process."""
    return ContextBank(family, draws)


def _bank(family: ContextFamily, shape: DraftShape) -> ContextBank:
    return context_bank(family, BANK_DRAWS if shape.draws <= BANK_DRAWS else shape.draws)


def block_efficiency(shape: DraftShape, process: EaseProcess) -> float:
    """Expected tokens per step of a shape where contexts are as `process` says."""
    bank = _bank(process.family, shape)
    match shape.method:
        case "SD" | "RSD-C":
            return branch_block_efficiency(bank, process, shape.branches)
        case "SpecTr":
            return k_seq_block_efficiency(bank, process, shape.width, shape.length)
        case "RSD-S":
            return beam_block_efficiency(bank, process, shape.width, shape.length)


def _checked(observations: Sequence[tuple[DraftShape, float]]) -> None:
    if not observations:
        raise DataError("no observations: give at least one measured block efficiency of SD")
    for shape, value in observations:
        if not (np.isfinite(value) and 1.0 <= value <= shape.length + 1.0):
            raise DataError(
                f"block_efficiency {value:g} of {shape.method} length {shape.length}: a step emits "
                f"1 to {shape.length + 1} tokens"
            )


def has_tree(shapes: Sequence[DraftShape]) -> bool:
    """Whether any of them offers a context more than one child."""
    return any(shape.draws > 1 for shape in shapes)


def fitted_ease(
    observations: Sequence[tuple[DraftShape, float]], family: ContextFamily | None = None
) -> EaseProcess:
    """Mean and spread of ease from measured block efficiencies (least squares on logarithms).

    The spread is drawn to the family's prior, because short chains hardly tell a wide spread of
    contexts from noise of a percent. Softness is a third number, of SOFTNESS, once a tree was observed.

    Raises:
        DataError: no observation, or a value that no step can emit.
    """
    family = family or ContextFamily()
    _checked(observations)
    softness = SOFTNESS if has_tree([shape for shape, _ in observations]) else SOFTNESS[:1]
    fits = [
        _fitted_at(observations, family.softened(value), np.log(value) / family.softness_spread)
        for value in softness
    ]
    return min(fits, key=lambda fit: fit[0])[1]


def _fitted_at(
    observations: Sequence[tuple[DraftShape, float]], family: ContextFamily, apart: float
) -> tuple[float, EaseProcess]:
    """(sum of squared residuals, process) of one family that lies `apart` from the prior's centre."""
    from scipy.optimize import least_squares

    prior_mean, prior_spread = family.spread_prior
    low, high = family.ease_range

    def residuals(x: FloatArray) -> FloatArray:
        process = EaseProcess(family, float(x[0]), float(np.exp(x[1])))
        misfit = [
            np.log(block_efficiency(shape, process) / value) / family.observation_error
            for shape, value in observations
        ]
        return np.array([*misfit, (x[1] - prior_mean) / prior_spread, apart])

    best = least_squares(
        residuals,
        x0=np.array([0.5 * (low + high), prior_mean]),
        bounds=([low - 2.0, -2.5], [high + 2.0, 1.5]),
        diff_step=[1e-2, 1e-2],
        xtol=1e-5,
        ftol=1e-6,
    )
    return 2.0 * float(best.cost), EaseProcess(family, float(best.x[0]), float(np.exp(best.x[1])))


def predict_block_efficiency(
    observations: Sequence[tuple[str, str, float]],
    targets: Sequence[tuple[str, str]],
    family: ContextFamily | None = None,
) -> FloatArray:
    """(targets,) block efficiency of each (decoder, spec) from observed (decoder, spec, efficiency).

    Decoders are SD, SpecTr, RSD-C, RSD-S; specs as in `parsed_shape`. Accuracy on the RSD paper's
    given pairs from SD of length 2..5 alone: docs/validation.md.

    Raises:
        DataError: an unknown decoder, a malformed spec, an impossible observation, or none.
    """
    seen = [(parsed_shape(method, spec), value) for method, spec, value in observations]
    return efficiencies(seen, [parsed_shape(method, spec) for method, spec in targets], family)


def efficiencies(
    observations: Sequence[tuple[DraftShape, float]],
    shapes: Sequence[DraftShape],
    family: ContextFamily | None = None,
) -> FloatArray:
    """(shapes,) of `predict_block_efficiency`. Raises DataError as `fitted_ease` does."""
    process = fitted_ease(observations, family)
    known, wanted = measured_means(observations), [shape.as_chain for shape in shapes]
    chains = chain_lengths(known)
    longest = max((*chains, *(shape.length for shape in wanted if shape.method == "SD")), default=0)
    fitted = [block_efficiency(parsed_shape("SD", str(n)), process) for n in range(1, longest + 1)]
    through = chain_through(chains, np.array(fitted))
    return np.array([
        known[shape] if shape in known
        else through[shape.length - 1] if shape.method == "SD"
        else block_efficiency(shape, process)
        for shape in wanted
    ])  # fmt: skip


def measured_means(observations: Sequence[tuple[DraftShape, float]]) -> dict[DraftShape, float]:
    """The mean of what was measured of each shape, those of one path as chains."""
    values: dict[DraftShape, list[float]] = {}
    for shape, value in observations:
        values.setdefault(shape.as_chain, []).append(value)
    return {shape: float(np.mean(each)) for shape, each in values.items()}


def chain_lengths(known: Mapping[DraftShape, float]) -> dict[int, float]:
    """Length -> block efficiency of the chains among what was measured, shortest first."""
    return dict(sorted((shape.length, value) for shape, value in known.items() if shape.method == "SD"))


Observed: TypeAlias = tuple[str, str] | tuple[str, str, float]
"""Decoder and spec of what was fitted, and its block efficiency where it bounds others."""


def prediction_band(
    targets: Sequence[tuple[str, str]], predicted: FloatArray, observed: Sequence[Observed] = ()
) -> tuple[FloatArray, FloatArray]:
    """(low, high) of the 80 % interval of `predict_block_efficiency`, within what is possible.

    observed: what was fitted; a tree among it narrows the band of trees, values bound those of other chains.

    Raises:
        DataError: an unknown decoder or a malformed spec.
    """
    seen = [parsed_shape(row[0], row[1]) for row in observed]
    known = measured_means([
        (shape, row[2]) for shape, row in zip(seen, observed, strict=True) if len(row) > 2
    ])  # fmt: skip
    errors, chains = TREE_SEEN if has_tree(seen) else CHAINS_SEEN, chain_lengths(known)
    low, high = np.empty(len(targets)), np.empty(len(targets))
    for place, (target, value) in enumerate(zip(targets, predicted.tolist(), strict=True)):
        shape = parsed_shape(*target).as_chain
        error = MEASURED_ERROR if shape in known else errors[parsed_shape(*target).method]
        least, most = 1.0, shape.length + 1.0
        if shape.method == "SD" and chains and shape not in known:
            least, most = possible(chains, shape.length)
        low[place] = max(value * (1.0 - error), min(least, value))
        high[place] = min(value * (1.0 + error), max(most, value))
    return low, high
