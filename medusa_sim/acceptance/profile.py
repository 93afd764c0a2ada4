"""Acceptance profiles: a named, sourced answer to "how many tokens does one step emit?".

One TOML file a profile under `profiles/acceptance/`, or a user's own file (TOML, or a CSV of head or
chain accuracies). The format is versioned (`schema = 1`); docs/acceptance-format.md describes every
kind. Whatever the kind, a profile answers `tokens_per_step(candidates)` and its 80 %
`band(candidates)`, raises CoverageError beyond what it was measured on, and gives exactly 1 token per
step at one candidate.

Beside the tree, scheme, workload and heads in use change acceptance (`adjustments`).
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from medusa_sim.acceptance.adjustments import workload_ratio
from medusa_sim.acceptance.curve import LogCurve, TableCurve
from medusa_sim.acceptance.heads import HeadAccuracy, chain_accuracy
from medusa_sim.acceptance.profile_file import (
    CurveFile,
    DraftVectorFile,
    HeadTopkFile,
    LogCurveFile,
    OutputRow,
    PositionFile,
    ProfileFile,
    read_profile,
)
from medusa_sim.acceptance.shaped import ShapedAcceptance
from medusa_sim.acceptance.tree import CandidateTree
from medusa_sim.arrays import Band, FloatArray
from medusa_sim.data import find, stems
from medusa_sim.errors import SpecError, UsageError, check_kind, shown, unknown_name

if TYPE_CHECKING:
    from medusa_sim.acceptance.deeper import Fall

FOLDER = "profiles/acceptance"
AcceptanceModel = LogCurve | TableCurve | ShapedAcceptance


ACCEPTED_OF_MATCHES = 0.53
"""Share of found n-grams whose first draft is accepted.

