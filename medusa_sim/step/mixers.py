"""Every kind of mixer -> its kernels."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from medusa_sim.operators.operator import Elementwise, Size
from medusa_sim.specs.mixers import Grouped, Latent, Mixer
from medusa_sim.specs.model import Model
from medusa_sim.specs.recurrent import GatedDelta, KimiDelta, Mamba2
from medusa_sim.specs.runtime import Runtime
from medusa_sim.specs.sparse import BlockSparse, Compressed
from medusa_sim.step.attention import grouped_launches
from medusa_sim.step.recurrent import recurrent_launches
from medusa_sim.step.sparse import block_sparse_launches, compressed_launches, sparse_latent_launches
from medusa_sim.step.workload import PARTS, Launch, Mixing, Workload

LAUNCHES: dict[type[Mixer], Callable[[Any, Mixing[Any]], list[Launch]]] = {
    Grouped: grouped_launches,
    Latent: sparse_latent_launches,
    BlockSparse: block_sparse_launches,
    Compressed: compressed_launches,
    GatedDelta: recurrent_launches,
    KimiDelta: recurrent_launches,
    Mamba2: recurrent_launches,
}
"""What builds the kernels of layers with that mixer; they are handed the mixer without its window."""


def mixer_launches(
    model: Model, workload: Workload, runtime: Runtime, unfused_keys: Size | None = None
) -> list[Launch]:
    """The kernels of all mixers of a model, in the order of PARTS, elementwise ones last.

    unfused_keys: keys of unfused products, those of the workload unless given.
    """
    alike: dict[Mixer, list[tuple[int, Mixer]]] = {}
    for count, mixer in model.blocks(Mixer):
        alike.setdefault(mixer.whole(), []).append((count, mixer))
    launches = []
    for whole, variants in alike.items():
        at = Mixing(
            model=model.in_form(whole.form),
            variants=tuple(variants),
            workload=workload,
            runtime=runtime,
            unfused_keys=workload.kv_len if unfused_keys is None else unfused_keys,
        )
        launches += LAUNCHES[type(whole)](whole, at)
    return sorted(launches, key=lambda each: (isinstance(each.operator, Elementwise), PARTS.index(each.part)))
