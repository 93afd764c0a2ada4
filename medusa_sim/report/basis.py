"""What an answer rests on, in a few words: measured, or what stands in for it."""

from __future__ import annotations

from collections.abc import Callable

from medusa_sim.doubts.doubts import engine_on_other_gpus, local_kernels, unmeasured_engine
from medusa_sim.scenario.defaults import TYPICAL
from medusa_sim.scenario.scenario import Scenario

MEASURED = "measured"


def _acceptance(scenario: Scenario) -> str:
    if scenario.profile.name.startswith(TYPICAL):
        return "an assumed acceptance"
    if scenario.borrows_acceptance:
        return "another model's acceptance"
    return ""


def _guessed(scenario: Scenario) -> str:
    first = scenario.guessed_from
    return "" if first is None else f"acceptance measured to {first - 1} drafts"


def _kernels(scenario: Scenario) -> str:
    if scenario.latency.name == "calibrated" and scenario.kernel_fits.lenders:
        return "borrowed kernels"
    return "kernels of another class" if any(local_kernels(scenario)) else ""


def _engine(scenario: Scenario) -> str:
    if any(unmeasured_engine(scenario)):
        return "an engine that nobody measured so"
    return "the engine's terms on other GPUs" if any(engine_on_other_gpus(scenario)) else ""


_OF_DRAFTS: tuple[Callable[[Scenario], str], ...] = (_acceptance, _guessed)
_OF_STEPS: tuple[Callable[[Scenario], str], ...] = (_kernels, _engine)


def rests_on(scenario: Scenario, *, plain: bool = False) -> str:
    """`another model's acceptance, borrowed kernels`, or `measured`; plain: nothing is drafted."""
    words = [rule(scenario) for rule in (*(() if plain else _OF_DRAFTS), *_OF_STEPS)]
    return ", ".join(filter(None, words)) or MEASURED
