"""What GPUs of one model send each other in a step (docs/method-engines.md).

(Z1)  all-reduce        1 a mixer or MLP and 1 of the embedding, m h elements   tensor parallelism
(Z2)  all-gather        the logits, once                                        vocabulary in parts
(Z3)  gather, scatter   1 + 1 a layer, m h elements                             data-parallel attention
(Z4)  dispatch, combine 1 + 1 a layer with experts, its own rows                beside expert parallelism
"""

from __future__ import annotations

import numpy as np

from medusa_sim.operators.collective import Collective, CollectiveKind, Dispatch, DispatchKind
from medusa_sim.operators.operator import Size
from medusa_sim.specs.feed_forwards import Mlp, MoE
from medusa_sim.specs.model import Model
from medusa_sim.step.launch import Launch
from medusa_sim.step.workload import Workload
from medusa_sim.units import BYTES_PER_ELEMENT


def exchange_launches(model: Model, workload: Workload, local: Workload, logit_rows: Size) -> list[Launch]:
    """Collectives of one step (Z1) to (Z4); none on one GPU. local: the sequences of this GPU's attention."""
    parallel = model.parallel
    if parallel.tp == 1:
        return []
    launches = logit_exchange(model, logit_rows)
    if not parallel.dp_attention:
        summed = model.part_count + 1
        return [_collective(model, "all_reduce", workload.rows, model.hidden, summed), *launches]
    mixtures = model.blocks(MoE)
    shared_by_all = sum(count for count, _ in model.blocks(Mlp))
    if parallel.exchanges_experts:
        kinds: tuple[DispatchKind, ...] = ("dispatch", "combine")
        launches += [
            _dispatch(model, kind, local.rows, count, experts)
            for count, experts in mixtures
            for kind in kinds
        ]
    else:
        shared_by_all += sum(count for count, _ in mixtures)
    if shared_by_all:
        launches += [
            _collective(model, "all_gather", workload.rows, model.hidden, shared_by_all),
            _collective(model, "reduce_scatter", workload.rows, model.hidden, shared_by_all),
        ]
    return launches


def logit_exchange(model: Model, rows: Size) -> list[Launch]:
    """Every GPU receives the logits of all (Z2)."""
    if model.parallel.tp == 1:
        return []
    return [_collective(model, "all_gather", rows, model.whole_vocab, 1, "logit_gather")]


def _collective(
    model: Model, kind: CollectiveKind, rows: Size, width: int, count: int, name: str | None = None
) -> Launch:
    dtype = model.activation_dtype
    sent = np.asarray(rows, dtype=np.float64) * (width * BYTES_PER_ELEMENT[dtype])
    ranks = model.parallel.tp
    operator = Collective(name=name or kind, kind=kind, dtype=dtype, message_bytes=sent, ranks=ranks)
    return Launch(operator=operator, part="exchange", count=count)


def _dispatch(model: Model, kind: DispatchKind, rows: Size, count: int, experts: MoE) -> Launch:
    # tokens travel in the dtype of the experts' arithmetic, results in that of the activations
    dtype = model.in_form(experts.form).dtype if kind == "dispatch" else model.activation_dtype
    operator = Dispatch(
        name=kind,
        kind=kind,
        dtype=dtype,
        tokens=rows,
        hidden=model.hidden,
        topk=experts.topk,
        experts=experts.experts,
        ranks=model.parallel.ep,
    )
    return Launch(operator=operator, part="exchange", count=count)