specdecode-bench (arXiv 2601.11580, its logs): 0.110 of the steps on GSM8K and 0.205 on CNN accept a first
draft; a public simulator states matches of 0.2 and 0.4 there. (Its 0.2 for ShareGPT cannot be: 0.236 accept.)
"""
MATCHES_RUN = 1.4
"""Steps in a row that find n-grams, over what independent steps would: 1.3 to 1.6 where texts are replayed as
outputs and, as above, half of the first drafts are accepted (`python benchmarks/lookup_runs.py`)."""
CURVE_HEADS = 5
"""Heads that the curves of the Medusa paper were measured with."""


@dataclass(frozen=True)
class AcceptanceProfile:
    """A profile with its name, kind and source; `model` does the arithmetic. None where nobody said."""

    name: str
    kind: str
    title: str
    source: str
    model: AcceptanceModel
    """The curve or the accuracies."""
    agreement: str = "target"
    """Whether accuracies are agreement with the target or with a text."""
    ratio: float = 1.0
    """Accepted draft tokens (tokens per step - 1) over those of the profile as measured, under another
    acceptance scheme or workload (T8)."""
    match_rate: float | None = None
    """Share of the steps in which drafts that are looked up in the text are found, as measured."""
    match_runs: float | None = None
    """How many times as long runs of such steps are as of independent steps."""
    request_spread: float | None = None
    """Standard deviation among requests on the logit of their acceptance."""
    longest_context: int | None = None
    """Tokens up to which it was measured; for an engine's counters, tokens of the mean request."""
    by_output: tuple[OutputRow, ...] = ()
    """Effect of the length of an output."""
    output_share: float = 1.0
    """Effect that is applied, for outputs of `output_tokens` (`of_outputs`)."""
    output_tokens: float | None = None
    workload: str | None = None
    """The workload that it is for, where another than the measured one (`of_workload`)."""
    borrowed: bool = False
    """Taken though measured on another model, because nobody gave one."""

    @property
    def candidates_max(self) -> int:
        """Largest count (root included) that the profile covers."""
        return self.model.candidates_max

    @property
    def heads(self) -> HeadAccuracy | None:
        """Accuracies per depth and rank; None for a curve, which knows no shapes."""
        return self.model.heads if isinstance(self.model, ShapedAcceptance) else None

    @property
    def measured_drafts(self) -> int | None:
        """Drafts of a chain beyond which the rates are a guess; None where none is."""
        guess = self.model.guess if isinstance(self.model, ShapedAcceptance) else None
        return None if guess is None else guess.measured

    @property
    def first_accepted(self) -> float:
        """Share of the steps in which the first draft is accepted; 0 for a curve, which does not say."""
        return 0.0 if self.heads is None else float(min(1.0, self.ratio * self.heads.accuracy[0, 0]))

    @property
    def match_rate_or_guess(self) -> float:
        """Share of the steps in which a look-up in the text finds drafts: measured, else by the first rate.

        The first draft of a match is accepted in ACCEPTED_OF_MATCHES of them. Never below the first rate.
        """
        if self.heads is None:
            return 1.0 if self.match_rate is None else self.match_rate
        if self.match_rate is not None:
            return max(self.match_rate, self.first_accepted)
        return min(1.0, self.first_accepted / ACCEPTED_OF_MATCHES)

    def of_heads(self, heads: int) -> AcceptanceProfile:
        """The profile with its first heads alone.

        Raises:
            UsageError: fewer heads than a curve was measured with; it does not say what each gives.
        """
        if not isinstance(self.model, ShapedAcceptance):
            if heads < CURVE_HEADS:
                raise UsageError(
                    f"acceptance {self.name} is a curve measured with {CURVE_HEADS} heads, not "
                    f"{heads}; give accuracies per head with --acceptance (medusa-sim specs lists profiles)"
                )
            return self
        if heads >= self.model.heads.depth:
            return self
        return replace(self, model=replace(self.model, heads=self.model.heads.first(heads)))

    def carried_on(self, fall: Fall) -> AcceptanceProfile:
        """The profile with guessed rates of further drafts, if it describes a chain (T9)."""
        if not isinstance(self.model, ShapedAcceptance):
            return self
        return replace(self, model=self.model.carried_on(fall))

    def of_outputs(self, output_tokens: float) -> AcceptanceProfile:
        """The profile for outputs of that many tokens, where their length was seen to matter.

        Every rate, given that the drafts before were accepted, is multiplied by a share: linear in ln(tokens)
        between the lengths that were measured, and that of the nearest beyond them.
        """
        if not self.by_output or not isinstance(self.model, ShapedAcceptance):
            return self
        lengths = np.log([row.tokens for row in self.by_output])
        share, error = (
            float(np.interp(np.log(output_tokens), lengths, [getattr(row, name) for row in self.by_output]))
            for name in ("share", "error")
        )
        heads = self.model.heads
        model = replace(
            self.model,
            heads=replace(heads, accuracy=share * heads.accuracy),
            model_error=float(np.hypot(self.model.model_error, error)),
        )
        return replace(self, model=model, by_output=(), output_share=share, output_tokens=output_tokens)

    def tokens_per_step(self, candidates: npt.ArrayLike) -> FloatArray:
        """Mean tokens emitted per step, of the shape of `candidates` (root included, from 1).

        For a profile that knows shapes: with the optimal tree of that size.

        Raises:
            CoverageError: a count beyond `candidates_max`.
            UsageError: a count below 1 or not whole.
        """
        return self.adjusted(self.model.tokens_per_step(candidates), candidates)

    def band(self, candidates: npt.ArrayLike) -> Band:
        """(low, high) of the 80 % interval of `tokens_per_step`, from residuals or sample sizes."""
        low, high = self.model.band(candidates)
        return Band(self.adjusted(low, candidates), self.adjusted(high, candidates))

    def adjusted(self, tokens_per_step: npt.ArrayLike, candidates: npt.ArrayLike) -> FloatArray:
        """Tokens per step as measured, moved by `ratio`; never more than one token a candidate."""
        measured = np.asarray(tokens_per_step, dtype=np.float64)
        if self.ratio == 1.0:
            return measured
        counts = np.asarray(candidates, dtype=np.float64)
        return np.asarray(np.minimum(1.0 + self.ratio * (measured - 1.0), np.maximum(counts, measured)))

    def with_ratio(self, ratio: float) -> AcceptanceProfile:
        """The same profile under another scheme or workload; ratios multiply.

        Raises:
            UsageError: a ratio that is negative or not finite.
        """
        if not (np.isfinite(ratio) and ratio >= 0.0):
            raise UsageError(f"acceptance ratio {ratio:g}: a finite number from 0 is needed")
        return replace(self, ratio=self.ratio * float(ratio))

    def of_workload(self, category: str) -> AcceptanceProfile:
        """The profile for a category of MT-bench (Figure 3b of the Medusa paper) instead of its present one.

        Raises:
            UsageError: an unknown category.
        """
        present = 1.0 if self.workload is None else workload_ratio(self.workload)
        return replace(self.with_ratio(workload_ratio(category) / present), workload=category)

    def tree(self, candidates: int) -> CandidateTree | None:
        """The optimal tree of that many candidates; None for a curve, which knows no shapes."""
        return self.model.tree(candidates) if isinstance(self.model, ShapedAcceptance) else None


def _fitted_accuracy(file: HeadTopkFile) -> FloatArray:
    """(heads, ranks) from the compact form: `top1`, then `scale (i + 1)^-exponent`."""
    rank = np.arange(1.0, file.ranks + 1.0)
    rows = [np.where(rank == 1.0, row.top1, row.scale * rank**-row.exponent) for row in file.fitted_heads]
    return np.array(rows)


def _head_accuracy(file: HeadTopkFile, where: str) -> HeadAccuracy:
    if bool(file.heads) == bool(file.fitted_heads) or (file.fitted_heads and file.ranks < 1):
        raise SpecError(f"{where}: give either heads, or fitted_heads with ranks")
    if file.fitted_heads:
        return HeadAccuracy.checked(_fitted_accuracy(file), correlation=file.correlation, where=where)
    accuracy = np.zeros((len(file.heads), max(1, *(len(row.accuracy) for row in file.heads))))
    for k, row in enumerate(file.heads):
        accuracy[k, : len(row.accuracy)] = row.accuracy
    counts = [max(row.labels / file.design_effect, 1.0) if row.labels else 0.0 for row in file.heads]
    labels = counts if any(counts) else None
    return HeadAccuracy.checked(accuracy, labels, correlation=file.correlation, where=where)


