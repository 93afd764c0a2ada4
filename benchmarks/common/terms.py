"""Terms of engines that a study fits: priors, what is stored, least squares with the priors beside rows."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from scipy.optimize import OptimizeResult, least_squares

from common.study import table
from medusa_sim.arrays import FloatArray
from medusa_sim.engines.engine import Engine
from medusa_sim.engines.runtime import Runtime, load_runtime
from medusa_sim.engines.term import Term

CHOSEN = ("between_share", "gain_share", "lookup_gain_share", "far_gain_share")
"""Shares that bands have beside those of kernels and terms."""


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


def bare(runtime: Runtime) -> Runtime:
    """Without the shares that `engine_bands.py` and `round_bands.py` choose."""
    assert runtime.engine is not None
    nothing = Term(value=0.0, source="being chosen")
    return replace(runtime, engine=runtime.engine.with_terms(dict.fromkeys(CHOSEN, nothing)))


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


def determined(terms: Sequence[Fitted], found: OptimizeResult) -> tuple[FloatArray, FloatArray]:
    """Share of each term that rows decide, not its prior, and the deviation that they leave it.

    found: of `solved`. The diagonal of H (H + P)^-1 and roots of that of (H + P)^-1, H and P the curvatures
    of rows and priors.
    """
    _, spread = priors(terms)
    jacobian = found.jac[: -len(terms)]
    variance = np.diag(np.linalg.inv(jacobian.T @ jacobian + np.diag(spread**-2)))
    return 1.0 - variance / spread**2, np.sqrt(variance)


def terms_table(terms: Sequence[Fitted], found: OptimizeResult) -> str:
    """Terms with what the rows say of them, best known first."""
    shares, deviations = determined(terms, found)
    return table("term | prior | with the cells | decided by cells %", 1, [
        (f"{', '.join(terms[i].runtimes)}: `{terms[i].term}`", f"{terms[i].prior:g} ± {terms[i].spread:g}",
         f"{found.x[i]:.3g} ± {deviations[i]:.2g}", f"{100 * shares[i]:.0f}")
        for i in np.argsort(-shares)
    ])  # fmt: skip


def engine_table(text: str, runtime: str) -> str:
    """The table of a runtime's engine in the text of runtimes.toml."""
    start = text.index(f'["{runtime}".engine]\n')
    end = text.find("\n[", start)
    return text[start : len(text) if end < 0 else end + 1]


def with_term_line(text: str, runtime: str, line: str) -> str:
    """The text with this line (`TERM = {...}`) in the table, in place of the term's own or at the end."""
    table, term = engine_table(text, runtime), line.partition(" ")[0]
    written, count = re.subn(rf"(?m)^{term} = .*$", lambda _: line, table)
    return text.replace(table, written if count else f"{table.rstrip()}\n{line}\n\n")


def inline(value: Any) -> str:
    """A value as TOML has it on one line."""
    if isinstance(value, dict):
        return f"{{ {', '.join(f'{name} = {inline(each)}' for name, each in value.items())} }}"
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(inline, value))}]"
    if isinstance(value, float):
        short = f"{value:g}"
        return short if float(short) == value else repr(value)
    return json.dumps(value, ensure_ascii=False)


def print_terms(terms: Sequence[Fitted], values: FloatArray) -> None:
    """Fitted values beside those stored."""
    for term, value, kept in zip(terms, values, stored(terms), strict=True):
        print(f"{', '.join(term.runtimes):24s} {term.term:30s} {value:10.3f}  stored {kept:10.3f}")
