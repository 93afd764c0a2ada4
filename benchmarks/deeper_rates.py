"""How do rates fall beyond what was measured? Fits the falls of acceptance/deeper.py to deeper profiles.

    python benchmarks/deeper_rates.py            # a row a kind of drafter and fall; two seconds of one core

Each shipped profile of more than four drafts is predicted from its first 1 to 4, to twice as many and DEEPEST
at most: by its own rates, and by their mean length alone. Prints the fits, what models err that a fit has not
seen, and the half-width of the fall that holds 80 % of their depths. Nobody fitted to mean lengths of EAGLE
chains in vLLM and SGLang, which are compared where the rows are.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cache
from itertools import pairwise
from typing import Any

import numpy as np
from common.script import command_line
from common.study import PROMISED, mean_bias_worst, measured_rows, table
from depth_profiles import BUNDLE
from scipy.optimize import brentq

from medusa_sim.acceptance.deeper import DEEPEST, FALLS, Fall, fall_of, fallen
from medusa_sim.acceptance.profile import acceptance_names, load_acceptance
from medusa_sim.acceptance.shaped import ShapedAcceptance
from medusa_sim.arrays import FloatArray
from medusa_sim.scenario.acceptance import mean_length
from medusa_sim.scenario.defaults import TYPICAL

SHARES, ALONE = np.arange(0.0, 1.001, 0.02), np.arange(-0.3, 1.201, 0.02)
"""Tried."""
FROM_RATES, FROM_MEAN = (2, 3, 4), (1, 2, 3, 4)
"""Drafts from which others are predicted: the fall of one rate is not known."""
STEEPEST = 8.0
"""Fall from draft to draft, of the logarithm, beyond which none is searched."""


@cache
def deeper_profiles() -> dict[str, FloatArray]:
    """Conditional rates of shipped profiles that are deep enough, no assumption and not made of one mean.

    Those of SpecBundle are left out: of every second depth nothing was measured.
    """
    loaded = {name: load_acceptance(name) for name in acceptance_names()}
    return {
        name: profile.model.heads.conditional()[:, 0]
        for name, profile in loaded.items()
        if profile.kind == "position" and not name.startswith(TYPICAL) and name not in BUNDLE.values()
        and isinstance(profile.model, ShapedAcceptance) and not profile.model.of_mean
        and profile.model.heads.depth > max(FROM_RATES)
    }  # fmt: skip


def of_kind(kind: str) -> list[str]:
    """Names of those that a fall is fitted to."""
    return [name for name in deeper_profiles() if kind == "every" or name.startswith(kind)]


def model_of(name: str) -> str:
    """Both ways of thinking of a model are one."""
    return name.removesuffix("-no-thinking")


@cache
def cases(name: str, *, mean: bool) -> tuple[tuple[FloatArray, FloatArray], ...]:
    """(rates from which is predicted, tokens per step to be met) of a profile, from each number of drafts."""
    rates = deeper_profiles()[name]
    tokens = 1.0 + np.cumsum(np.cumprod(rates))
    known = {
        drafts: one_rate(float(tokens[drafts - 1]), drafts) if mean else rates[:drafts]
        for drafts in (FROM_MEAN if mean else FROM_RATES)
    }
    return tuple((each, tokens[drafts : min(2 * drafts, DEEPEST)]) for drafts, each in known.items())


def one_rate(tokens_per_step: float, drafts: int) -> FloatArray:
    """(drafts,) the conditional rate that a mean length gives, for each."""
    heads = mean_length(tokens_per_step, drafts).heads
    assert heads is not None  # a chain
    return heads.conditional()[:, 0]


def lengths(known: FloatArray, by: float, drafts: int) -> FloatArray:
    """(drafts,) tokens per step of that many more drafts than are known."""
    rates = np.concatenate([known, fallen(known, by, drafts)])
    return np.asarray(1.0 + np.cumsum(np.cumprod(rates))[known.size :])


def errors(names: Iterable[str], fall: Fall, *, mean: bool) -> FloatArray:
    """Relative errors of the accepted drafts at every guessed depth of these profiles."""
    return np.concatenate([
        (lengths(known, fall_of(known, fall, of_mean=mean)[0], met.size) - met) / (met - 1.0)
        for name in names
        for known, met in cases(name, mean=mean)
    ])  # fmt: skip


def fitted(names: Sequence[str], *, mean: bool) -> Fall:
    """The fall of least squares; the half-widths are not of this fit."""
    tried = (
        [Fall(0.0, 0.0, each, 0.0) for each in ALONE]
        if mean
        else [Fall(each, 0.0, 0.0, 0.0) for each in SHARES]
    )
    return min(tried, key=lambda fall: float((errors(names, fall, mean=mean) ** 2).mean()))


def held_out(names: Sequence[str], *, mean: bool) -> tuple[FloatArray, float]:
    """(errors of models that the fit has not seen, half-width of the fall that holds PROMISED of them)."""
    wrong, apart = [], []
    for model in dict.fromkeys(map(model_of, names)):
        own = [name for name in names if model_of(name) == model]
        fall = fitted([name for name in names if name not in own], mean=mean)
        wrong.append(errors(own, fall, mean=mean))
        for known, met in (case for name in own for case in cases(name, mean=mean)):
            by = fall_of(known, fall, of_mean=mean)[0]
            needed = [needed_fall(known, tokens, place) for place, tokens in enumerate(met.tolist(), 1)]
            apart += [abs(each - by) for each in needed]
    return np.concatenate(wrong), float(np.quantile(apart, PROMISED))


def needed_fall(known: FloatArray, tokens: float, drafts: int) -> float:
    """The fall that gives so many tokens with so many more drafts; an end of the search where none does."""

    def beyond(by: float) -> float:
        return float(lengths(known, by, drafts)[-1]) - tokens

    if beyond(-STEEPEST) <= 0.0:
        return -STEEPEST
    return STEEPEST if beyond(STEEPEST) >= 0.0 else float(brentq(beyond, -STEEPEST, STEEPEST))


def refitted(kind: str) -> tuple[Fall, dict[bool, FloatArray], dict[bool, FloatArray]]:
    """The fall of a kind with half-widths; errors of the fit and held out, by whether from a mean length."""
    names = of_kind(kind)
    fits = {mean: fitted(names, mean=mean) for mean in (False, True)}
    left = {mean: held_out(names, mean=mean) for mean in fits}
    fall = Fall(fits[False].share, left[False][1], fits[True].alone, left[True][1])
    own = {mean: errors(names, fit, mean=mean) for mean, fit in fits.items()}
    return fall, own, {mean: wrong for mean, (wrong, _) in left.items()}


def served() -> Iterator[tuple[str, float]]:
    """(whose, relative error of accepted drafts) of mean lengths in engines, each from a shorter chain."""
    issues = measured_rows("issues_and_blogs")
    issues = issues[issues.source.str.endswith("vllm/issues/20780") & issues.acceptance_length.notna()]
    chains = issues.k_or_tree.str.extract(r"chain k=(\d+)", expand=False).astype(float)
    for method, rows in issues.assign(steps=chains).groupby("method"):
        yield from _longer(f"vLLM, {method}", rows.set_index("steps").acceptance_length.to_dict())
    bundle = measured_rows("specbundle_eagle3")
    bundle = bundle[bundle["shape"] == "chain"].drop_duplicates(["model", "drafter", "benchmark", "steps"])
    for _, rows in bundle.groupby(["model", "drafter", "benchmark"]):
        yield from _longer("SGLang, EAGLE-3", rows.set_index("steps").accept_length.to_dict())


def _longer(whose: str, by_drafts: Mapping[Any, Any]) -> Iterator[tuple[str, float]]:
    """Each length from the one before it; of a whole series from that of three drafts, to twice as many."""
    drafts = sorted(int(each) for each in by_drafts)
    steps = pairwise(drafts) if len(drafts) < 4 else [(3, each) for each in drafts if 3 < each <= 6]
    for few, many in steps:
        tokens = lengths(one_rate(float(by_drafts[few]), few), FALLS["eagle"].alone, many - few)[-1]
        yield whose, float((tokens - by_drafts[many]) / (by_drafts[many] - 1.0))


def main() -> None:
    """Print the fits, what they err on models left out, and on lengths in engines."""
    command_line(__doc__).parse_args()
    rows: list[Sequence[object]] = []
    for kind in FALLS:
        fall, own, left = refitted(kind)
        for mean, what, value, error in (
            (False, "share of its own fall", fall.share, fall.share_error),
            (True, "fall from a mean length", fall.alone, fall.alone_error),
        ):
            told = mean_bias_worst(own[mean]), mean_bias_worst(left[mean])
            rows.append((kind, len(of_kind(kind)), what, f"{value:.2f}", f"{error:.2f}", *told))
    print(table("kind | profiles | what | fitted | 80 % | fit, % | models held out, %", 3, rows))
    by_engine: dict[str, list[float]] = {}
    for whose, error in served():
        by_engine.setdefault(whose, []).append(error)
    for whose, each in by_engine.items():
        print(f"{whose}: {len(each)} longer chains, accepted drafts {mean_bias_worst(each)} %")


if __name__ == "__main__":
    main()
