"""Acceptance as a user names it: a profile, a file, rates, a mean length, or what ships for the model."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise, takewhile
from numbers import Real
from typing import TypeAlias

import numpy as np

from medusa_sim.acceptance.heads import HeadAccuracy, chain_accuracy, rates_of_mean
from medusa_sim.acceptance.profile import AcceptanceProfile, acceptance_names, load_acceptance
from medusa_sim.acceptance.shaped import ShapedAcceptance
from medusa_sim.data import DataDir
from medusa_sim.errors import SpecError, UsageError, check_kind
from medusa_sim.scenario.defaults import MAX_DRAFTS
from medusa_sim.step.drafter.base import Drafter

Given: TypeAlias = str | os.PathLike[str] | float | Sequence[float] | AcceptanceProfile | None
"""A profile or its name, a file, one rate, shares of steps by position, a word of FORMS, or None: shipped."""

NUMBERS = (
    "one rate (0.7), the share of steps that accept each draft (0.78,0.60,0.42), rates given "
    "that the draft before was accepted (conditional:0.78,0.77,0.70), a mean length with its drafts (2.8@3) "
    "or the share of all drafts that is accepted (60%@3)"
)
FORMS = f"a profile's name, a TOML or CSV file, {NUMBERS}"
CONDITIONAL = "conditional:"
"""Before rates by position that say how often each draft is accepted where the one before it was."""
GIVEN = "given with the question"
"""The source of rates that were typed."""
LETTERS = "0123456789.,@% "
"""Characters that rates are typed in."""
FLATTEST = 0.9
"""Shares that fall by less from one draft to the next are perhaps conditional rates: 0.71, 0.66, 0.64."""
MEAN_LENGTH_ERROR = 0.13
"""80 % half width, relative, of the accepted drafts that a mean length gives at other depths.

A constant rate solved at any depth of the shipped EAGLE and Medusa chains gives at their shorter depths
0.5 to 22 % too few accepted drafts: 13 % or less in four of five cases.
"""
_NUMBERS = re.compile(r"[\s0-9.,eE+-]+")
_FAMILY = re.compile(r"[a-z]+")
_VARIANT = "-no-thinking"
"""Ends the name of a profile of answers without thinking, beside the model's own."""


def constant_rate(rate: float, positions: int = MAX_DRAFTS, name: str | None = None) -> AcceptanceProfile:
    """A chain whose every draft is accepted with the same probability where the one before was.

    Raises UsageError for a rate outside (0, 1].
    """
    if not 0.0 < rate <= 1.0:
        mean = f"; a mean length is {rate:g}@3 (of 3 drafts)" if rate > 1.0 else ""
        raise UsageError(f"acceptance rate {rate:g}: above 0 and at most 1 is allowed{mean}")
    heads = HeadAccuracy.checked(np.full((positions, 1), rate), where="acceptance rate")
    return _chain(name or f"{rate:g}", heads, f"Every draft accepted with probability {rate:g}")


def rates_by_position(
    rates: Sequence[float], name: str | None = None, *, conditional: bool = False
) -> AcceptanceProfile:
    """A chain from the share of steps in which the first, second, ... draft was accepted, as engines log it.

    conditional: from how often each was accepted where the one before it was. Raises UsageError for rates
    outside 0..1, or shares that rise.
    """
    label = name or f"{CONDITIONAL if conditional else ''}{_listed(rates)}"
    if len(rates) > MAX_DRAFTS:
        raise UsageError(f"acceptance {len(rates)} rates: at most {MAX_DRAFTS} positions are modelled")
    try:
        heads = chain_accuracy(list(rates), None, conditional=conditional, where="acceptance")
    except SpecError as error:
        risen = any(before < rate <= 1.0 for before, rate in pairwise(rates)) and not conditional
        told = f"; give such rates as {CONDITIONAL}{_listed(rates)}"
        raise UsageError(f"{error}{told if risen else ''}") from error
    what = "where the one before was" if conditional else "of the steps"
    return _chain(label, heads, f"Drafts accepted in {_listed(rates)} {what}, by position")


def _listed(rates: Sequence[float], digits: str = "g") -> str:
    return ",".join(f"{rate:{digits}}" for rate in rates)


def both_kinds(profile: AcceptanceProfile) -> str:
    """Rates of a chain as `--acceptance` takes them: `0.710,0.469,0.300 of the steps (conditional:...)`."""
    heads = profile.heads
    rates: list[float] = [] if heads is None else heads.conditional()[:, 0].tolist()
    return f"{_listed(np.cumprod(rates).tolist(), '.3f')} of the steps ({CONDITIONAL}{_listed(rates, '.3f')})"


def one_rate(given: Given) -> float | None:
    """The rate of every draft, where one number is given; None for any other form."""
    try:
        rate = float(given) if isinstance(given, str | Real) else None
    except ValueError:
        return None
    return rate


def doubtful_shares(given: Given) -> str:
    """A warning that shares of steps, as typed, look like conditional rates; empty where they do not."""
    if isinstance(given, str):
        text = given.strip()
        rates = [float(part) for part in text.split(",")] if _NUMBERS.fullmatch(text) else []
    else:
        rates = list(given) if isinstance(given, list | tuple | np.ndarray) else []
    behind = [rate / before for before, rate in pairwise(rates) if before > 0.0]
    if max(behind, default=0.0) <= FLATTEST:
        return ""
    return (
        f"acceptance {_listed(rates)} are shares of the steps: behind an accepted draft "
        f"{_listed(behind, '.2f').replace(',', ', ')} of the next are; if that is too much, they are "
        f"conditional rates: give {CONDITIONAL}{_listed(rates)}"
    )


