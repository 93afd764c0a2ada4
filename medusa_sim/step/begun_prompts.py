"""How many prompts begin on a step of a full server, with the probability of each number.

`step.request_cycle` says what each letter is. Prompts begin

    n ~ Bin(running, pi)              each by itself
    n ~ gpus Bin(running / gpus, pi)  on GPUs whose mixed steps wait for each other: one on each
    n = 1 + J, J ~ Bin(running - 1, 1 - (1 - pi)^hold), on running pi / (1 + mean J) of the steps, none on
                                      others: where an engine holds the first prompt for others

running pi of them on average, in each case.
"""

from __future__ import annotations

import numpy as np

from medusa_sim.arrays import IntArray
from medusa_sim.step.chance import Hits, binomial
from medusa_sim.step.request_cycle import RequestCycle


def begun_prompts(cycle: RequestCycle, cells: IntArray, gpus: int = 1) -> Hits:
    """Prompts that begin on a step of these cells: n.

    `Hits.place` is a place among `cells`. gpus: whose mixed steps wait for each other.
    """
    if cycle.most_held_steps.any():
        return _held_prompts(cycle, cells)
    requests = cycle.running[cells]
    together = np.minimum(float(gpus), requests)
    hits = binomial(requests / together, cycle.begin_chance[cells])
    return hits._replace(number=hits.number * together[hits.place])


def _held_prompts(cycle: RequestCycle, cells: IntArray) -> Hits:
    """The first, held for others, and J that join it.

    Where there is nobody to wait for, none joins: the one request begins with pi.
    """
    begins = np.minimum(cycle.running * cycle.begin_chance / (1.0 + cycle.joining), 1.0)[cells]
    joined = binomial(np.maximum(cycle.running[cells] - 1.0, 0.0), cycle.joining_chance[cells])
    return Hits(
        number=np.concatenate([np.zeros(cells.size), 1.0 + joined.number]),
        weight=np.concatenate([1.0 - begins, begins[joined.place] * joined.weight]),
        place=np.concatenate([np.arange(cells.size), joined.place]),
    )
