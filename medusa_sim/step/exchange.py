"""What GPUs of one model send each other in a step (docs/method-engines.md).

(Z1)  all-reduce        1 a mixer or MLP and 1 of the embedding, m h elements   tensor parallelism
(Z2)  all-gather        the logits, once                                        vocabulary in parts
(Z3)  gather, scatter   1 + 1 a layer, m h elements                             data-parallel attention
(Z4)  dispatch, combine 1 + 1 a layer with experts, its own rows                beside expert parallelism

An engine that gathers tokens (`Engine.gathers_tokens`) has (Z3) in place of (Z4), but on GPUs on which it
sends them where a token has fewer experts than there are GPUs (`Engine.sends_tokens`). Where experts multiply
4 bits the tokens are quantised before they are gathered; their outputs come back in 16 bits.
"""

from __future__ import annotations

from collections import Counter

import numpy as np

from medusa_sim.engines.runtime import Runtime
from medusa_sim.models.feed_forwards import Mlp, MoE
from medusa_sim.models.model import Model
from medusa_sim.operators.collective import Collective, CollectiveKind
from medusa_sim.operators.dispatch import Dispatch, DispatchKind
from medusa_sim.operators.operator import Size
from medusa_sim.step.launch import Launch
from medusa_sim.step.workload import Workload
from medusa_sim.units import BYTES_PER_ELEMENT


def exchange_launches(
    model: Model, workload: Workload, local: Workload, logit_rows: Size, runtime: Runtime
) -> list[Launch]:
    """Collectives of one step (Z1) to (Z4); none on one GPU. local: the sequences of this GPU's attention."""
    parallel = model.parallel
    if parallel.tp == 1:
        return []
    launches = logit_exchange(model, logit_rows)
    if not parallel.dp_attention:
        summed = model.part_count + 1
        one_shot_rows = 0 if runtime.engine is None else runtime.engine.one_shot_rows
        summing = _collective(
            model, "all_reduce", workload.rows, model.hidden, summed, one_shot_rows=one_shot_rows
        )
        return [summing, *launches]
    gathered = Counter({model.activation_dtype: sum(count for count, _ in model.blocks(Mlp))})
    for count, experts in model.blocks(MoE):
        if not parallel.exchanges_experts:
            gathered[model.activation_dtype] += count
        elif _gathers(experts, model, runtime):
            dtype = model.in_form(experts.form).dtype
            dtype = dtype if BYTES_PER_ELEMENT[dtype] < 1.0 else model.activation_dtype
            gathered[dtype] += count
        else:
            kinds: tuple[DispatchKind, ...] = ("dispatch", "combine")
            launches += [_dispatch(model, kind, local.rows, count, experts) for kind in kinds]
    launches += [
        _collective(model, "all_gather", workload.rows, model.hidden, count, dtype=dtype)
        for dtype, count in gathered.items()
        if count
    ]
    if layers := gathered.total():
        launches.append(_collective(model, "reduce_scatter", workload.rows, model.hidden, layers))
    return launches


def _gathers(experts: MoE, model: Model, runtime: Runtime) -> bool:
    """Whether an engine gathers tokens before experts that are spread over GPUs."""
    engine = runtime.engine
    if engine is None or not engine.gathers_tokens:
        return False
    return model.parallel.ep <= experts.topk or not engine.sends_tokens


def logit_exchange(model: Model, rows: Size) -> list[Launch]:
    """Every GPU receives the logits of all (Z2)."""
    if model.parallel.tp == 1:
        return []
    return [_collective(model, "all_gather", rows, model.whole_vocab, 1, "logit_gather")]


def _collective(
    model: Model,
    kind: CollectiveKind,
    rows: Size,
    width: int,
    count: int,
    name: str | None = None,
    dtype: str | None = None,
    one_shot_rows: int = 0,
) -> Launch:
    # dtype: of what is sent; a collective that adds nothing takes as long for as many bytes of any
    row_bytes = width * BYTES_PER_ELEMENT[dtype or model.activation_dtype]
    operator = Collective(
        name=name or kind,
        kind=kind,
        dtype=model.activation_dtype,
        message_bytes=np.asarray(rows, dtype=np.float64) * row_bytes,
        ranks=model.parallel.tp,
        one_shot_bytes=one_shot_rows * row_bytes,
    )
    return Launch(operator=operator, part="exchange", count=count)


def _dispatch(model: Model, kind: DispatchKind, rows: Size, count: int, experts: MoE) -> Launch:
    # tokens travel in the dtype of the experts' arithmetic, results in that of the activations
    dtype = model.in_form(experts.form).dtype if kind == "dispatch" else model.activation_dtype
    operator = Dispatch(
        name=kind,
        kind=kind,
        dtype=dtype,
        tokens=rows,
        hidden=experts.latent or model.hidden,
        topk=experts.topk,
        experts=experts.experts,
        ranks=model.parallel.ep,
    )
    return Launch(operator=operator, part="exchange", count=count)
