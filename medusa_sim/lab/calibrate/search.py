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
"""Lowest and highest value by place (`value_at`)."""
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


def value_at(part: Any, place: str) -> Any:
    """What a struct holds at a place: `ramp_us`, `wide.ramp_us`, `ranges.0.peak_fraction`."""
    for name in place.split("."):
        part = part[int(name)] if isinstance(part, tuple) else getattr(part, name)
    return part


def with_values(part: Any, values: Mapping[str, object]) -> Any:
    """The struct, or list of structs, with these values, by place."""
    inner: dict[str, dict[str, object]] = {}
    for place, value in values.items():
        name, _, rest = place.partition(".")
        inner.setdefault(name, {})[rest] = value
    changed = {
        name: below[""] if "" in below else with_values(value_at(part, name), below)
        for name, below in inner.items()
    }
    if isinstance(part, tuple):
        return tuple(changed.get(str(place), each) for place, each in enumerate(part))
    return replace(part, **changed)


def least_squares(
    kernel: Parameters,
    limits: Limits,
    log_errors: Callable[[Parameters], FloatArray],
    **options: Any,
) -> Parameters:
    """The kernel with the parameters of `limits`, by place, at the least objective, from where they are.

    options: of `least_log_errors`.
    """

    def replaced(values: Sequence[float]) -> Parameters:
        made: Parameters = with_values(kernel, dict(zip(limits, values, strict=True)))
        return made

    def errors(values: Sequence[float]) -> FloatArray:
        return log_errors(replaced(values))

    start = [value_at(kernel, place) for place in limits]
    return replaced(least_log_errors(start, tuple(limits.values()), errors, **options))


def coordinate_search(
    start: Parameters,
    choices: Mapping[str, Iterable[object]],
    refit: Callable[[Parameters], Parameters],
    cost: Callable[[Parameters], float],
) -> tuple[Parameters, float]:
    """(best kernel, its objective) of one pass over whole numbers, each kept where it lowers the objective.

    choices: values by place, in the order in which they are tried. refit: fits the other parameters again.
    """
    best, lowest = start, cost(start)
    for place, options in choices.items():
        for option in options:
            if option == value_at(best, place):
                continue
            trial = refit(with_values(best, {place: option}))
            trial_cost = cost(trial)
            if trial_cost < _CHANGE_GAIN * lowest:
                best, lowest = trial, trial_cost
    return best, lowest
