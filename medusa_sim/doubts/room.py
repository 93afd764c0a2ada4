"""Doubt that the model fits on its GPUs, and what would hold it: more GPUs, or the host's memory."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from medusa_sim.file_types import FILES, bytes_per_weight
from medusa_sim.models.feed_forwards import MoE
from medusa_sim.scenario.scenario import Scenario
from medusa_sim.step.memory import fewest_gpus, step_memory_bytes
from medusa_sim.units import BYTES_PER_ELEMENT, GIGA, KILO, format_text

_HOST_BYTES_PER_S = 80e9
"""Read rate of two channels of DDR5-6000, whose peak is 96 GB/s."""


def model_too_large(scenario: Scenario) -> Iterator[str]:
    """Not even one sequence fits on the GPUs; names how many would hold it."""
    if (
        scenario.scope != "model"
        or float(step_memory_bytes(scenario.shard, None, 1, 1, 1)) <= scenario.usable_memory_bytes
    ):
        return
    model = f"{scenario.model.name} ({format_text(scenario.model.weight_dtype)})"
    if scenario.runtime.local:
        yield f"{model} does not fit on {scenario.gpu.name}: {_with_the_host(scenario)}"
        return
    enough = fewest_gpus(scenario.model, scenario.gpu, scenario.shard.parallel, scenario.runtime.engine)
    hint = f"--tp {enough} would" if enough else "no number of GPUs up to 128 would"
    yield f"{model} does not fit on {scenario.shard.parallel} of {scenario.gpu.name}: {hint}"


def _with_the_host(scenario: Scenario) -> str:
    """The option that leaves the rest of a model with the host, and what a token then takes."""
    room, model = scenario.usable_memory_bytes, scenario.shard
    beyond = float(step_memory_bytes(model, None, 1, 1, 1)) - room
    smaller = "choose a smaller file (--weight-dtype)"
    if (
        scenario.runtime.library != "llama.cpp"
        or scenario.gpu.architecture == "cpu"
        or beyond >= model.layers_weight_bytes
    ):
        return smaller
    layers, read, flag = model.layers, beyond, ""
    if model.experts is not None:
        count = sum(count for count, _ in model.blocks(MoE))
        held = model.experts.experts * model.experts.expert_weights(model.hidden)
        form = model.experts.form or model.weight_dtype
        each = bytes_per_weight(form, "experts") if form in FILES else BYTES_PER_ELEMENT[form]
        bytes_a_layer = each * held
        if (moved := int(np.ceil(beyond / bytes_a_layer))) <= count:
            read = moved * bytes_a_layer * model.experts.topk / model.experts.experts
            flag = f"--n-cpu-moe {moved} (experts of {moved} of {count} layers)"
    if not flag:
        kept = int(layers * (1.0 - beyond / model.layers_weight_bytes))
        flag = f"-ngl {kept} (of {layers} layers)"
    return (
        f"{flag} leaves {beyond / GIGA:.1f} GB with the host, for which a plain token waits "
        f"{KILO * read / _HOST_BYTES_PER_S:.0f} ms or more (two channels of DDR5); speedups are not priced "
        f"there, {smaller} for one"
    )
