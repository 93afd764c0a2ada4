"""Which kernels and engine terms stand in for unmeasured ones, and how much of a step that is."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from medusa_sim.latency.choice import NAME_MARK
from medusa_sim.latency.model import known_time
from medusa_sim.latency.operator_time import Source
from medusa_sim.operators.gemm import Gemm
from medusa_sim.operators.kinds import KIND_OF
from medusa_sim.scenario.scenario import Scenario
from medusa_sim.step.kernels import decomposed
from medusa_sim.step.network import model_launches
from medusa_sim.step.workload import decode
from medusa_sim.units import HALVES, SIXTEEN, Format

_ROWS = (1, 64, 256)
"""Numbers of rows at which linear layers are priced in both formats."""


def borrowed_shares(scenario: Scenario) -> dict[str, float]:
    """Share of a plain step by kind of borrowed kernels (from other devices or libraries).

    Shares are of the kernels of a step with one request at the scenario's length.
    """
    times_us: dict[str, float] = {}
    whole_us = 0.0
    for launch in decomposed(
        scenario.latency, model_launches(scenario.shard, decode(1, scenario.length), scenario.runtime)
    ):
        time = scenario.latency.time(launch.operator)
        own_us = launch.count * launch.share * float(np.max(time.time_us))
        whole_us += own_us
        if np.max(time.source) == Source.BORROWED:
            title = KIND_OF[launch.operator.kind].title
            times_us[title] = times_us.get(title, 0.0) + own_us
    return {title: own_us / whole_us for title, own_us in times_us.items()}


def slower_than_halves(scenario: Scenario) -> tuple[str, int, float] | None:
    """(format, rows, times as long as in 16 bits) of linear layers, at the number of rows where that is most.

    A pass that quantises inputs precedes each layer, and small layers do not earn it back. None where layers
    are faster than in 16 bits at every number of rows.
    """
    made = [
        (launch.count, launch.operator)
        for launch in scenario.kernel_fits.plain_launches
        if isinstance(launch.operator, Gemm) and launch.operator.dtype not in HALVES
    ]
    if not made:
        return None
    taken_us = np.zeros((2, len(_ROWS)))
    for count, layer in made:
        quantised = replace(layer, m=np.asarray(_ROWS))
        halves = replace(quantised, dtype=SIXTEEN, weight_dtype=None)
        for index, operator in enumerate((quantised, halves)):
            time = known_time(scenario.latency, operator)
            if time is None:
                return None
            taken_us[index] += count * time.time_us
    times = taken_us[0] / taken_us[1]
    worst = int(np.argmax(times))
    return (made[0][1].form, _ROWS[worst], float(times[worst])) if times[worst] > 1.0 else None


def forms_of_experts(scenario: Scenario) -> tuple[str, str] | None:
    """(format of the model's experts, format of the kernel that prices them); None if one is missing."""
    model, keys = scenario.model, scenario.kernel_fits.by_key
    served = next((key.partition(":")[2] for key in keys if key.startswith("moe.")), None)
    if served is None or model.experts is None:
        return None
    stored = model.in_form(model.experts.form)
    return Format(stored.dtype, stored.weight_dtype).key, served.partition(NAME_MARK)[0]


def other_form(scenario: Scenario) -> tuple[str, str] | None:
    """`forms_of_experts` where the two differ; 16-bit formats count as one."""
    forms = forms_of_experts(scenario)
    return None if forms is None or len({*forms}) == 1 or {*forms} <= {*HALVES} else forms


def taken_over(scenario: Scenario) -> list[str]:
    """Names of the engine's terms that were measured only on other numbers of GPUs."""
    engine = scenario.runtime.at(scenario.case).engine
    terms = {} if engine is None else engine.terms
    return [name for name, term in terms.items() if "gpus" in term.outside and term.value]
