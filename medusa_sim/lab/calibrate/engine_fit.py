"""A user's own runtime: the terms of an engine, fitted to what a load generator measured on it.

    (N12) measured(b) = kernels(b) + a + b h + F(b) filter_bytes                     plain steps of b requests
    (N13) measured(b) = kernels(b) + a + b h + F(b) filter_bytes + e + b h_s         steps that draft, each of
                        whose passes takes |kernels, u|

kernels(b) is the step of the inherited engine without these terms, seen as the load generator sees it
(`serving/server.py`), F the filter of top-p and top-k per byte. The terms are the least squares of the
relative errors, never negative, drawn towards those of the inherited engine as far as its bands are narrow
and the rows few: two numbers of requests are enough, more narrow the bands.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import msgspec
import numpy as np

from medusa_sim.acceptance.heads import NORMAL_90TH
from medusa_sim.arrays import FloatArray
from medusa_sim.engine_runs.bench_row import BenchRow
from medusa_sim.engines.engine import Engine
from medusa_sim.engines.ranges import MeasuredRange
from medusa_sim.engines.runtime import Runtime
from medusa_sim.engines.term import Term
from medusa_sim.errors import DataError, UsageError
from medusa_sim.lab.calibrate.predicted_runs import (
    DrafterOf,
    covered_text,
    engine_of,
    measured_range,
    predicted_us,
    source_text,
    with_terms,
)
from medusa_sim.step.drafter import lookups
from medusa_sim.step.setting import Setting

NOISE = 0.02
"""Relative error of a measured median, where the rows do not show a larger one."""
_HOST_SPREAD = {"host_us_per_step": 500.0, "host_us_per_request": 50.0, "filter_bytes_per_logit": 100.0}
"""The terms of (N12), and by how much they may differ from an inherited engine at least, one sigma."""
MOST_BAND = 10.0
"""The widest relative half-width that is written: the term is not known."""
_STEP_US = 1.0
"""By how much a term is moved to see what it does."""
_ROUNDS = 4
"""Linear fits, each around the values of the one before."""
_NOISE_ROUNDS = 2
"""Least squares, the second weighed by the noise that the first one leaves."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FittedRow:
    """One measured run beside what the fitted runtime gives for it.

    leave_one_out_us: given by the terms that are fitted without the runs at this number of requests; None
    where nothing would be left.
    """

    row: BenchRow
    fitted_us: float
    leave_one_out_us: float | None

    @property
    def error(self) -> float:
        """Fitted over measured, less 1."""
        return self.fitted_us / self.row.step_us - 1.0

    @property
    def leave_one_out_error(self) -> float | None:
        """The same where this number of requests was left out."""
        return None if self.leave_one_out_us is None else self.leave_one_out_us / self.row.step_us - 1.0


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class FittedRuntime:
    """The runtime, the terms that were fitted, and every run beside it."""

    runtime: Runtime
    terms: dict[str, Term]
    rows: tuple[FittedRow, ...]


def fitted_runtime(
    setting: Setting, rows: Sequence[BenchRow], *, name: str, title: str, drafter: DrafterOf | None = None
) -> FittedRuntime:
    """The runtime of an engine from runs on it. setting: model, device and the runtime to inherit from.

    drafter: what drafts K tokens in the runs that speculate.
    Raises DataError for runs at one number of requests, or without plain runs; UsageError for runs that
    speculate without a drafter, or a runtime that is no engine.
    """
    engine = setting.runtime.engine
    if engine is None:
        raise UsageError(
            f"runtime {setting.runtime.name} is no serving engine; inherit from one with --runtime vllm"
        )
    plain = [row for row in rows if row.drafts == 0]
    speculative = [row for row in rows if row.drafts > 0]
    sizes = sorted({row.concurrency for row in plain})
    if len(sizes) < 2:
        plain_text = f"plain runs at {sizes[0]:g} requests only" if sizes else "no run without speculation"
        raise DataError(f"{plain_text}; two numbers of requests in flight are needed, such as 1 and 64")
    if speculative and drafter is None:
        raise UsageError(
            "runs with speculation need to know what drafts: add --drafter NAME (and --draft-model)"
        )
    terms = _terms(setting, rows, drafter)
    whole = with_terms(setting, terms)
    predicted = [predicted_us(whole, row, drafter) for row in rows]
    left_out = _left_out_us(setting, rows, drafter)
    fitted = tuple(
        FittedRow(row=row, fitted_us=us, leave_one_out_us=other)
        for row, us, other in zip(rows, predicted, left_out, strict=True)
    )
    error = [abs(each.leave_one_out_error) for each in fitted if each.leave_one_out_error is not None]
    mean_error = round(float(np.mean(error)), 4) if error else None
    scored = {
        key: msgspec.structs.replace(term, heldout_error=mean_error if term.valid else None)
        for key, term in terms.items()
    }
    runtime = replace(with_terms(setting, scored).runtime, name=name, title=title)
    return FittedRuntime(runtime=runtime, terms=scored, rows=fitted)