def mean_length(tokens_per_step: float, drafts: int, name: str | None = None) -> AcceptanceProfile:
    """A chain of `drafts` with a given mean of tokens a step, the target's own included.

    Its rate is taken as constant (`heads.rates_of_mean`), with a wider band.
    Raises UsageError for a length outside 1..drafts + 1.
    """
    if not 1 <= drafts <= MAX_DRAFTS:
        raise UsageError(f"acceptance {tokens_per_step:g}@{drafts}: 1 to {MAX_DRAFTS} drafts are allowed")
    if not 1.0 < tokens_per_step <= drafts + 1.0:
        raise UsageError(
            f"acceptance {tokens_per_step:g}@{drafts}: a step of {drafts} drafts emits above 1 and at most "
            f"{drafts + 1} tokens"
        )
    heads = HeadAccuracy.checked(rates_of_mean(tokens_per_step, drafts)[:, None], where="acceptance")
    label = name or f"{tokens_per_step:g}@{drafts}"
    title = f"{tokens_per_step:g} tokens a step with {drafts} drafts"
    return _chain(label, heads, title, MEAN_LENGTH_ERROR, of_mean=True)


def accepted_share(percent: float, drafts: int, name: str | None = None) -> AcceptanceProfile:
    """A chain of `drafts` with a given share of drafts accepted, in per cent as llama.cpp and vLLM log it.

    Drafts behind a rejected one count as drafted. Raises UsageError for a share outside 0..100.
    """
    if not 0.0 < percent <= 100.0:
        raise UsageError(f"acceptance {percent:g}%@{drafts}: above 0 and at most 100 % is allowed")
    return mean_length(1.0 + drafts * percent / 100.0, drafts, name or f"{percent:g}%@{drafts}")


def _chain(
    name: str, heads: HeadAccuracy, title: str, model_error: float = 0.0, *, of_mean: bool = False
) -> AcceptanceProfile:
    model = ShapedAcceptance(name, heads, model_error, of_mean)
    return AcceptanceProfile(name=name, kind="position", title=title, source=GIVEN, model=model)


def resolve(
    given: Given, drafter: type[Drafter], model_name: str, data_dir: DataDir = None
) -> AcceptanceProfile:
    """The profile that `given` names, in any of FORMS, as it was measured (`adjust` changes it).

    None: the drafter's shipped profile of the model, else the one it borrows, else a typical one.
    Raises UsageError for numbers that are none of FORMS; SpecError or DataError from loading.
    """
    if isinstance(given, AcceptanceProfile):
        return given
    if given is None:
        return _shipped(drafter, model_name, data_dir)
    if isinstance(given, str):
        return resolve_word(given, data_dir)
    if isinstance(given, os.PathLike):
        return load_acceptance(given, data_dir)
    check_kind("acceptance", given, FORMS, (Real, list, tuple, np.ndarray))
    if isinstance(given, float | Real):
        return constant_rate(float(given))
    for rate in given:
        check_kind("acceptance", rate, "a rate of 0 to 1 for each position", (Real,))
    return rates_by_position([float(rate) for rate in given])


def _shipped(drafter: type[Drafter], model_name: str, data_dir: DataDir) -> AcceptanceProfile:
    known = acceptance_names(data_dir)
    names = (f"{prefix}{model_name}" for prefix in drafter.profiles)
    chosen = next((name for name in names if name in known), None)
    if chosen is None:
        chosen = _of_the_family(drafter.profiles[0], model_name, known) or drafter.lender
    borrowed = not chosen.endswith(f"-{model_name}")
    return replace(load_acceptance(chosen, data_dir), borrowed=borrowed)


def _of_the_family(prefix: str, model_name: str, known: Sequence[str]) -> str | None:
    """The profile of the nearest model of the same family: the longest common beginning of their names.

    A family is the letters that a name begins with: kimi, glm, qwen. What a variant (`_VARIANT`) is named
    beyond its model counts for nothing and shorter names come first: it stands in where its model has none.
    """
    family = _FAMILY.match(model_name)
    if family is None:
        return None
    relatives = sorted((name for name in known if name.startswith(f"{prefix}{family[0]}")), key=len)

    def alike(name: str) -> int:
        return common_letters(name.removeprefix(prefix).removesuffix(_VARIANT), model_name)

    return max(relatives, key=alike, default=None)


def common_letters(name: str, other: str) -> int:
    """Length of the common beginning of two names."""
    return len(list(takewhile(lambda pair: pair[0] == pair[1], zip(name, other, strict=False))))


def resolve_word(text: str, data_dir: DataDir = None) -> AcceptanceProfile:
    """The profile that a word names, in any of FORMS, as it was measured.

    Raises UsageError for numbers that are none of them; SpecError or DataError from loading.
    """
    text = text.strip()
    length, at, drafts = text.partition("@")
    number = length.strip().removesuffix("%")
    if at and _NUMBERS.fullmatch(number) and (not drafts or _NUMBERS.fullmatch(drafts)):
        try:
            count, value = int(drafts), float(number)
        except ValueError:
            raise UsageError(
                f"acceptance {text!r}: LENGTH@DRAFTS and SHARE%@DRAFTS are two numbers, as in 2.8@3 or 60%@3"
            ) from None
        return (
            mean_length(value, count, text)
            if number == length.strip()
            else accepted_share(value, count, text)
        )
    conditional = text.startswith(CONDITIONAL)
    if not conditional and not _NUMBERS.fullmatch(text):
        return load_acceptance(text, data_dir)
    try:
        rates = [float(part) for part in text.removeprefix(CONDITIONAL).split(",")]
    except ValueError:
        raise UsageError(f"acceptance {text!r}: give {FORMS}") from None
    if len(rates) == 1:
        return constant_rate(rates[0], name=text)
    return rates_by_position(rates, text, conditional=conditional)
