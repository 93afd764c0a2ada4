"""Block efficiencies of draft-model methods from a few chain measurements of the same pair and task.

A user has measured speculative decoding with short chains and asks what longer chains, SpecTr, RSD-C or RSD-S
would give. Mean and spread of the sharpness of contexts are fitted to the observations (D11), and where a
tree is among them how softly the two models part (D12); everything else (`ContextModel`) is common to all
pairs. What was measured is predicted as it was measured, and chains go through all measured ones (`chains`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TypeAlias

import numpy as np

from medusa_sim.acceptance.heads import NORMAL_90TH
from medusa_sim.arrays import FloatArray
from medusa_sim.errors import DataError
from medusa_sim.lab.block_efficiency.chains import chain_through, possible
from medusa_sim.lab.block_efficiency.contexts import ContextModel, contexts_of
from medusa_sim.lab.block_efficiency.methods import (
    beam_block_efficiency,
    branch_block_efficiency,
    k_seq_block_efficiency,
)
from medusa_sim.lab.block_efficiency.shape import DraftMethod, DraftShape
from medusa_sim.lab.block_efficiency.sharpness import SharpnessProcess

Observations: TypeAlias = Sequence[tuple[DraftShape, float]]
"""Measured block efficiencies of one (target, draft, task)."""
CHILDREN = 12
"""Followed in every context; wider shapes have contexts of their own."""
MEASURED_ERROR = NORMAL_90TH * ContextModel().observation_error
"""80 % half-width, relative, of what was measured itself."""
SOFTNESS = (1.0, 1.25, 1.6, 2.0, 2.5)
"""Values for a pair, tried in this order (`ContextModel.softened`)."""
CHAINS_SEEN: dict[DraftMethod, float] = {"SD": 0.051, "RSD-C": 0.050, "SpecTr": 0.069, "RSD-S": 0.053}
"""80 % of predictions from SD of length 2..5 lie within this fraction of the measured value (SD: chains of 6
to 30): quantiles over the seven given pairs of the RSD paper and the shipped pair at two temperatures
(profiles/acceptance/rsd), each with the same weight."""
TREE_SEEN: dict[DraftMethod, float] = {"SD": 0.051, "RSD-C": 0.036, "SpecTr": 0.042, "RSD-S": 0.054}
"""The same where one tree was observed too."""


def block_efficiency(shape: DraftShape, process: SharpnessProcess) -> float:
    """Expected tokens per step of a shape where contexts are as `process` says."""
    contexts = contexts_of(process.model, max(shape.children, CHILDREN))
    match shape.method:
        case "SD" | "RSD-C":
            return branch_block_efficiency(contexts, process, shape.branches)
        case "SpecTr":
            return k_seq_block_efficiency(contexts, process, shape.width, shape.length)
        case "RSD-S":
            return beam_block_efficiency(contexts, process, shape.width, shape.length)


def has_tree(shapes: Iterable[DraftShape]) -> bool:
    """Whether any of them offers a context more than one child."""
    return any(shape.children > 1 for shape in shapes)


def fitted_process(observations: Observations, model: ContextModel | None = None) -> SharpnessProcess:
    """Mean and spread of sharpness from measured block efficiencies (D11).

    The spread is drawn to its prior, because short chains hardly tell a wide spread of contexts from noise of
    a percent. Softness is a third number, of SOFTNESS, once a tree was observed (D12).

    Raises:
        DataError: no observation, or a value that no step can emit.
    """
    model = model or ContextModel()
    if not observations:
        raise DataError("no observations: give at least one measured block efficiency of SD")
    for shape, value in observations:
        if not (np.isfinite(value) and 1.0 <= value <= shape.length + 1.0):
            raise DataError(
                f"block_efficiency {value:g} of {shape.method} length {shape.length}: a step emits "
                f"1 to {shape.length + 1} tokens"
            )
    softness = SOFTNESS if has_tree(shape for shape, _ in observations) else SOFTNESS[:1]
    fits = [
        _fitted_at(observations, model.softened(value), np.log(value) / model.softness_spread)
        for value in softness
    ]
    return min(fits, key=lambda fit: fit[0])[1]


def _fitted_at(
    observations: Observations, model: ContextModel, softness_sigmas: float
) -> tuple[float, SharpnessProcess]:
    """(sum of squared residuals, process) of one softness, so many standard deviations from its prior."""
    from scipy.optimize import least_squares

    prior_mean, prior_spread = model.spread_prior
    low, high = model.sharpness_range

    def process(x: FloatArray) -> SharpnessProcess:
        return SharpnessProcess(model, float(x[0]), float(np.exp(x[1])))

    def residuals(x: FloatArray) -> FloatArray:
        misfit = [
            np.log(block_efficiency(shape, process(x)) / value) / model.observation_error
            for shape, value in observations
        ]
        return np.array([*misfit, (x[1] - prior_mean) / prior_spread, softness_sigmas])

    best = least_squares(
        residuals,
        x0=np.array([0.5 * (low + high), prior_mean]),
        bounds=([low - 2.0, -2.5], [high + 2.0, 1.5]),
        diff_step=[1e-2, 1e-2],
        xtol=1e-5,
        ftol=1e-6,
    )
    return 2.0 * float(best.cost), process(best.x)


def predicted_efficiencies(
    observations: Observations, shapes: Sequence[DraftShape], model: ContextModel | None = None
) -> FloatArray:
    """(shapes,) block efficiencies from observed ones. Accuracy: docs/validation.md.

    Raises DataError as `fitted_process` does.
    """
    process = fitted_process(observations, model)
    known, wanted = measured_means(observations), [shape.as_chain for shape in shapes]
    chains = chain_lengths(known)
    longest = max((*chains, *(shape.length for shape in wanted if shape.method == "SD")), default=0)
    fitted = [block_efficiency(DraftShape("SD", (1,) * n), process) for n in range(1, longest + 1)]
    through = chain_through(chains, np.array(fitted))
    return np.array([
        known[shape] if shape in known
        else through[shape.length - 1] if shape.method == "SD"
        else block_efficiency(shape, process)
        for shape in wanted
    ])  # fmt: skip


def measured_means(observations: Observations) -> dict[DraftShape, float]:
    """The mean of what was measured of each shape, those of one path as chains."""
    values: dict[DraftShape, list[float]] = {}
    for shape, value in observations:
        values.setdefault(shape.as_chain, []).append(value)
    return {shape: float(np.mean(each)) for shape, each in values.items()}


def chain_lengths(known: Mapping[DraftShape, float]) -> dict[int, float]:
    """Length -> block efficiency of the chains among what was measured, shortest first."""
    return dict(sorted((shape.length, value) for shape, value in known.items() if shape.method == "SD"))


def prediction_band(
    shapes: Sequence[DraftShape], predicted: FloatArray, observations: Observations = (), *, with_tree: bool
) -> tuple[FloatArray, FloatArray]:
    """(low, high) of the 80 % interval of `predicted_efficiencies`, within what is possible.

    observations: bound other chains. with_tree: whether a tree was observed, which narrows bands of trees.
    """
    errors, known = TREE_SEEN if with_tree else CHAINS_SEEN, measured_means(observations)
    chains = chain_lengths(known)
    low, high = np.empty(len(shapes)), np.empty(len(shapes))
    for place, (given, value) in enumerate(zip(shapes, predicted.tolist(), strict=True)):
        shape = given.as_chain
        error = MEASURED_ERROR if shape in known else errors[given.method]
        least, most = 1.0, shape.length + 1.0
        if shape.method == "SD" and chains and shape not in known:
            least, most = possible(chains, shape.length)
        low[place] = max(value * (1.0 - error), min(least, value))
        high[place] = min(value * (1.0 + error), max(most, value))
    return low, high
