"""`specs --kind coverage` of a set-up, for people: the nearest measured rows and the error to expect."""

from __future__ import annotations

from medusa_sim.doubts.standing import Standing, near_groups
from medusa_sim.engines.accuracy_groups import LEAST_ROWS, together
from medusa_sim.report.screen import Fact, Screen
from medusa_sim.report.words.basis import basis
from medusa_sim.report.words.standing import groups_table, standing_sentence
from medusa_sim.scenario.scenario import Scenario


def coverage_screen(scenario: Scenario, found: Standing) -> Screen:
    """The class of a set-up and the error to expect, where its kernels are from, the nearest groups."""
    kernels = next(part.text for part in basis(scenario, plain=True) if part.part == "Kernels")
    near = near_groups(scenario)
    title = f"what was measured nearest to it, in groups of {LEAST_ROWS} rows and more"
    lacking = (
        f"no group of {LEAST_ROWS} rows and more is near it; `medusa-sim specs --kind coverage --gpu "
        f"{scenario.gpu.name}` has those of the GPU"
    )
    return Screen(
        asked="",
        answer=(standing_sentence(scenario, found),),
        tables=(groups_table(together(near), title),) if near else (),
        facts=(Fact("Kernels", kernels), *([] if near else [Fact("Errors", lacking)])),
    )
