"""Block efficiencies of draft-model methods from a few chain measurements of the same pair and task.

    (D13) b(n) = b(n - 1) + min(g(n) sqrt(d / g(L)), d) behind the longest measured chain, of L drafts

A user has measured speculative decoding with short chains and asks what longer chains, SpecTr, RSD-C
or RSD-S would give. Two numbers, mean and spread of the ease of contexts, are fitted to the
observations, and where a tree is among them how softly the two models part; everything else
(`ContextFamily`) is common to all pairs. What was measured is predicted as it was measured. Chains go through
all measured ones: between them powers of the falls of the fitted gains g(n) of draft n meet the next, and
behind the last half of its misfit is carried on (D13), d being what its last draft added. So no draft adds
more than the one before it.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias

import numpy as np

from medusa_sim.acceptance.heads import NORMAL_90TH
from medusa_sim.arrays import FloatArray
from medusa_sim.errors import DataError, shown
from medusa_sim.lab.draft_model.contexts import (
    ContextBank,
    ContextFamily,
    EaseProcess,
    beam_block_efficiency,
    branch_block_efficiency,
    k_seq_block_efficiency,
)

DraftMethod = Literal["SD", "SpecTr", "RSD-C", "RSD-S"]
METHODS: tuple[DraftMethod, ...] = ("SD", "SpecTr", "RSD-C", "RSD-S")
LENGTH_MAX = 64
WIDTH_MAX = 32
BANK_DRAWS = 12
"""Children followed in every context; wider targets get a bank of their own."""

MEASURED_ERROR = NORMAL_90TH * ContextFamily().observation_error
"""80 % half-width, relative, of what was measured itself."""
STEEPEST = 64.0
"""Power of the fitted gains beyond which none is searched."""

SOFTNESS = (1.0, 1.25, 1.6, 2.0, 2.5)
"""Values for a pair, tried in this order (`ContextFamily.softened`)."""

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
    def as_chain(self) -> DraftShape:
        """Shapes of one path are chains, whatever drafts them."""
        return DraftShape("SD", self.branches) if self.draws == 1 else self

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


def chain_through(measured: Mapping[int, float], fitted: FloatArray) -> FloatArray:
    """(lengths,) block efficiencies of chains of 1, 2, ... drafts that go through the measured ones.

    measured: by length, shortest first. fitted: (lengths,) those of the fit, to the longest measured one at
    least, which say how gains fall between and behind them (D13).
    """
    gains = np.diff(np.concatenate([[1.0], fitted]))
    falls = gains / np.concatenate([[1.0], gains[:-1]])
    through: list[float] = []
    at, value, added = 0, 1.0, 1.0
    for length, tokens in measured.items():
        through += _between(tokens - value, added, falls[at:length]).tolist()
        at, value, added = length, tokens, max(through[-1], 0.0)
    behind = gains[at:]
    if at:
        behind = np.minimum(behind * np.sqrt(added / gains[at - 1]), added)
    return np.asarray(1.0 + np.cumsum(np.concatenate([through, behind])))


def _between(needed: float, before: float, falls: FloatArray) -> FloatArray:
    """What each of some drafts adds, `needed` in all: `before` times powers of how the fitted gains fall.

    Alike, where they would have to add more than the draft before, or nothing: noise of measurements.
    """

    def added(power: float) -> FloatArray:
        return np.asarray(before * np.cumprod(falls**power))

    def beyond(power: float) -> float:
        return float(added(power).sum()) - needed

    from scipy.optimize import brentq

    if beyond(0.0) <= 0.0 or beyond(STEEPEST) >= 0.0:
        return np.full(falls.size, needed / falls.size)
    return added(float(brentq(beyond, 0.0, STEEPEST)))


def possible(measured: Mapping[int, float], length: int) -> tuple[float, float]:
    """(least, most) tokens of a chain beside the measured ones (by length, shortest first).

    A longer chain emits no fewer, and no draft adds more than the one before it: the course is concave.
    """
    known = {0: 1.0, **measured}
    before = [n for n in known if n <= length]
    behind = [n for n in known if n > length]
    last = before[-1]
    earlier = before[-2] if len(before) > 1 else None
    steepest = 1.0 if earlier is None else (known[last] - known[earlier]) / (last - earlier)
    most = known[last] + max(steepest, 0.0) * (length - last)
    least = known[last]
    if behind:
        following = behind[0]
        slope = (known[following] - known[last]) / (following - last)
        least = known[last] + slope * (length - last)
    return least, most


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