def _terms(setting: Setting, rows: Sequence[BenchRow], drafter: DrafterOf | None) -> dict[str, Term]:
    """(N12) and (N13) at once: runs that speculate tell the choice of tokens from the work for a request."""
    engine = engine_of(setting)
    speculative = [row for row in rows if row.drafts > 0]
    spreads = dict(_HOST_SPREAD)
    if speculative and drafter is not None:
        spreads |= _draft_spread(engine, drafter(1).name)
    held = {
        "hidden_us_per_step": Term(value=0.0, source="in host_us_per_step"),
        "host_us_per_token": Term(value=0.0, source="in host_us_per_request"),
        "filter_us": Term(value=0.0, source="in host_us_per_step"),
    }
    bare = with_terms(setting, held)

    def seen_us(setting: Setting) -> FloatArray:
        return np.asarray([predicted_us(setting, row, drafter) for row in rows])

    known = {name: engine.terms[name].value for name in spreads}
    known["host_us_per_step"] = max(known["host_us_per_step"] - engine.hidden_us_per_step.value, 0.0)
    prior = np.asarray(list(known.values()))
    half = np.asarray([engine.terms[name].half_width for name in spreads])
    spread = np.maximum(half / NORMAL_90TH, list(spreads.values()))
    observed = np.asarray([row.step_us for row in rows])
    value = prior
    for _ in range(_ROUNDS if speculative else 1):  # the host of a pass overlaps with its kernels: not linear
        at = dict(zip(spreads, value.tolist(), strict=True))
        base = seen_us(_held_at(bare, at))
        columns = np.stack(
            [seen_us(_held_at(bare, at | {name: at[name] + _STEP_US})) - base for name in spreads], axis=1
        )
        columns /= _STEP_US
        value, sigma = _linear_fit(columns, observed - base + columns @ value, observed, prior, spread)
    plain = [row for row in rows if row.drafts == 0]
    rows_of = {name: plain if name in _HOST_SPREAD else speculative for name in spreads}
    fitted = {
        name: _term(value[i], sigma[i], rows_of[name], measured_range(setting, rows_of[name]))
        for i, name in enumerate(spreads)
    }
    return fitted | held


def _held_at(setting: Setting, values: dict[str, float]) -> Setting:
    return with_terms(setting, {name: Term(value=value, source="fitted") for name, value in values.items()})


def _draft_spread(engine: Engine, drafter: str) -> dict[str, float]:
    """The terms that drafting adds, and by how much they may differ from the inherited ones at least."""
    if drafter in lookups():
        return {"lookup_us_per_request": 20.0}
    return {
        "draft_us_per_step": 1500.0,
        "draft_us_per_request": 150.0,
        "draft_us_per_pass": max(engine.draft_us_per_pass.value, 20.0),
    }


def _term(value: float, sigma: float, rows: Sequence[BenchRow], measured: MeasuredRange) -> Term:
    half, kept = float(NORMAL_90TH * sigma), round(float(value), 3)
    return Term(
        value=kept,
        band=min(round(half / kept, 3), MOST_BAND) if kept > 0.0 else 0.0,
        source=source_text(rows),
        measured=measured,
        valid=covered_text(rows),
    )


def _linear_fit(
    columns: FloatArray, wanted: FloatArray, observed: FloatArray, prior: FloatArray, spread: FloatArray
) -> tuple[FloatArray, FloatArray]:
    """(value, sigma) of non-negative terms: relative least squares with a prior, noise from the residuals."""
    from scipy.optimize import lsq_linear

    noise = NOISE
    for _ in range(_NOISE_ROUNDS):
        weight = 1.0 / (noise * observed)
        a = np.concatenate([columns * weight[:, None], np.diag(1.0 / spread)])
        b = np.concatenate([wanted * weight, prior / spread])
        value = np.asarray(lsq_linear(a, b, bounds=(0.0, np.inf)).x)
        free = observed.size - columns.shape[1]
        residual = (columns @ value - wanted) / observed
        if free > 0:
            noise = max(NOISE / 2.0, float(np.sqrt(np.sum(residual**2) / free)))
    sigma = np.sqrt(np.diag(np.linalg.inv(a.T @ a)))
    return value, np.asarray(sigma)


def _left_out_us(setting: Setting, rows: Sequence[BenchRow], drafter: DrafterOf | None) -> list[float | None]:
    """Each run as the terms give it that are fitted without any run at its number of requests."""
    without: dict[float, Setting] = {}
    found: list[float | None] = []
    for left in rows:
        kept = [row for row in rows if row.concurrency != left.concurrency]
        if all(row.drafts > 0 for row in kept) or (left.drafts > 0 and all(row.drafts == 0 for row in kept)):
            found.append(None)
            continue
        if left.concurrency not in without:
            without[left.concurrency] = with_terms(setting, _terms(setting, kept, drafter))
        found.append(predicted_us(without[left.concurrency], left, drafter))
    return found
