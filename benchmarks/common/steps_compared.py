"""A served engine against the simulator: what is fitted, what is predicted from it, and how far off.

Kernels come from the engine's own operators (`EngineKernels`). Beside them a step takes the terms of
`EngineTerms`, which are fitted to plain decoding at FIT_BATCHES requests, and to FIT_DRAFTS drafts at the
same batches of the first target alone. Those cells are left out of every score; all else is predicted.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np
from scipy.optimize import nnls

from common.steps_record import Accepted, EngineKernels, EngineRecord, EngineStep, read_engine_record, settled
from medusa_sim.arrays import FloatArray
from medusa_sim.lab.validate.comparison import CountChoice, Deviation, choice_of, comparison, disagreement

FIT_BATCHES = (1, 64)
FIT_DRAFTS = 3
UNSTEADY = 0.15
"""Passes that differ by more than this on average cannot judge a model that is to be right within 10 %."""
QUANTITIES = {"plain": "plain step", "ngram": "n-gram step", "draft": "draft-model step"}


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineTerms:
    """Microseconds beside kernels, in the form of `step/compose.py` with nothing hidden behind the device.

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
        values = (*self.step.values(), self.request, self.draft_pass, self.draft_request, self.row)
        return float(np.dot(values, _occurrences(step, tuple(self.step))))


def _occurrences(step: EngineStep, targets: Sequence[str]) -> list[float]:
    """How often each term occurs in a step: of every target, then as in `EngineTerms`.

    Rows of logits from which a token is chosen: the verified ones, and one a draft pass and request.
    """
    drafts, batch = (step.drafts, step.batch) if step.method == "draft" else (0, 0)
    rows = step.rows + drafts * batch
    return [*(float(step.target == target) for target in targets), step.batch, drafts, batch, rows]


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineCell:
    """One target, method, number of drafts and batch, microseconds; the step of the pass that counts."""

    step: EngineStep
    passes: int
    passes_differ: float
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


