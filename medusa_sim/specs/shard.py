"""What one GPU of several holds and computes, again as a model: fewer heads, narrower MLPs and experts."""

from __future__ import annotations

from dataclasses import replace

from medusa_sim.errors import UsageError
from medusa_sim.specs.feed_forwards import MoE
from medusa_sim.specs.model import LayerGroup, Model
from medusa_sim.specs.parallel import ONE, Parallel


def on_one_gpu(model: Model, parallel: Parallel) -> Model:
    """What one GPU of the group holds and computes, as a model; the model itself on one GPU.

    Raises UsageError for sizes that cannot be split, naming what can.
    """
    if parallel == ONE:
        return model
    if not model.blocks(MoE):
        _refuse_dense(model, parallel)
    return replace(
        model,
        groups=tuple(_share(group, parallel, model.name) for group in model.groups),
        mtp=None if model.mtp is None else _share(model.mtp, parallel, model.name),
        mlp_width=max(1, model.mlp_width // parallel.tp) if model.mlp_width else 0,
        vocab=-(-model.vocab // parallel.tp),
        parallel=parallel,
    )


def _share(group: LayerGroup, parallel: Parallel, model: str) -> LayerGroup:
    mixer, feed_forward = group.mixer, group.feed_forward
    return LayerGroup(
        count=group.count,
        mixer=None if mixer is None else mixer.on_one_gpu(parallel.attention_tp, model),
        feed_forward=None if feed_forward is None else feed_forward.on_one_gpu(parallel, model),
    )


def _refuse_dense(model: Model, parallel: Parallel) -> None:
    if parallel.ep > 1:
        raise UsageError(f"{model.name} has no experts: --ep {parallel.ep} splits experts; give --tp alone")
    if parallel.dp_attention:
        raise UsageError(
            f"{model.name} has no experts: data-parallel attention serves mixtures of experts; run replicas "
            "of a dense model, each with its own batch"
        )