def _draft_accuracy(file: DraftVectorFile, where: str) -> HeadAccuracy:
    """Children of a draft model come in order: the nearest vector that never rises, at every depth.

    The deep end of a measured one rises by noise only.
    """
    from scipy.optimize import isotonic_regression

    if file.depth_max < 1 or not file.children:
        raise SpecError(f"{where}: depth_max must be at least 1 and children not empty")
    accuracy = np.tile(isotonic_regression(file.children, increasing=False).x, (file.depth_max, 1))
    labels = np.full(file.depth_max, file.trials) if file.trials else None
    return replace(HeadAccuracy.checked(accuracy, labels, where=where), shared=True)


def _model(name: str, file: ProfileFile, where: str) -> AcceptanceModel:
    match file:
        case LogCurveFile():
            return LogCurve(name, file.slope, file.candidates_max, tuple(file.points))
        case CurveFile():
            return TableCurve(name, tuple(file.points), file.error_tokens)
        case HeadTopkFile():
            return ShapedAcceptance(name, _head_accuracy(file, where), file.model_error)
        case DraftVectorFile():
            return ShapedAcceptance(name, _draft_accuracy(file, where), file.model_error)
    counts = [row.trials for row in file.positions]
    chain = chain_accuracy(
        [row.rate for row in file.positions],
        counts if all(counts) else None,
        conditional=file.rates == "conditional",
        where=where,
    )
    return ShapedAcceptance(name, chain, file.model_error, file.of_mean)


def acceptance_names(data_dir: str | os.PathLike[str] | None = None) -> tuple[str, ...]:
    """Names of every profile found, the user's own folder included, sorted."""
    return stems(FOLDER, (".toml",), data_dir)


def acceptance_path(name_or_path: str, data_dir: str | os.PathLike[str] | None = None) -> Path:
    """The file of a profile (the user's data first, then what ships). Raises SpecError."""
    if name_or_path.endswith((".toml", ".csv")) or os.sep in name_or_path:
        return Path(name_or_path).expanduser()
    path = find(FOLDER, f"{name_or_path}.toml", data_dir)
    if path is None:
        if Path(name_or_path).is_file():
            raise SpecError(f"acceptance {shown(name_or_path)}: a file of a profile ends in .toml or .csv")
        rate = re.fullmatch(r"\s*(\d{1,2}(?:\.\d+)?)\s*%\s*", name_or_path)
        share = f"; a rate is a share: {float(rate[1]) / 100:g}" if rate else ""
        raise SpecError(unknown_name("acceptance profile", name_or_path, acceptance_names(data_dir)) + share)
    return path


def load_acceptance(
    name_or_path: str | os.PathLike[str], data_dir: str | os.PathLike[str] | None = None
) -> AcceptanceProfile:
    """The profile of that name (the user's data first, then what ships), or the TOML or CSV file there.

    Raises:
        SpecError: no such profile (the nearest name is suggested) or a malformed file.
        DataError: a malformed CSV file.
    """
    check_kind("acceptance", name_or_path, "a profile's name or a path", (str, os.PathLike))
    path = acceptance_path(str(name_or_path), data_dir)
    name = path.stem
    if path.suffix == ".csv":
        from medusa_sim.acceptance.head_table import read_accuracies  # a profile of the project is no table

        model = ShapedAcceptance(name, read_accuracies(path))
        return AcceptanceProfile(name=name, kind="head-topk", title=name, source=str(path), model=model)
    file, where = read_profile(path), f"acceptance profile {path}"
    profile = AcceptanceProfile(
        name=name,
        kind=str(type(file).__struct_config__.tag),
        title=file.title,
        source=file.source,
        model=_model(name, file, where),
        agreement="target" if isinstance(file, LogCurveFile | CurveFile) else file.agreement,
        request_spread=file.request_spread,
        longest_context=file.longest_context,
    )
    return _with_positions(profile, file, where) if isinstance(file, PositionFile) else profile


def _with_positions(profile: AcceptanceProfile, file: PositionFile, where: str) -> AcceptanceProfile:
    """The profile with what only rates by position come with. Raises SpecError."""
    if any(later.tokens <= row.tokens for row, later in pairwise(file.by_output)):
        raise SpecError(f"{where}: by_output: tokens must rise from row to row")
    if file.match_rate is not None and file.match_rate < profile.first_accepted:
        raise SpecError(
            f"{where}: match_rate {file.match_rate:g} is below the first rate "
            f"{profile.first_accepted:g}: a draft is accepted only where one was found"
        )
    return replace(profile, match_rate=file.match_rate, match_runs=file.match_runs, by_output=file.by_output)
