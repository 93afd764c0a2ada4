"""Block efficiencies of draft-model methods from a few chain measurements of the same pair and task.

A user has measured speculative decoding with short chains and asks what longer chains, SpecTr, RSD-C
or RSD-S would give. Two numbers, mean and spread of the ease of contexts, are fitted to the
observations, and where a tree is among them how softly the two models part; everything else
(`ContextFamily`) is common to all pairs.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from medusa_sim.acceptance.draft_model.contexts import (
    ContextBank,
    ContextFamily,
    EaseProcess,
    beam_block_efficiency,
    branch_block_efficiency,
    k_seq_block_efficiency,
)
from medusa_sim.arrays import FloatArray
from medusa_sim.errors import DataError, shown

DraftMethod = Literal["SD", "SpecTr", "RSD-C", "RSD-S"]
METHODS: tuple[DraftMethod, ...] = ("SD", "SpecTr", "RSD-C", "RSD-S")
LENGTH_MAX = 64
WIDTH_MAX = 32
BANK_DRAWS = 12
"""Children followed in every context; wider targets get a bank of their own."""

SOFTNESS = (1.0, 1.25, 1.6, 2.0, 2.5)
"""Of a pair, tried in this order (`ContextFamily.softened`)."""

CHAINS_SEEN: dict[DraftMethod, float] = {"SD": 0.051, "RSD-C": 0.050, "SpecTr": 0.069, "RSD-S": 0.053}
"""80 % of predictions from SD of length 2..5 lie within this fraction of the measured value (SD: chains of 6
to 30): quantiles over the seven given pairs of the RSD paper and the shipped pair at two temperatures
(profiles/acceptance/rsd), each with the same weight."""
TREE_SEEN: dict[DraftMethod, float] = {"SD": 0.051, "RSD-C": 0.036, "SpecTr": 0.042, "RSD-S": 0.054}
"""The same where one tree was observed too."""


@dataclass(frozen=True)
class DraftShape:
    """What is drafted in one step, as in the RSD paper's appendix C.3.

    `branches`: branching factor by level (SD: all 1). `width`: number of independent drafts (SpecTr)
    or beam width (RSD-S), 1 otherwise.
    """

    method: DraftMethod
    branches: tuple[int, ...]
    width: int = 1

    @property
    def length(self) -> int:
        """Draft length: levels of the tree, and draft model calls per step."""
        return len(self.branches)

    @property
    def draws(self) -> int:
        """Most children of one context that the shape can use."""
        return max(*self.branches, self.width)

    @property
    def candidates(self) -> int:
        """Most tokens that one verification step carries, root included."""
        if self.method in ("SpecTr", "RSD-S"):
            return 1 + self.width * self.length
        return 1 + int(sum(np.cumprod(self.branches)))


def parsed_shape(method: str, spec: str) -> DraftShape:
    """The shape written as `4` (SD), `2-2-1` (RSD-C) or `5x4` (SpecTr, RSD-S: width x length).

    Raises:
        DataError: an unknown method, or a spec that is not of its form or too large.
    """
    if method not in METHODS:
        raise DataError(f"decoder {shown(method)} is unknown (known: {', '.join(METHODS)})")
    text = spec.strip()
    form = {"SD": r"\d{1,6}", "RSD-C": r"\d{1,6}(-\d{1,6})*"}.get(method, r"\d{1,6}x\d{1,6}")
    if not re.fullmatch(form, text):
        example = {"SD": "4", "RSD-C": "2-2-1"}.get(method, "5x4")
        raise DataError(f"spec {shown(spec)} of {method} is not of the form {example!r}")
    numbers = [int(part) for part in re.split(r"[-x]", text)]
    if method == "SD":
        shape = DraftShape("SD", (1,) * min(numbers[0], LENGTH_MAX + 1))
    elif method == "RSD-C":
        shape = DraftShape("RSD-C", tuple(numbers))
    else:
        shape = DraftShape(
            "SpecTr" if method == "SpecTr" else "RSD-S", (1,) * min(numbers[1], LENGTH_MAX + 1), numbers[0]
        )
    widest = WIDTH_MAX if method in ("SpecTr", "RSD-S") else ContextFamily().vocabulary
    if min(numbers) < 1 or shape.length > LENGTH_MAX or shape.draws > widest:
        raise DataError(
            f"spec {shown(spec)} of {method}: lengths 1..{LENGTH_MAX} and widths 1..{widest} are allowed"
        )
    return shape


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
    given pairs from SD of length 2..5 alone: docs/accuracy.md.

    Raises:
        DataError: an unknown decoder, a malformed spec, an impossible observation, or none.
    """
    shapes = [parsed_shape(method, spec) for method, spec in targets]
    process = fitted_ease(
        [(parsed_shape(method, spec), value) for method, spec, value in observations], family
    )
    return np.array([block_efficiency(shape, process) for shape in shapes])


def prediction_band(
    targets: Sequence[tuple[str, str]], predicted: FloatArray, observed: Sequence[tuple[str, str]] = ()
) -> tuple[FloatArray, FloatArray]:
    """(low, high) of the 80 % interval of `predict_block_efficiency`, never below 1 token.

    observed: what was fitted; a tree among it narrows the band of trees.

    Raises:
        DataError: an unknown decoder or a malformed spec.
    """
    known = TREE_SEEN if has_tree([parsed_shape(*name) for name in observed]) else CHAINS_SEEN
    error = np.array([known[parsed_shape(method, spec).method] for method, spec in targets])
    return np.maximum(predicted * (1.0 - error), 1.0), np.asarray(predicted * (1.0 + error))
