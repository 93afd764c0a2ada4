"""Acceptance by position from what a serving engine counted, and the profile that follows from it.

A step that drafts K tokens and accepts j of them tries positions 0..min(j, K - 1) and accepts positions
0..j-1. Counting every step at the positions that it tried gives conditional rates that stay right where the
number of drafts changed from step to step; dividing by all steps would count a position as refused that was
never drafted.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np

from medusa_sim.acceptance.profile_file import SCHEMA, PositionFile, PositionRow, ProfileFile
from medusa_sim.arrays import FloatArray, IntArray
from medusa_sim.errors import DataError
from medusa_sim.outside.limits import COUNT, POSITIONS

FEW_UNDRAFTED = 0.02
"""Largest share of drafts that may be missing without a note: requests end before their last drafts."""
LEAST_REQUESTS = 20
"""Fewer counted apart say nothing of how requests differ."""
MOST_UNDRAFTED = 0.10
"""Share from which counters without the length of every draft say nothing of the later positions."""
_SPREADS = np.linspace(0.0, 4.0, 81)
_NODES, _WEIGHTS = np.polynomial.hermite_e.hermegauss(41)


@dataclass(frozen=True, slots=True, eq=False)
class AcceptanceCounts:
    """How often every position was tried and accepted. None, 0 and empty where the engine does not say."""

    engine: str
    """Engine that counted."""
    model: str
    """The model that was served."""
    steps: int
    """Verification steps."""
    tried: IntArray
    """(positions,) how often a position was tried, at most as often as the one before was accepted."""
    accepted: IntArray
    """(positions,) how often it was accepted."""
    undrafted: float = 0.0
    """Positions counted as tried though the draft was shorter; 0 where the length of every draft is known."""
    all_steps: float | None = None
    """Decoding steps with those that drafted nothing."""
    notes: tuple[str, ...] = ()
    """Notes for the reader."""
    tpot_us: float | None = None
    """Time per token of the requests that ended meanwhile."""
    running: float | None = None
    """Requests running at the end."""
    prompt: float = 0.0
    """Mean tokens of a prompt of these requests."""
    output: float = 0.0
    """Mean tokens of an output."""
    is_request: bool = False
    """Whether one request was counted."""
    followed: tuple[int, int] = (0, 0)
    """Steps with drafts that a step of the same request follows, and those of which that drafted too; (0, 0)
    where steps are not listed."""
    spread: float | None = None
    """Standard deviation among requests on the logit of their acceptance; None where too few were counted
    apart."""

    @property
    def undrafted_share(self) -> float:
        """Share of steps x positions that no draft reached."""
        return self.undrafted / (self.steps * self.tried.size)

    @property
    def shares(self) -> FloatArray:
        """(positions,) share of the steps that accept each position of a chain that drafts all of them."""
        rates = np.divide(self.accepted, self.tried, out=np.zeros(self.tried.size), where=self.tried > 0)
        return np.asarray(np.cumprod(rates), dtype=np.float64)

    @property
    def tokens_per_step(self) -> float:
        """Mean acceptance length of a chain that drafts every position: 1 + the products of the rates."""
        return float(1.0 + self.shares.sum())


def counts_of_steps(
    lengths: Mapping[int, Mapping[int, int]], *, engine: str, model: str = ""
) -> AcceptanceCounts:
    """Counts of steps by draft length and accepted drafts: `lengths[K][j]` steps.

    Raises DataError for a step that accepted more than it drafted, negative counts, or no drafts at all.
    """
    positions = max(lengths, default=0)
    _check_positions(positions, engine)
    tried, accepted = np.zeros(positions, dtype=np.int64), np.zeros(positions, dtype=np.int64)
    steps = 0
    for drafts, histogram in lengths.items():
        for taken, count in histogram.items():
            if count < 0 or not 0 <= taken <= drafts:
                raise DataError(f"{engine}: {count} steps that accepted {taken} of {drafts} drafts cannot be")
            tried[: min(taken + 1, drafts)] += count
            accepted[:taken] += count
            steps += count if drafts else 0
    if steps == 0:
        raise DataError(f"{engine}: no step drafted anything; serve some requests with speculation first")
    return AcceptanceCounts(engine, model, steps, tried, accepted)


def _check_positions(positions: int, engine: str) -> None:
    """Raises DataError for more drafts in a row than any engine makes."""
    if positions > POSITIONS:
        raise DataError(f"{engine}: {positions} drafts in a row; at most {POSITIONS} can be")


def counts_of_listed(
    drafted: Sequence[int], accepted: Sequence[int], *, engine: str, model: str = ""
) -> AcceptanceCounts:
    """Counts of one request, from the drafted and accepted tokens of each step.

    Raises DataError as `counts_of_steps`, ValueError for lists of different lengths.
    """
    nothing = np.zeros(0, dtype=np.int64)
    counts = AcceptanceCounts(engine, model, 0, nothing, nothing)
    if any(drafted):
        lengths: dict[int, dict[int, int]] = {}
        for (drafts, taken), count in Counter(zip(drafted, accepted, strict=True)).items():
            lengths.setdefault(drafts, {})[taken] = count
        counts = counts_of_steps(lengths, engine=engine, model=model)
    after = [later > 0 for now, later in pairwise(drafted) if now]
    return replace(counts, all_steps=float(len(drafted)), is_request=True, followed=(len(after), sum(after)))


def counts_of_positions(
    accepted: Iterable[float], *, steps: float, draft_tokens: float, engine: str, model: str = ""
) -> AcceptanceCounts:
    """Counts of an engine that says how often each position was accepted, but not what each step drafted.

    Every step counts as if it had drafted every position; `undrafted` says by how much that is wrong.
    Raises DataError for counts that rise along the positions, more drafts than positions, or no drafts.
    """
    given = np.fromiter(accepted, dtype=np.float64)
    _check_positions(given.size, engine)
    largest = float(np.abs([steps, draft_tokens, *given]).max())
    if not largest <= COUNT:  # nan too
        raise DataError(f"{engine}: a count of {largest:.3g}; at most {COUNT:.0e} can be")
    counts = np.rint(given).astype(np.int64)
    if steps <= 0 or draft_tokens <= 0 or counts.size == 0:
        raise DataError(f"{engine}: no step drafted anything; serve some requests with speculation first")
    before = np.concatenate([[round(steps)], counts[:-1]])
    wrong = (counts < 0) | (counts > before)
    if wrong.any():
        raise DataError(
            f"{engine}: position {int(np.argmax(wrong))} was accepted more often than tried, or "
            "fewer than 0 times; these are not counters of one run"
        )
    undrafted = steps * counts.size - draft_tokens
    if undrafted < -0.5:
        raise DataError(
            f"{engine}: {draft_tokens / steps:.2f} drafts a step with {counts.size} positions: a tree, whose "
            "rates are not those of a chain; serve with top-k 1"
        )
    return AcceptanceCounts(engine, model, round(steps), before, counts, undrafted=max(undrafted, 0.0))


def combined(parts: Iterable[AcceptanceCounts], model: str | None = None) -> AcceptanceCounts:
    """The sum of counts of one engine and one model; `model` keeps the counts of that name.

    Times and lengths are means by steps. The number of running requests is that of one part, since
    each copy of a server counts its own.

    Raises DataError where two models or engines are mixed, none is left, or too much was not drafted.
    """
    kept = [part for part in parts if model is None or part.model == model]
    if not kept:
        raise DataError(f"no counts of model {model!r}; leave out --of to see which there are")
    models = sorted({part.model for part in kept if part.model})
    if len(models) > 1:
        raise DataError(
            f"counts of {len(models)} models are mixed ({', '.join(models)[:120]}); keep one with --of MODEL"
        )
    engines = sorted({part.engine for part in kept})
    if len(engines) > 1:
        raise DataError(f"counts of several engines are mixed ({', '.join(engines)}); give those of one")
    size = max(part.tried.size for part in kept)
    if not any(part.steps for part in kept):
        raise DataError(f"{engines[0]}: no step drafted anything; serve some requests with speculation first")
    whole = [part.all_steps for part in kept]
    nothing = np.zeros(size, dtype=np.int64)
    first = kept[0] if len(kept) == 1 else AcceptanceCounts(engines[0], "", 0, nothing, nothing)
    total = replace(
        first,
        model=models[0] if models else "",
        steps=sum(part.steps for part in kept),
        tried=sum((_padded(part.tried, size) for part in kept), nothing),
        accepted=sum((_padded(part.accepted, size) for part in kept), nothing),
        undrafted=sum(part.undrafted for part in kept),
        all_steps=None if None in whole else sum(step for step in whole if step is not None),
        notes=tuple(dict.fromkeys(note for part in kept for note in part.notes)),
        is_request=False,
        tpot_us=_mean_by_steps(kept, lambda part: part.tpot_us),
        prompt=_mean_by_steps(kept, lambda part: part.prompt or None) or 0.0,
        output=_mean_by_steps(kept, lambda part: part.output or None) or 0.0,
        followed=(sum(part.followed[0] for part in kept), sum(part.followed[1] for part in kept)),
        spread=request_spread(kept),
    )
    return _with_undrafted_note(total)


def _mean_by_steps(
    parts: Sequence[AcceptanceCounts], told: Callable[[AcceptanceCounts], float | None]
) -> float | None:
    """The mean of a number over the parts that tell it; None where none does."""
    known = [(part.steps, value) for part in parts if part.steps and (value := told(part)) is not None]
    total = sum(steps for steps, _ in known)
    return sum(steps * value for steps, value in known) / total if total else None


def request_spread(parts: Sequence[AcceptanceCounts]) -> float | None:
    """Standard deviation among requests on the logit of their acceptance; None below LEAST_REQUESTS of them.

    By moments: the variance of the requests' accepted shares of tried positions, less what chance gives one
    of so many trials, is that of normal logits around the same mean.
    """
    requests = [part for part in parts if part.is_request and part.tried.sum() > 0]
    if len(requests) < LEAST_REQUESTS:
        return None
    tried = np.array([part.tried.sum() for part in requests], dtype=np.float64)
    share = np.array([part.accepted.sum() for part in requests]) / tried
    mean = float(np.average(share, weights=tried))
    by_chance = mean * (1.0 - mean) * (tried.size - 1) / tried.sum()
    room = 1.0 - float((tried**2).sum()) / float(tried.sum()) ** 2
    between = (float(np.average((share - mean) ** 2, weights=tried)) - by_chance) / room
    wide = np.array([_variance_of(spread, mean) for spread in _SPREADS])
    return float(np.interp(max(between, 0.0), wide, _SPREADS))


def _variance_of(spread: float, mean: float) -> float:
    """Variance of shares whose logits are normal with this deviation, around this mean."""
    low, high = -30.0, 30.0
    for _ in range(60):
        middle = (low + high) / 2.0
        share = 1.0 / (1.0 + np.exp(-(middle + spread * _NODES)))
        if np.average(share, weights=_WEIGHTS) < mean:
            low = middle
        else:
            high = middle
    return float(np.average((share - mean) ** 2, weights=_WEIGHTS))


def _with_undrafted_note(counts: AcceptanceCounts) -> AcceptanceCounts:
    """The counts, with a note on what was not drafted. Raises DataError where that is too much."""
    share = counts.undrafted_share
    if share > MOST_UNDRAFTED:
        drafted = counts.tried.size * (1.0 - share)
        raise DataError(
            f"{counts.engine}: the number of drafts varied ({drafted:.2f} a step of {counts.tried.size}), so "
            "these counters say nothing of the later positions; give records by request with the length of "
            "every draft (vLLM: --per-request-spec-decode-metrics detailed), or a run with a fixed number"
        )
    if share <= FEW_UNDRAFTED:
        return counts
    note = (
        f"{100.0 * share:.0f} % of the positions were not drafted and count as refused; "
        "the interval is wider by that"
    )
    return replace(counts, notes=(*counts.notes, note))


def _padded(counts: IntArray, size: int) -> IntArray:
    return np.pad(counts, (0, size - counts.size))


def over_every_step(counts: AcceptanceCounts) -> tuple[AcceptanceCounts, float]:
    """Counts where steps without drafts miss the first position too, and the share of steps with drafts.

    For drafters that look drafts up in the text. Raises DataError where the engine does not say how many
    tokens it generated, or says fewer than its drafts gave.
    """
    if counts.all_steps is None:
        raise DataError(
            f"{counts.engine}: does not say how many steps drafted nothing, which --lookup needs; give a "
            "/metrics page of vLLM (vllm:generation_tokens_total) or AIPerf records with completion_tokens"
        )
    if counts.all_steps < 0.98 * counts.steps:
        raise DataError(
            f"{counts.engine}: {counts.steps} steps drafted, but the tokens generated make "
            f"{counts.all_steps:.0f} steps; these are not counters of one run"
        )
    every = max(round(counts.all_steps), counts.steps)
    tried = counts.tried.copy()
    tried[0] += every - counts.steps
    return replace(counts, tried=tried), counts.steps / every


def run_factor(counts: AcceptanceCounts, match_rate: float) -> float | None:
    """How many times as long as of independent steps runs of steps with drafts are, at least once.

    P(found after found) = 1 - (1 - z) / r with z the match rate. None where no step without drafts follows
    one with them.
    """
    steps, again = counts.followed
    if again == steps:
        return None
    return max((1.0 - match_rate) / (1.0 - again / steps), 1.0)


def position_profile(
    counts: AcceptanceCounts, *, title: str, source: str, match_rate: float | None = None
) -> PositionFile:
    """The profile file: a conditional rate and its trials for every position that was tried.

    match_rate: of drafts that are looked up in the text.

    Raises DataError where the first position was never tried.
    """
    reached = np.flatnonzero(counts.tried > 0)
    if not reached.size:
        raise DataError(f"{counts.engine}: no position was ever tried")
    rows = [
        PositionRow(rate=round(float(a) / float(n), 6), trials=int(n))
        for a, n in zip(counts.accepted[: reached[-1] + 1], counts.tried[: reached[-1] + 1], strict=True)
    ]
    runs = None if match_rate is None else run_factor(counts, match_rate)
    return PositionFile(
        schema=SCHEMA,
        title=title,
        source=source,
        agreement="target",
        rates="conditional",
        positions=rows,
        model_error=round(counts.undrafted_share, 4) if counts.undrafted_share > FEW_UNDRAFTED else 0.0,
        match_rate=None if match_rate is None else round(match_rate, 6),
        match_runs=None if runs is None else round(min(runs, 100.0), 3),
        request_spread=None if counts.spread is None else round(counts.spread, 3),
        longest_context=round(counts.prompt + counts.output) or None,
    )


def profile_text(profile: ProfileFile) -> str:
    """In words, how far requests differ and how a look-up finds its drafts; empty where neither is known."""
    lines = []
    rate, runs = getattr(profile, "match_rate", None), getattr(profile, "match_runs", None)
    if rate is not None:
        factor = "" if runs is None else f", in runs {runs:.2f} times as long as by chance"
        lines.append(f"drafts were found in {100.0 * rate:.1f} % of the steps{factor}")
    if profile.request_spread is not None:
        lines.append(f"acceptance varies between requests (sigma {profile.request_spread:.2f} on the logit)")
    return "; ".join(lines)