class ChainBreakEven(NamedTuple):
    """The batch from which a chain no longer pays: 0 where it never does, inf where it always does."""

    target: str
    method: str
    drafts: int
    predicted: float
    measured: float


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineValidation:
    """A scored record. choices: by target and method. passes_differ: mean of cells with two. wall_share:
    wall clock over the time of a step, on average of the chosen passes: how far other programs held it up.
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
    terms, cells = _cells(record)
    plain = {(c.step.target, c.step.batch): c for c in cells if c.step.method == "plain"}
    gains = [
        ChainGain(
            cell=cell,
            plain=plain[cell.step.target, cell.step.batch],
            measured_tokens=tokens_per_step(record.accepted, cell.step.method, "vLLM", cell.step.drafts),
            predicted_tokens=tokens_per_step(
                record.accepted, cell.step.method, "predicted", cell.step.drafts
            ),
        )
        for cell in cells
        if cell.step.method != "plain"
    ]
    return EngineValidation(
        record=record,
        terms=terms,
        cells=cells,
        scores=[score for target in record.meta.targets for score in _scores(target, cells, gains)],
        choices=list(_choices(gains)),
        break_even=list(_break_even(gains)),
        passes_differ=float(np.mean([cell.passes_differ for cell in cells if cell.passes > 1] or [0.0])),
        wall_share=float(np.mean([cell.step.elapsed_us / cell.step.time_us for cell in cells])),
    )


def _cells(record: EngineRecord) -> tuple[EngineTerms, list[EngineCell]]:
    """Terms by least squares of relative errors of the fitted cells, none below zero, and every cell."""
    kernels, targets = EngineKernels(record), record.meta.targets
    usual_us = float(np.median([step.reference_us for step in record.steps]))
    passes: dict[tuple[str, str, int, int], list[EngineStep]] = {}
    for step in record.steps:
        passes.setdefault((step.target, step.method, step.drafts, step.batch), []).append(step)
    chosen = [
        own[settled([step.time_us for step in own], [step.reference_us for step in own], usual_us)]
        for own in passes.values()
    ]
    kernels_us = np.array([kernels.step_us(step) for step in chosen])
    times_us = np.array([step.time_us for step in chosen])
    fitted = np.array([_is_fitted(step, targets[0]) for step in chosen])
    counts = np.array([_occurrences(step, targets) for step in chosen])
    weights = 1.0 / times_us[fitted]
    values, _ = nnls(counts[fitted] * weights[:, None], (times_us - kernels_us)[fitted] * weights)
    of_step = dict(zip(targets, values.tolist(), strict=False))
    request, draft_pass, draft_request, row = values[len(targets) :].tolist()
    terms = EngineTerms(
        step=of_step, request=request, draft_pass=draft_pass, draft_request=draft_request, row=row
    )
    return terms, [
        EngineCell(
            step=step,
            passes=len(own),
            passes_differ=disagreement(tuple(each.time_us for each in own)),
            predicted_us=float(kernel_us) + terms.beside_us(step),
            is_fitted=bool(is_fitted),
        )
        for step, own, kernel_us, is_fitted in zip(chosen, passes.values(), kernels_us, fitted, strict=True)
    ]


def _is_fitted(step: EngineStep, first: str) -> bool:
    speculates_first = step.target == first and step.drafts == FIT_DRAFTS
    return step.batch in FIT_BATCHES and (step.method == "plain" or speculates_first)


def _scores(
    target: str, cells: Sequence[EngineCell], gains: Sequence[ChainGain]
) -> Iterator[tuple[str, Deviation]]:
    """Steps by method, then throughput and speedup of chains with the acceptance of the shipped pair."""

    def compared(quantity: str, own: Sequence[EngineCell], ratios: Sequence[float]) -> tuple[str, Deviation]:
        differ, where = [cell.passes_differ for cell in own], [cell.where for cell in own]
        return target, comparison(quantity, np.array(ratios), differ, where)

    free = [cell for cell in cells if cell.step.target == target and not cell.is_fitted]
    for method, quantity in QUANTITIES.items():
        if own := [cell for cell in free if cell.step.method == method]:
            yield compared(quantity, own, [cell.predicted_us / cell.measured_us for cell in own])
    if chains := [gain for gain in gains if gain.cell in free]:
        own = [gain.cell for gain in chains]
        tokens = [gain.predicted_tokens / gain.measured_tokens for gain in chains]
        times = [cell.measured_us / cell.predicted_us for cell in own]
        yield compared(
            "tokens per second", own, [one * other for one, other in zip(tokens, times, strict=True)]
        )
        yield compared("speedup", own, [gain.predicted / gain.measured for gain in chains])


def tokens_per_step(accepted: Sequence[Accepted], method: str, source: str, drafts: int) -> float:
    """1 + the mean number of accepted drafts of a chain."""
    return 1.0 + sum(
        row.share
        for row in accepted
        if row.method == method and row.source == source and row.position <= drafts
    )


Series = tuple[tuple[str, str, int], list[int], FloatArray, FloatArray]


def _series(gains: Sequence[ChainGain], by: str, along: str) -> Iterator[Series]:
    """Along `drafts` or `batch`, by the other: (target, method, value), places, gains predicted, measured."""
    order: dict[tuple[str, str, int], list[ChainGain]] = {}
    for gain in gains:
        step = gain.cell.step
        order.setdefault((step.target, step.method, getattr(step, by)), []).append(gain)
    for key, group in order.items():
        group.sort(key=lambda gain: getattr(gain.cell.step, along))
        places = [getattr(gain.cell.step, along) for gain in group]
        predicted, measured = (
            np.array([getattr(g, side) for g in group]) for side in ("predicted", "measured")
        )
        yield key, places, predicted, measured


def _choices(gains: Sequence[ChainGain]) -> Iterator[tuple[str, CountChoice]]:
    """The best number of drafts by target, method and batch; 0 is plain decoding."""
    for (target, method, batch), drafts, predicted, measured in _series(gains, "batch", "drafts"):
        both = (np.concatenate([[1.0], each]) for each in (measured, predicted))
        yield method, choice_of(target, batch, [0, *drafts], *both)


def _break_even(gains: Sequence[ChainGain]) -> Iterator[ChainBreakEven]:
    for key, batches, *both in _series(gains, "drafts", "batch"):
        yield ChainBreakEven(*key, *(_crossing(np.array(batches, dtype=float), gain) for gain in both))


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
