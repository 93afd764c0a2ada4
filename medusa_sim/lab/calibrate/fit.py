"""What every fit shares: rows, the objective, least squares in the logarithm, and held-out errors.

The objective is the sum of smoothed absolute log errors (soft l1), so that rows with an odd choice of a
library do not pull the physics. Parameters are positive and searched in the logarithm. Held-out errors come
from refits in which whole groups of rows are left out.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from typing import Any, Generic, TypeVar

import msgspec
import numpy as np
import numpy.typing as npt

from medusa_sim.arrays import BoolArray, FloatArray, IntArray, as_float
from medusa_sim.errors import DataError
from medusa_sim.lab.calibrate.errors import mape
from medusa_sim.latency.operator_time import OperatorTime
from medusa_sim.operators.kinds import KIND_OF
from medusa_sim.operators.operator import Operator
from medusa_sim.reading import read_toml
from medusa_sim.specs.fitted import Fit, Residual
from medusa_sim.specs.gpu import Gpu
from medusa_sim.specs.inheritance import widen_band
from medusa_sim.specs.kernels import Kernel
from medusa_sim.specs.strict import T, convert

OperatorT = TypeVar("OperatorT", bound=Operator)
KernelT = TypeVar("KernelT", bound=Kernel)
Parameters = TypeVar("Parameters", bound=msgspec.Struct)
Limits = Mapping[str, tuple[float, float]]
"""Lowest and highest value by name."""
_STARTS = Path(__file__).with_name("starts.toml")


@cache
def starts(section: str, form: type[T]) -> T:
    """A section of `starts.toml`: where fits begin, and what is known of libraries."""
    return convert(read_toml(_STARTS)[section], form, _STARTS, key=section)


Triples = dict[str, dict[str, tuple[float, float, float]]]
"""Start, lowest and highest value of parameters, by kind."""


@dataclass(frozen=True, slots=True)
class Bounds:
    """Where the parameters that least squares finds start, and how far they may go."""

    starts: dict[str, float]
    limits: Limits

    @classmethod
    def of(cls, kind: str) -> Bounds:
        """Those of a kind in `starts.toml`."""
        given = starts("bounds", Triples)[kind]
        return cls(
            {name: start for name, (start, _, _) in given.items()},
            {name: (lowest, highest) for name, (_, lowest, highest) in given.items()},
        )


FOLDS = 5
LEAST_ROWS = 20
SCALE = 0.1
"""Log error from which on errors count by size, no longer by their square."""
UNFITTED = Fit(
    source="being fitted",
    rows=0,
    fit_error=0.0,
    heldout_error=0.0,
    residuals=(Residual(size_max=1.0, low=1.0, high=1.0),),
)


@dataclass(frozen=True, slots=True)
class Rows(Generic[OperatorT]):
    """Measured rows of one kind: an operator that holds one shape a row, and their times in us."""

    operator: OperatorT
    time_us: FloatArray

    def where(self, keep: BoolArray | IntArray) -> Rows[OperatorT]:
        """The rows for which `keep` is true (or whose numbers it holds)."""
        sizes = {name: np.asarray(size)[keep] for name, size in self.operator.sizes.items()}
        return Rows(self.operator.with_columns(**sizes), self.time_us[keep])

    def thin(self, count: int, *order: str) -> Rows[OperatorT]:
        """At most `count` rows, drawn evenly over the shapes in the order of these columns, last first."""
        ranks = np.lexsort([np.asarray(self.operator.sizes[name]) for name in order])
        step = max(1.0, len(ranks) / count)
        places = np.arange(0.0, len(ranks), step).astype(np.int64)
        return self.where(ranks[np.minimum(places, len(ranks) - 1)])

    def labels(self, *columns: str) -> IntArray:
        """A label for each distinct combination of sizes, counted from 0."""
        sizes = np.stack([np.asarray(self.operator.sizes[name]) for name in columns])
        return np.unique(sizes, axis=1, return_inverse=True)[1].reshape(-1).astype(np.int64)

    def first_labels(self, *choices: tuple[str, ...]) -> IntArray:
        """`labels` of the first of these columns that tell rows apart, of the last where none does."""
        labels = [self.labels(*columns) for columns in choices]
        return next((label for label in labels if label.max() > 0), labels[-1])


def heldout_groups(rows: Rows[Any]) -> IntArray:
    """What is held out together: a label per value of the first columns of the kind that tell rows apart."""
    label = rows.first_labels(*KIND_OF[rows.operator.kind].groups)
    return label if label.max() > 0 else np.arange(len(rows.time_us))


def require_rows(rows: Rows[Any], source: str) -> None:
    """Raise DataError where there are too few rows for a fit."""
    count = len(rows.time_us)
    if count < LEAST_ROWS:
        raise DataError(f"{source}: {count} rows of {rows.operator.kind}; a fit needs {LEAST_ROWS} or more")


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
    from scipy.optimize import least_squares

    def errors(logarithms: FloatArray) -> FloatArray:
        return log_errors(np.exp(logarithms).tolist())

    lowest, highest = np.log(bounds).T
    begin = np.log([max(value, low) for value, (low, _) in zip(start, bounds, strict=True)])
    solution = least_squares(
        errors,
        np.clip(begin, lowest + margin, highest - margin),
        bounds=(lowest, highest + slack),
        loss="soft_l1",
        f_scale=scale,
        **options,
    )
    values: list[float] = np.exp(solution.x).tolist()
    return values


def refined(
    kernel: Parameters,
    limits: Limits,
    log_errors: Callable[[Parameters], FloatArray],
    *,
    scale: float = SCALE,
    **options: Any,
) -> Parameters:
    """The kernel with the parameters of `limits` at the least objective, from where they are."""

    def replaced(values: Sequence[float]) -> Parameters:
        return msgspec.structs.replace(kernel, **dict(zip(limits, values, strict=True)))

    def errors(values: Sequence[float]) -> FloatArray:
        return log_errors(replaced(values))

    start = [getattr(kernel, name) for name in limits]
    return replaced(least_log_errors(start, tuple(limits.values()), errors, scale=scale, **options))


_CHANGE_GAIN = 0.99
"""What another whole number must lower the objective to, to be kept."""


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


@dataclass(frozen=True, slots=True)
class Law(Generic[OperatorT, KernelT]):
    """The driver of a fit: the law that times a kind of operator on one GPU, and what fits do with it."""

    gpu: Gpu
    time: Callable[[Gpu, KernelT, OperatorT], OperatorTime]
    """The law, of operators whose operands may be in the cache, as rows were measured."""

    def time_us(self, kernel: KernelT, rows: Rows[OperatorT]) -> FloatArray:
        """Predicted time of each row."""
        return self.time(self.gpu, kernel, rows.operator).time_us

    def cost(self, kernel: KernelT, rows: Rows[OperatorT]) -> float:
        """The objective."""
        return soft_cost(np.log(self.time_us(kernel, rows) / rows.time_us))

    def best(self, kernels: Iterable[KernelT], rows: Rows[OperatorT]) -> KernelT:
        """The kernel of the least objective."""
        return min(kernels, key=lambda kernel: self.cost(kernel, rows))

    def refined(self, kernel: KernelT, limits: Limits, rows: Rows[OperatorT], **options: Any) -> KernelT:
        """The kernel with the parameters of `limits` at the least objective, as `refined`."""
        log_time = np.log(rows.time_us)
        return refined(kernel, limits, lambda trial: np.log(self.time_us(trial, rows)) - log_time, **options)

    def with_fit(
        self,
        kernel: KernelT,
        rows: Rows[OperatorT],
        refit: Callable[[KernelT, Rows[OperatorT]], KernelT],
        *,
        source: str,
        groups: IntArray | None = None,
        folds: int = FOLDS,
        least_rows: int = 1,
        unseen: float = 0.0,
    ) -> KernelT:
        """The kernel with its `fit`: errors on the rows, and of refits without each fold of the groups.

        refit: gives it for other rows from where it is. groups: a label a row, counted from 0,
        `heldout_groups` where None; those with the same remainder by `folds` are left out together.
        least_rows: of the bands' ranges of size (`residual_bands`). unseen: by how much one group would widen
        them; more do so as much less.
        """
        groups = heldout_groups(rows) if groups is None else groups
        ends = KIND_OF[rows.operator.kind].ranges
        heldout_us = np.empty_like(rows.time_us)
        for fold in range(min(folds, int(groups.max()) + 1)):
            held: npt.NDArray[np.bool_] = groups % folds == fold
            heldout_us[held] = self.time_us(refit(kernel, rows.where(~held)), rows.where(held))
        size, widen = as_float(rows.operator.size), 1.0 + unseen / (int(groups.max()) + 1)
        bands = residual_bands(rows.time_us, heldout_us, size, ends, least_rows=least_rows, widen=widen)
        fit = Fit(
            source=source,
            rows=len(rows.time_us),
            fit_error=mape(self.time_us(kernel, rows), rows.time_us),
            heldout_error=mape(heldout_us, rows.time_us),
            residuals=bands,
        )
        return msgspec.structs.replace(kernel, fit=fit)


def warm(time: Callable[..., OperatorTime]) -> Callable[[Gpu, Any, Any], OperatorTime]:
    """A law with operands that may be in the cache."""
    return partial(time, cold=False)


def residual_bands(
    measured_us: FloatArray,
    predicted_us: FloatArray | float,
    size: FloatArray,
    upper_ends: Sequence[int],
    least_rows: int = 1,
    widen: float = 1.0,
) -> tuple[Residual, ...]:
    """10 % and 90 % quantiles of measured / predicted in each range of size that has rows enough.

    upper_ends: ascending; a row belongs to the first range whose end is not below its size. Rows beyond
    the last end are in no band. A range with fewer than `least_rows` joins the next; where no range has
    as many, the last holds all. A band always holds the prediction itself: where few rows err to one side,
    its other end is 1. widen: about its own centre, so many times as wide.
    """
    ratio = measured_us / predicted_us
    bands: list[Residual] = []
    lower = 0
    for upper in upper_ends:
        inside = ratio[(size > lower) & (size <= upper)]
        alone = not bands and upper == upper_ends[-1]
        if inside.size >= (1 if alone else least_rows):
            low, high = np.quantile(inside, (0.1, 0.9))
            band = Residual(size_max=float(upper), low=min(1.0, float(low)), high=max(1.0, float(high)))
            bands.append(widen_band(band, widen, 0.0))
            lower = upper
    return tuple(bands)
