"""Acceptance as a user of `recommend` names it: a profile, a file, one rate, or what ships for the model."""

from __future__ import annotations

import os

import numpy as np

from medusa_sim.acceptance.heads import HeadAccuracy
from medusa_sim.acceptance.knobs import scheme_ratio, workload_ratio
from medusa_sim.acceptance.profile import AcceptanceProfile, acceptance_names, load_acceptance
from medusa_sim.acceptance.shaped import ShapedAcceptance
from medusa_sim.errors import UsageError
from medusa_sim.plan.draft_options import DEPTH_MAX, Method

DEFAULT_ACCEPTANCE: dict[str, tuple[str, ...]] = {"medusa": ("medusa1-",), "eagle": ("eagle3-", "eagle1-")}
DEFAULT_MODEL = "vicuna-7b"
"""Prefixes of the shipped profiles of a method, best first; a model without one borrows DEFAULT_MODEL's."""


def constant_rate(rate: float, positions: int = DEPTH_MAX) -> AcceptanceProfile:
    """A chain whose every draft is accepted with the same probability where the one before was.

    Raises UsageError for a rate outside (0, 1].
    """
    if not 0.0 < rate <= 1.0:
        raise UsageError(f"acceptance rate {rate:g}: above 0 and at most 1 is allowed")
    heads = HeadAccuracy.checked(np.full((positions, 1), rate), where="acceptance rate")
    return AcceptanceProfile(
        name=f"{rate:g} per draft",
        kind="position",
        title=f"Every draft accepted with probability {rate:g}",
        source="given on the command line",
        model=ShapedAcceptance(f"{rate:g} per draft", heads),
    )


def acceptance_of(
    given: str | None,
    method: Method,
    data_dir: str | os.PathLike[str] | None = None,
    *,
    model_name: str = DEFAULT_MODEL,
    workload: str | None = None,
    lossless: bool = False,
) -> AcceptanceProfile:
    """The profile that `given` names: a profile, a file, or one rate for every position of a chain.

    None, for Medusa heads and EAGLE: the shipped profile of the model, else Vicuna-7B's. workload: an
    MT-bench category (Figure 3b of the Medusa paper). lossless: greedy acceptance instead of typical
    acceptance (Figure 5), for curves, which were measured with it; accuracies and rates say how often a
    guess is exactly right as they are.
    Raises UsageError where a drafter needs rates of its own, or for an unknown workload; SpecError or
    DataError from loading.
    """
    profile = _loaded(given, method, data_dir, model_name)
    if workload is not None:
        profile = profile.with_ratio(workload_ratio(workload))
    if lossless and profile.heads is None:
        profile = profile.with_ratio(scheme_ratio("greedy"))
    return profile


def is_another_models(profile: AcceptanceProfile, given: str | None, model_name: str) -> bool:
    """Whether nothing was given and the profile in use was measured on another model."""
    return given is None and not profile.name.endswith(model_name)


def _loaded(
    given: str | None, method: Method, data_dir: str | os.PathLike[str] | None, model_name: str
) -> AcceptanceProfile:
    if given is None:
        if method not in DEFAULT_ACCEPTANCE:
            raise UsageError(
                f"drafter {method} needs --acceptance: a profile's name, a CSV file of rates per position, "
                "or one rate such as 0.7"
            )
        names = [
            f"{prefix}{model}"
            for model in (model_name, DEFAULT_MODEL)
            for prefix in DEFAULT_ACCEPTANCE[method]
        ]
        known = acceptance_names(data_dir)
        return load_acceptance(next(name for name in names if name in known), data_dir)
    try:
        rate = float(given)
    except ValueError:
        return load_acceptance(given, data_dir)
    return constant_rate(rate)
