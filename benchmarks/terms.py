"""Terms of engines that a study fits: priors, what is stored, least squares with the priors beside rows."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from scipy.optimize import OptimizeResult, least_squares

from medusa_sim.arrays import FloatArray
from medusa_sim.specs.engine import Engine, Term
from medusa_sim.specs.runtime import load_runtime


@dataclass(frozen=True)
class Fitted:
    """A fitted term: its runtimes (those that inherit it follow), name, prior mean and standard deviation.

    grid: values between which times are interpolated. of_rounds: changes nothing of plain decoding.
    """

    runtimes: tuple[str, ...]
    term: str
    prior: float
    spread: float
    grid: tuple[float, ...] = ()
    of_rounds: bool = False


def priors(terms: Sequence[Fitted]) -> tuple[FloatArray, FloatArray]:
    """Means and standard deviations."""
    return np.array([float(term.prior) for term in terms]), np.array([float(term.spread) for term in terms])


def engine_of(runtime: str) -> Engine:
    """The engine of a shipped runtime."""
    engine = load_runtime(runtime).engine
    assert engine is not None
    return engine


def stored(terms: Sequence[Fitted]) -> FloatArray:
    """What runtimes.toml holds, of the first runtime where several share a term."""
    return np.array([engine_of(each.runtimes[0]).terms[each.term].value for each in terms])


def with_values(engine: Engine, values: Mapping[str, float]) -> Engine:
    """The engine with terms of other values, their bands kept."""
    changed = {
        name: Term(value=float(value), band=engine.terms[name].band, source="being fitted")
        for name, value in values.items()
    }
    return engine.with_terms(changed)


def solved(terms: Sequence[Fitted], residuals: Callable[[FloatArray], FloatArray]) -> OptimizeResult:
    """Values that make residuals and distances from the priors least, none below 0."""
    prior, spread = priors(terms)

    def both(values: FloatArray) -> FloatArray:
        return np.concatenate([residuals(values), (values - prior) / spread])

    return least_squares(both, prior, x_scale=spread, bounds=(0.0, np.inf))


def print_terms(terms: Sequence[Fitted], values: FloatArray) -> None:
    """Fitted values beside those stored."""
    for term, value, kept in zip(terms, values, stored(terms), strict=True):
        print(f"{', '.join(term.runtimes):24s} {term.term:30s} {value:10.3f}  stored {kept:10.3f}")
