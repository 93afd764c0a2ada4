"""Basis of an answer, part by part: measured, fitted, or a stand-in."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from medusa_sim.doubts.acceptance import acceptance_of_shorter_requests
from medusa_sim.doubts.of_answer import length_doubts
from medusa_sim.doubts.of_scenario import (
    engine_on_other_gpus,
    local_kernels,
    requests_too_long,
    unmeasured_engine,
)
from medusa_sim.doubts.stand_ins import borrowed_shares
from medusa_sim.doubts.standing import standing
from medusa_sim.report.words.numbers import percent
from medusa_sim.report.words.standing import WHAT_IS_NEW, expected_text
from medusa_sim.scenario.acceptance import GIVEN
from medusa_sim.scenario.defaults import TYPICAL
from medusa_sim.scenario.scenario import Scenario

MEASURED = "measured"
MOST = 5
"""Lines on what an answer rests on, before a fold."""
_UNFITTED = {
    "roofline": "the datasheet of {} alone",
    "local": "fitted to speeds of the class of {}",
    "measured": "measured rows of {}",
}
"""Where times come from that no kernels of a GPU give, by the name of the latency model."""


class Basis(NamedTuple):
    """One part of what an answer rests on.

    part: Acceptance, Kernels or Engine. text: how that is known, and how far off it is. short: what stands in
    for a measurement, in words that are clear without the part; empty where nothing does.
    """

    part: str
    text: str
    short: str = ""


def basis(scenario: Scenario, *, plain: bool = False) -> tuple[Basis, ...]:
    """A line a part, in order; plain: nothing is drafted, so nothing is accepted."""
    rules = (_kernels, _engine) if plain else (_acceptance, _kernels, _engine)
    return tuple(part for rule in rules for part in rule(scenario))


def how_sure(
    scenario: Scenario, number: str, ends: str = "", *, seq_len: float | None = None, plain: bool = False
) -> list[tuple[str, str]]:
    """MOST lines at most, each with its label: the number with its interval, then what it rests on.

    ends: of the 80 % interval, empty where the number has none. seq_len: the context where none follows from
    requests.
    """
    beyond = [
        *requests_too_long(scenario),
        *acceptance_of_shorter_requests(scenario),
        *([] if seq_len is None else length_doubts(scenario, seq_len)),
    ]
    lines = [(number, f"80 % of measurements lie within {ends}")] if ends else []
    lines += [("Context", line) for line in beyond[:1]]
    return [*lines, *((part.part, part.text) for part in basis(scenario, plain=plain))][:MOST]


def rests_on(scenario: Scenario, *, plain: bool = False) -> str:
    """`another model's acceptance, borrowed kernels`, or `measured`; plain: nothing is drafted."""
    return ", ".join(part.short for part in basis(scenario, plain=plain) if part.short) or MEASURED


def rests_text(scenario: Scenario, *, plain: bool = False) -> str:
    """The basis as a sentence."""
    basis = rests_on(scenario, plain=plain)
    return "Kernels, engine and acceptance measured." if basis == MEASURED else f"Rests on {basis}."


def _acceptance(scenario: Scenario) -> Iterator[Basis]:
    name, first = scenario.profile.name, scenario.guessed_from
    measured_to = "" if first is None else "1 draft" if first == 2 else f"{first - 1} drafts"
    beyond = f"; a guess beyond {measured_to}" if measured_to else ""
    only = f"measured to {measured_to}" if measured_to else ""
    if name.startswith(TYPICAL):
        source = f"assumed: nobody measured {scenario.drafting.method} on {scenario.model.name}"
        short = "an assumed acceptance"
    elif scenario.profile.borrowed:
        source = f"borrowed from another model: {name}"
        short = f"another model's acceptance{f', {only}' if only else ''}"
    elif scenario.profile.source == GIVEN:
        source, short = f"given: {name}", "a given acceptance"
    else:
        source, short = f"{MEASURED}: {name}", f"acceptance {only}" if only else ""
    yield Basis("Acceptance", f"{source}{beyond}", short)


def _kernels(scenario: Scenario) -> Iterator[Basis]:
    gpu, name = scenario.gpu.name, scenario.latency.name
    if any(local_kernels(scenario)):
        yield Basis("Kernels", f"borrowed: nobody measured the class of {gpu}", "kernels of another class")
    elif name != "calibrated":
        yield Basis("Kernels", _UNFITTED[name].format(gpu))
    else:
        yield _fitted_kernels(scenario)


def _fitted_kernels(scenario: Scenario) -> Basis:
    fits, linear = scenario.kernel_fits, scenario.kernel_fits.linear
    off = (
        "" if linear is None else f"; linear layers off by {percent(linear.heldout_error)} on shapes left out"
    )
    if not fits.lenders:
        return Basis("Kernels", f"fitted to rows of {scenario.gpu.name}{off}")
    names = (lender.split(":") for lender in fits.lenders)
    gpu = scenario.gpu.name
    lenders = ", ".join(dict.fromkeys(":".join(name[: 1 + (name[0] == gpu)]) for name in names))
    share = sum(borrowed_shares(scenario).values())
    part = f"{percent(share, 0)} of a plain step" if share else "what a plain step does not call"
    return Basis("Kernels", f"{part} borrowed from {lenders}{off}", "borrowed kernels")


def _engine(scenario: Scenario) -> Iterator[Basis]:
    runtime = scenario.runtime
    if scenario.scope != "model" or runtime.engine is None or runtime.local:
        return
    found = standing(scenario)
    nearest = f", nearest {found.nearest}" if found.nearest and found.kind != MEASURED else ""
    text = f"{WHAT_IS_NEW[found.kind]}{nearest}{expected_text(found)}"
    if any(unmeasured_engine(scenario)):
        yield Basis("Engine", f"{text}; nobody measured it drafting so", "an engine that nobody measured so")
    elif any(engine_on_other_gpus(scenario)):
        yield Basis("Engine", f"{text}; terms of other numbers of GPUs", "the engine's terms on other GPUs")
    else:
        yield Basis("Engine", text)
