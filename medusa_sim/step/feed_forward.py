"""MLPs and experts -> kernels: linear layers, routers, routed and shared experts, activations."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from medusa_sim.engines.runtime import Runtime
from medusa_sim.models.feed_forwards import Mlp, MoE
from medusa_sim.models.model import Model
from medusa_sim.operators.elementwise import Elementwise
from medusa_sim.operators.experts import Experts
from medusa_sim.operators.operator import Size
from medusa_sim.step.expert_union import of_busiest, union, union_band
from medusa_sim.step.launch import Launch, elementwise_launch, head_launch, linear_launch
from medusa_sim.step.workload import Workload


def feed_forward_launches(model: Model, workload: Workload, runtime: Runtime) -> list[Launch]:
    """The linear layers of all MLPs, the experts of the layers that have any, and what lies between.

    workload: the sequences of all GPUs, of which one has fewer under data-parallel attention alone.
    """
    m, local_m = workload.rows, workload.on_one_gpu(model.parallel).rows
    launches = []
    for count, mlp in model.blocks(Mlp):
        launches += _mlp(model, mlp, runtime, m, count)
    for count, experts in model.blocks(MoE):
        launches += _experts(model, experts, count, workload, runtime)
        if experts.shared and not _fuses_shared(experts, runtime):
            # sent to the GPUs of its experts, a token passes the shared ones where it is
            rows = local_m if model.parallel.exchanges_experts else m
            launches += [
                replace(launch, operator=replace(launch.operator, name=f"shared_{launch.operator.name}"))
                for launch in _mlp(model, experts.shared_mlp, runtime, rows, count)
            ]
    return sorted(launches, key=lambda launch: isinstance(launch.operator, Elementwise))


def _mlp(model: Model, mlp: Mlp, runtime: Runtime, m: Size, count: int) -> list[Launch]:
    """Up (and gate), the activation, down."""
    wide, hidden = model.in_form(mlp.form), model.hidden
    up = [linear_launch(wide, "up_proj", "mlp", m, mlp.width, hidden, count)]
    if mlp.gated and runtime.fused_gate_up:
        up = [linear_launch(wide, "gate_up_proj", "mlp", m, 2 * mlp.width, hidden, count)]
    elif mlp.gated:
        up.append(linear_launch(wide, "gate_proj", "mlp", m, mlp.width, hidden, count))
    return [
        *up,
        linear_launch(wide, "down_proj", "mlp", m, hidden, mlp.width, count),
        elementwise_launch(model, "activation", "activation", "mlp", m, mlp.width, count),
    ]


def _fuses_shared(experts: MoE, runtime: Runtime) -> bool:
    """Whether the kernel of the routed experts runs the shared one as one more that every token takes."""
    same_kernel = (
        experts.shared == experts.inter and experts.shared_form == experts.form and not experts.shared_gate
    )
    is_whole = experts.held == experts.experts
    return runtime.engine is not None and bool(runtime.engine.fuses_shared) and same_kernel and is_whole


def _experts(model: Model, experts: MoE, count: int, workload: Workload, runtime: Runtime) -> list[Launch]:
    """Router and routed experts of layers that have them, which hold their activation.

    Latent experts act between projections to a width of theirs and back. Of experts spread over GPUs those of
    the busiest one, for which the others wait.
    """
    local_m = workload.on_one_gpu(model.parallel).rows
    ranks = experts.experts // experts.held
    routing = (experts.experts, experts.topk, workload.batch, workload.query_tokens, workload.overlap)
    hit, few, many = (
        of_busiest(hit, ranks, experts.held) for hit in (union(*routing), *union_band(*routing))
    )
    pairs = of_busiest(np.asarray(workload.rows) * experts.topk, ranks)
    stored = model.in_form(experts.form)
    fused = int(_fuses_shared(experts, runtime))
    kernel = Experts(
        name="experts",
        dtype=stored.dtype,
        weight_dtype=stored.weight_dtype,
        tokens=workload.rows,
        hidden=experts.latent or model.hidden,
        inter=experts.inter,
        experts=experts.experts + fused,
        topk=experts.topk + fused,
        local_experts=experts.held + fused,
        hit=hit + fused,
        rows=pairs + np.asarray(workload.rows) * fused,
        gated=experts.gated,
    )
    latent, hidden = experts.latent, model.hidden
    projections = []
    if latent is not None:
        projections = [
            head_launch(model, "latent_in_proj", "experts", local_m, latent, hidden, count),
            head_launch(model, "latent_out_proj", "experts", local_m, hidden, latent, count),
        ]
    return [
        head_launch(model, "router", "experts", local_m, experts.experts, hidden, count),
        *projections,
        Launch(
            operator=kernel,
            part="experts",
            count=count,
            ends=(replace(kernel, hit=few + fused), replace(kernel, hit=many + fused)),
        ),
    ]
