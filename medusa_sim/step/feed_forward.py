"""MLPs and experts of a model -> kernels."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from medusa_sim.operators.experts import Experts
from medusa_sim.operators.operator import Size
from medusa_sim.specs.experts import MoE
from medusa_sim.specs.model import Model
from medusa_sim.specs.runtime import Runtime
from medusa_sim.step.union import union, union_band
from medusa_sim.step.workload import Launch, Workload, elementwise_launch, head_launch, linear_launch


def feed_forward_launches(
    model: Model, workload: Workload, runtime: Runtime, m: Size, own: Size
) -> list[Launch]:
    """The linear layers of all MLPs, and the experts of the layers that have any.

    m: rows of all GPUs' sequences; own: of this one's, fewer under data-parallel attention alone.
    """
    launches = _mlp(model, runtime, m, model.dense_layers) if model.dense_layers else []
    if model.experts is not None:
        launches += _experts(model, model.experts, workload, runtime, m, own)
    return launches


def _mlp(model: Model, runtime: Runtime, m: Size, count: int) -> list[Launch]:
    up = [linear_launch(model, "up_proj", "mlp", m, model.intermediate, model.hidden, count)]
    if model.gated and runtime.fused_gate_up:
        up = [linear_launch(model, "gate_up_proj", "mlp", m, 2 * model.intermediate, model.hidden, count)]
    elif model.gated:
        up.append(linear_launch(model, "gate_proj", "mlp", m, model.intermediate, model.hidden, count))
    return [*up, linear_launch(model, "down_proj", "mlp", m, model.hidden, model.intermediate, count)]


def _experts(
    model: Model, experts: MoE, workload: Workload, runtime: Runtime, m: Size, own: Size
) -> list[Launch]:
    """Router, routed experts and shared experts of every layer that has them."""
    count, hidden = experts.layers, model.hidden
    share = experts.held / experts.experts
    woken = (experts.experts, experts.topk, workload.batch, workload.query_tokens, workload.overlap)
    few, many = union_band(*woken)
    kernel = Experts(
        name="experts",
        dtype=model.dtype,
        weight_dtype=experts.weight_dtype or model.weight_dtype,
        tokens=m,
        hidden=hidden,
        inter=experts.inter,
        experts=experts.experts,
        topk=experts.topk,
        local_experts=experts.held,
        hit=share * union(*woken),
        rows=np.asarray(m) * experts.topk * share,
        gated=model.gated,
    )
    launches = [
        head_launch(model, "router", "experts", own, experts.experts, hidden, count),
        Launch(
            operator=kernel,
            part="experts",
            count=count,
            ends=(replace(kernel, hit=share * few), replace(kernel, hit=share * many)),
        ),
    ]
    if experts.shared:
        # sent to the GPUs of its experts, a token passes the shared ones where it is
        rows = own if model.parallel.exchanges_experts else m
        wide = replace(model, intermediate=experts.shared)
        launches += [
            replace(launch, operator=replace(launch.operator, name=f"shared_{launch.operator.name}"))
            for launch in _mlp(wide, runtime, rows, count)
        ]
    return launches


def activation_launches(model: Model, m: Size, own: Size) -> list[Launch]:
    """The activation between the linear layers of MLPs and shared experts; routed experts hold theirs."""
    launches = []
    if model.dense_layers:
        launches.append(
            elementwise_launch(
                model, "activation", "activation", "mlp", m, model.intermediate, model.dense_layers
            )
        )
    if (experts := model.experts) is not None and experts.shared:
        rows = own if model.parallel.exchanges_experts else m
        launches.append(
            elementwise_launch(
                model, "shared_activation", "activation", "mlp", rows, experts.shared, experts.layers
            )
        )
    return launches
