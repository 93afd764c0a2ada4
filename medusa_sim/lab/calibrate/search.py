"""The objective of every fit, and searches for the parameters at its least.

The objective is the sum of smoothed absolute log errors (soft l1), so that rows with an odd choice of a
library do not pull the physics. Parameters are positive and searched in the logarithm.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, TypeVar

import msgspec
import numpy as np
from msgspec.structs import replace

from medusa_sim.arrays import FloatArray, as_float

Parameters = TypeVar("Parameters", bound=msgspec.Struct)
Limits = Mapping[str, tuple[float, float]]
"""Lowest and highest value by name."""
SCALE = 0.1
"""Log error from which on errors count by size, no longer by their square."""
_CHANGE_GAIN = 0.99
"""What another whole number must lower the objective to, to be kept."""


def soft_costs(log_errors: FloatArray, scale: float = SCALE) -> FloatArray:
    """What each row adds to the objective: sqrt(1 + (error / scale)^2) - 1."""
    return as_float(np.sqrt(1.0 + (log_errors / scale) ** 2) - 1.0)


def soft_cost(log_errors: FloatArray, scale: float = SCALE) -> float:
    """The objective: the sum of `soft_costs`."""
    return float(soft_costs(log_errors, scale).sum())


def least_log_errors(
    start: Sequence[float],
    bounds: Sequence[tuple[float, float]],
    log_errors: Callable[[list[float]], FloatArray],
    *,
    scale: float = SCALE,
    margin: float = 1e-6,
    slack: float = 0.0,
    **options: Any,
) -> list[float]:
    """Values within bounds that bring the log errors to the least objective, searched in the logarithm.

    margin, slack: in the logarithm, how far within the limits the search begins at least, and how far beyond
    the highest value it may end. options: of `scipy.optimize.least_squares`; a `jac` is a function of the
    values' logarithms.
    """
    from scipy import optimize

    def errors(logarithms: FloatArray) -> FloatArray:
        return log_errors(np.exp(logarithms).tolist())

    lowest, highest = np.log(bounds).T
    begin = np.log([max(value, low) for value, (low, _) in zip(start, bounds, strict=True)])
    solution = optimize.least_squares(
        errors,
        np.clip(begin, lowest + margin, highest - margin),
        bounds=(lowest, highest + slack),
        loss="soft_l1",
        f_scale=scale,
        **options,
    )
    values: list[float] = np.exp(solution.x).tolist()
    return values


def least_squares(
    kernel: Parameters,
    limits: Limits,
    log_errors: Callable[[Parameters], FloatArray],
    *,
    scale: float = SCALE,
    **options: Any,
) -> Parameters:
    """The kernel with the parameters of `limits` at the least objective, from where they are.

    options: of `scipy.optimize.least_squares`.
    """

    def replaced(values: Sequence[float]) -> Parameters:
        return replace(kernel, **dict(zip(limits, values, strict=True)))

    def errors(values: Sequence[float]) -> FloatArray:
        return log_errors(replaced(values))

    start = [getattr(kernel, name) for name in limits]
    return replaced(least_log_errors(start, tuple(limits.values()), errors, scale=scale, **options))


def coordinate_search(
    start: Parameters,
    choices: Mapping[str, Iterable[object]],
    value: Callable[[Parameters, str], object],
    changed: Callable[[Parameters, str, object], Parameters],
    cost: Callable[[Parameters], float],
) -> tuple[Parameters, float]:
    """(best kernel, its objective) of one pass over whole numbers, each kept where it lowers the objective.

    choices: values by name, in the order in which they are tried. value: what a kernel has of a name.
    changed: the kernel with another value, its other parameters fitted again.
    """
    best, lowest = start, cost(start)
    for name, options in choices.items():
        for option in options:
            if option == value(best, name):
                continue
            trial = changed(best, name, option)
            trial_cost = cost(trial)
            if trial_cost < _CHANGE_GAIN * lowest:
                best, lowest = trial, trial_cost
    return best, lowest
