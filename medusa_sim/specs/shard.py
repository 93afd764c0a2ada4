"""What one GPU of several holds and computes, again as a model: fewer heads, narrower MLPs and experts."""

from __future__ import annotations

from dataclasses import replace

import msgspec

from medusa_sim.errors import UsageError
from medusa_sim.specs.model import Model
from medusa_sim.specs.parallel import ONE, Parallel


def on_one_gpu(model: Model, parallel: Parallel) -> Model:
    """What one GPU of the group holds and computes, as a model; the model itself on one GPU.

    KV heads that do not divide are held by several GPUs, as engines do. Raises UsageError for sizes that
    cannot be split, naming what can.
    """
    if parallel == ONE:
        return model
    if model.experts is None:
        _refuse_dense(model, parallel)
    heads = _share(model, "heads", model.heads, parallel.attention_tp)
    experts = model.experts
    if experts is not None:
        if experts.experts % parallel.ep:
            raise UsageError(
                f"{model.name}: {experts.experts} experts cannot be split over ep {parallel.ep}; "
                f"{_divisors(experts.experts, 'ep')}"
            )
        experts = msgspec.structs.replace(
            experts,
            local_experts=experts.experts // parallel.ep,
            inter=_share(model, "the width of an expert", experts.inter, parallel.expert_tp),
            shared=experts.shared
            if parallel.exchanges_experts
            else _share(model, "the width of shared experts", experts.shared, parallel.tp),
        )
    has_dense = experts is None or experts.layers < model.layers
    return replace(
        model,
        heads=heads,
        kv_heads=_kv_heads(model, parallel.attention_tp),
        intermediate=_share(model, "the width of the MLP", model.intermediate, parallel.tp)
        if has_dense
        else max(1, model.intermediate // parallel.tp),
        vocab=-(-model.vocab // parallel.tp),
        experts=experts,
        parallel=parallel,
    )


def _refuse_dense(model: Model, parallel: Parallel) -> None:
    if parallel.ep > 1:
        raise UsageError(f"{model.name} has no experts: --ep {parallel.ep} splits experts; give --tp alone")
    if parallel.dp_attention:
        raise UsageError(
            f"{model.name} has no experts: data-parallel attention serves mixtures of experts; run replicas "
            "of a dense model, each with its own batch"
        )


def _share(model: Model, what: str, size: int, parts: int) -> int:
    if size % parts:
        raise UsageError(
            f"{model.name}: {what} ({size}) cannot be split over tp {parts}; {_divisors(size, 'tp')}"
        )
    return size // parts


def _divisors(size: int, option: str) -> str:
    fits = [str(parts) for parts in (1, 2, 3, 4, 5, 6, 7, 8, 16, 32, 64, 128) if size % parts == 0]
    return f"choose --{option} {', '.join(fits)}"


def _kv_heads(model: Model, parts: int) -> int:
    if model.kv_heads % parts == 0:
        return model.kv_heads // parts
    if parts % model.kv_heads == 0:
        return 1
    raise UsageError(
        f"{model.name}: {model.kv_heads} K/V heads can be neither split nor copied over tp {parts}; "
        f"{_divisors(model.heads, 'tp')}"
    )
