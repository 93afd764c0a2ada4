"""A served engine against the simulator: what is fitted, what is predicted from it, and how far off.

Kernels come from the engine's own operators (`engine_kernels`). Beside them a step takes the terms of
`EngineTerms`, which are fitted to plain decoding at FIT_BATCHES requests, and to FIT_DRAFTS drafts at the
same batches of the first target alone. Those cells are left out of every score; all else is predicted.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from scipy.optimize import nnls
from steps_record import Accepted, EngineKernels, EngineRecord, EngineStep, read_engine_record, settled

from medusa_sim.arrays import FloatArray
from medusa_sim.errors import SpecError
from medusa_sim.specs.engine import Engine, Term
from medusa_sim.specs.runtime import load_runtime
from medusa_sim.step.compose import drafting_us, host_us
from medusa_sim.validate.comparison import CountChoice, Deviation, choice_of, comparison, disagreement

FIT_BATCHES = (1, 64)
FIT_DRAFTS = 3
UNSTEADY = 0.15
"""Passes that differ by more than this in the mean cannot judge a model that is to be right within 10 %."""
QUANTITIES = {"plain": "plain step", "ngram": "n-gram step", "draft": "draft-model step"}


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineTerms:
    """Microseconds beside kernels, in the form of `step/compose.py`.

    step: (N1) of the host, by target, since an engine without graphs launches every layer from there;
    request: (N1) for each request. draft_pass, draft_request: of a draft model, beside the
    kernels of its passes, since a CPU launches them itself. row: (N4) for a row of
    logits, verified or drafted. A look-up (N2) cannot be told from its rows at one number of drafts: no term.
    """

    step: dict[str, float]
    request: float
    draft_pass: float
    draft_request: float
    row: float

    def beside_us(self, step: EngineStep) -> float:
        """Time of a step beside its kernels."""
        engine = _engine(self, step.target)
        added = host_us(engine, step.batch).time_us
        if step.method == "draft":
            added = added + drafting_us(engine, "draft-model", step.drafts, step.batch).time_us
            added = added + self.draft_pass * step.drafts
        return float(added + self.row * _logit_rows(step))


def _engine(terms: EngineTerms, target: str) -> Engine:
    """The newest vLLM with these terms in place of its own, nothing hidden behind the device."""
    base = load_runtime("vllm").engine
    if base is None:
        raise SpecError("runtime vllm has no terms of an engine; specs/runtimes.toml must give them")
    given = {
        "host_us_per_step": terms.step[target],
        "host_us_per_request": terms.request,
        "hidden_us_per_step": 0.0,
        "draft_us_per_step": 0.0,
        "draft_us_per_request": terms.draft_request,
    }
    return base.with_terms({name: Term(value=value, source="fitted here") for name, value in given.items()})


def _logit_rows(step: EngineStep) -> float:
    """Rows of logits from which a token is chosen: the verified ones, and one a draft pass and request."""
    return step.rows + (step.drafts * step.batch if step.method == "draft" else 0)


def _occurrences(step: EngineStep, targets: Sequence[str]) -> list[float]:
    """How often each term occurs in a step: of every target, then as in `EngineTerms`."""
    drafting = step.method == "draft"
    return [
        *(float(step.target == target) for target in targets),
        float(step.batch),
        float(step.drafts) if drafting else 0.0,
        float(step.batch) if drafting else 0.0,
        _logit_rows(step),
    ]


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineCell:
    """One target, method, number of drafts and batch, microseconds; the step of the pass that counts."""

    step: EngineStep
    passes: int
    passes_differ: float
    kernels_us: float
    predicted_us: float
    is_fitted: bool

    @property
    def measured_us(self) -> float:
        """The median step of that pass."""
        return self.step.time_us

    @property
    def where(self) -> str:
        """Its place in words."""
        drafts = f", {self.step.drafts} drafts" if self.step.drafts else ""
        return f"{self.step.method}, batch {self.step.batch}{drafts}"


@dataclass(frozen=True, slots=True, kw_only=True)
class ChainGain:
    """Speedup of a chain: tokens per step of the shipped pair, times plain step over its step."""

    cell: EngineCell
    plain: EngineCell
    measured_tokens: float
    predicted_tokens: float

    @property
    def measured(self) -> float:
        """Both times and the acceptance measured in the engine."""
        return self.measured_tokens * self.plain.measured_us / self.cell.measured_us

    @property
    def predicted(self) -> float:
        """Both times and the acceptance predicted."""
        return self.predicted_tokens * self.plain.predicted_us / self.cell.predicted_us


@dataclass(frozen=True, slots=True, kw_only=True)
class ChainBreakEven:
    """The batch from which a chain no longer pays: 0 where it never does, inf where it always does."""

    target: str
    method: str
    drafts: int
    predicted: float
    measured: float


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineValidation:
    """A scored record. choices: by target and method. passes_differ: mean of cells with two. wall_share:
    wall clock over the time of a step, in the mean of the chosen passes: how far other programs held it up.
    """

    record: EngineRecord
    terms: EngineTerms
    cells: list[EngineCell]
    scores: list[tuple[str, Deviation]]
    choices: list[tuple[str, CountChoice]]
    break_even: list[ChainBreakEven]
    passes_differ: float
    wall_share: float

    @property
    def is_steady(self) -> bool:
        """Whether there are passes to compare, and they agree well enough to judge by."""
        return self.record.meta.passes > 1 and self.passes_differ <= UNSTEADY


def validate_engine(folder: Path) -> EngineValidation:
    """Read a record, fit its terms, predict the rest. Raises DataError."""
    record = read_engine_record(folder)
    cells = _cells(record)
    gains = _gains(cells, record.accepted)
    return EngineValidation(
        record=record,
        terms=_fitted_terms(record, cells),
        cells=cells,
        scores=[score for target in record.meta.targets for score in _scores(target, cells, gains)],
        choices=_choices(gains),
        break_even=_break_even(gains),
        passes_differ=float(np.mean([cell.passes_differ for cell in cells if cell.passes > 1] or [0.0])),
        wall_share=float(np.mean([cell.step.elapsed_us / cell.step.time_us for cell in cells])),
    )


def _is_fitted(step: EngineStep, first: str) -> bool:
    speculates_first = step.target == first and step.drafts == FIT_DRAFTS
    return step.batch in FIT_BATCHES and (step.method == "plain" or speculates_first)


def _settled(steps: list[EngineStep], usual_us: float) -> EngineStep:
    times, beside = [step.time_us for step in steps], [step.reference_us for step in steps]
    return steps[settled(times, beside, usual_us)]


def _cells(record: EngineRecord) -> list[EngineCell]:
    kernels = EngineKernels(record)
    usual_us = float(np.median([step.reference_us for step in record.steps]))
    passes: dict[tuple[str, str, int, int], list[EngineStep]] = {}
    for step in record.steps:
        passes.setdefault((step.target, step.method, step.drafts, step.batch), []).append(step)
    unpriced = [
        EngineCell(
            step=(middle := _settled(steps, usual_us)),
            passes=len(steps),
            passes_differ=disagreement(tuple(step.time_us for step in steps)),
            kernels_us=kernels.step_us(middle),
            predicted_us=math.nan,
            is_fitted=_is_fitted(middle, record.meta.targets[0]),
        )
        for steps in passes.values()
    ]
    terms = _fitted_terms(record, unpriced)
    return [
        EngineCell(
            step=cell.step,
            passes=cell.passes,
            passes_differ=cell.passes_differ,
            kernels_us=cell.kernels_us,
            predicted_us=cell.kernels_us + terms.beside_us(cell.step),
            is_fitted=cell.is_fitted,
        )
        for cell in unpriced
    ]


def _fitted_terms(record: EngineRecord, cells: Sequence[EngineCell]) -> EngineTerms:
    """Least squares of relative errors with no term below zero."""
    chosen = [cell for cell in cells if cell.is_fitted]
    weights = np.array([1.0 / cell.measured_us for cell in chosen])
    targets = record.meta.targets
    counts = np.array([_occurrences(cell.step, targets) for cell in chosen])
    gaps = np.array([cell.measured_us - cell.kernels_us for cell in chosen])
    terms, _ = nnls(counts * weights[:, None], gaps * weights)
    host = dict(zip(targets, terms.tolist(), strict=False))
    request, draft_pass, draft_request, row = terms[len(targets) :].tolist()
    return EngineTerms(
        step=host, request=request, draft_pass=draft_pass, draft_request=draft_request, row=row
    )


def _compared(quantity: str, cells: Sequence[EngineCell], ratio: Callable[[EngineCell], float]) -> Deviation:
    ratios = np.array([ratio(cell) for cell in cells])
    return comparison(
        quantity, ratios, [cell.passes_differ for cell in cells], [cell.where for cell in cells]
    )


def _scores(
    target: str, cells: Sequence[EngineCell], gains: Sequence[ChainGain]
) -> Iterable[tuple[str, Deviation]]:
    """Steps by method, then throughput and speedup of chains with the acceptance of the shipped pair."""
    for method, quantity in QUANTITIES.items():
        free = [c for c in cells if c.step.target == target and c.step.method == method and not c.is_fitted]
        if free:
            yield target, _compared(quantity, free, lambda c: c.predicted_us / c.measured_us)
    by_cell = {id(gain.cell): gain for gain in gains}
    free = [gain.cell for gain in gains if gain.cell.step.target == target and not gain.cell.is_fitted]

    def speedup(cell: EngineCell) -> float:
        return by_cell[id(cell)].predicted / by_cell[id(cell)].measured

    def throughput(cell: EngineCell) -> float:
        gain = by_cell[id(cell)]
        return gain.predicted_tokens / gain.measured_tokens * cell.measured_us / cell.predicted_us

    if free:
        yield target, _compared("tokens per second", free, throughput)
        yield target, _compared("speedup", free, speedup)


def tokens_per_step(accepted: Sequence[Accepted], method: str, source: str, drafts: int) -> float:
    """1 + the mean number of accepted drafts of a chain."""
    return 1.0 + sum(
        row.share
        for row in accepted
        if row.method == method and row.source == source and row.position <= drafts
    )


def _gains(cells: Sequence[EngineCell], accepted: Sequence[Accepted]) -> list[ChainGain]:
    plain = {(c.step.target, c.step.batch): c for c in cells if c.step.method == "plain"}
    return [
        ChainGain(
            cell=cell,
            plain=plain[cell.step.target, cell.step.batch],
            measured_tokens=tokens_per_step(accepted, cell.step.method, "vLLM", cell.step.drafts),
            predicted_tokens=tokens_per_step(accepted, cell.step.method, "predicted", cell.step.drafts),
        )
        for cell in cells
        if cell.step.method != "plain"
    ]


def _groups(
    gains: Sequence[ChainGain], by: Callable[[EngineStep], int]
) -> dict[tuple[str, str, int], list[ChainGain]]:
    found: dict[tuple[str, str, int], list[ChainGain]] = {}
    for gain in gains:
        step = gain.cell.step
        found.setdefault((step.target, step.method, by(step)), []).append(gain)
    return found


def _choices(gains: Sequence[ChainGain]) -> list[tuple[str, CountChoice]]:
    """The best number of drafts by target, method and batch; 0 is plain decoding."""
    found = []
    for (target, method, batch), group in _groups(gains, lambda step: step.batch).items():
        ordered = sorted(group, key=lambda gain: gain.cell.step.drafts)
        drafts = [0, *(gain.cell.step.drafts for gain in ordered)]
        measured = np.array([1.0, *(gain.measured for gain in ordered)])
        predicted = np.array([1.0, *(gain.predicted for gain in ordered)])
        found.append((method, choice_of(target, batch, drafts, measured, predicted)))
    return found


def _break_even(gains: Sequence[ChainGain]) -> list[ChainBreakEven]:
    found = []
    for (target, method, drafts), group in _groups(gains, lambda step: step.drafts).items():
        ordered = sorted(group, key=lambda gain: gain.cell.step.batch)
        batches = np.array([gain.cell.step.batch for gain in ordered], dtype=float)
        found.append(
            ChainBreakEven(
                target=target,
                method=method,
                drafts=drafts,
                predicted=_crossing(batches, np.array([gain.predicted for gain in ordered])),
                measured=_crossing(batches, np.array([gain.measured for gain in ordered])),
            )
        )
    return found


def _crossing(batches: FloatArray, speedup: FloatArray) -> float:
    """First batch at which a speedup falls to 1, between two measured ones by the logarithm."""
    below = np.flatnonzero(speedup <= 1.0)
    if not below.size:
        return math.inf
    j = int(below[0])
    if j == 0:
        return 0.0
    share = (speedup[j - 1] - 1.0) / (speedup[j - 1] - speedup[j])
    return float(batches[j - 1] * (batches[j] / batches[j - 1]) ** share)
