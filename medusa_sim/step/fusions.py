"""Kernels that an engine merges, or runs beside others (`engines.engine.Fusion`)."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

import numpy as np

from medusa_sim.engines.engine import Engine
from medusa_sim.models.model import Model
from medusa_sim.operators.gemm import Gemm
from medusa_sim.step.launch import Launch
from medusa_sim.step.workload import Workload


def fused(launches: Iterable[Launch], model: Model, workload: Workload, engine: Engine) -> tuple[Launch, ...]:
    """The launches of a step as the engine runs those of the model's family.

    Prompts are read outside graphs, on one stream.
    """
    found = list(launches)
    for fusion in engine.fusions:
        names = {launch.operator.name for launch in found}
        if model.architecture not in fusion.families or fusion.needs not in names:
            continue
        found = _merged(found, fusion.merged)
        if workload.phase != "prefill":
            found = [
                replace(launch, share=0.0) if launch.operator.name in fusion.beside else launch
                for launch in found
            ]
    return tuple(found)


def _merged(launches: list[Launch], names: tuple[str, ...]) -> list[Launch]:
    """With linear layers of one input as one product, where all are there, as often and of one format."""
    parts = {launch.operator.name: launch for launch in launches if launch.operator.name in names}
    products = [part.operator for part in parts.values() if isinstance(part.operator, Gemm)]
    kinds = {(part.count, part.operator.form) for part in parts.values()}
    if not names or len(products) != len(names) or len(kinds) != 1:
        return launches
    width = sum(np.asarray(product.n) for product in products)
    first = products[0].name
    return [
        replace(launch, operator=replace(products[0], n=width)) if launch.operator.name == first else launch
        for launch in launches
        if launch.operator.name == first or launch.operator.name not in names
    ]
