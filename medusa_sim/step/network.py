"""Model and workload -> the kernels that one step launches on each GPU.

`scope="block"` is the paper's simplified block (Q, K, V, QK^T, PV, up, gate, down), once.
`scope="model"` is what an engine runs: every layer with norms, rope, output projection, residuals
and activation, then the LM head and the choice of the next token.

The model is what one GPU holds of it (`specs.variants.on_one_gpu`). GPUs of one model send each other in a
step (docs/method-engines.md, Z1 to Z4)

(Z1)  all-reduce        1 a mixer or MLP and 1 of the embedding, m h elements   tensor parallelism
(Z2)  all-gather        the logits, once                                        vocabulary in parts
(Z3)  gather, scatter   1 + 1 a layer, m h elements                             data-parallel attention
(Z4)  dispatch, combine 1 + 1 a layer with experts, the own rows                beside expert parallelism

"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any

import numpy as np

from medusa_sim.operators.collective import Collective, CollectiveKind, Dispatch, DispatchKind
from medusa_sim.operators.experts import Experts
from medusa_sim.operators.operator import READ_AND_WRITE, Elementwise, Gemm, Size
from medusa_sim.operators.stream import CONNECTION_WIDTHS, HyperConnection
from medusa_sim.specs.engine import Engine
from medusa_sim.specs.feed_forwards import Mlp, MoE
from medusa_sim.specs.mixers import Grouped, Latent, Mixer
from medusa_sim.specs.model import Model
from medusa_sim.specs.parallel import ONE
from medusa_sim.specs.recurrent import GatedDelta, KimiDelta, Mamba2
from medusa_sim.specs.runtime import Runtime
from medusa_sim.specs.sparse import BlockSparse, Compressed
from medusa_sim.step.attention import grouped_launches
from medusa_sim.step.expert_union import union, union_band
from medusa_sim.step.launch import PARTS, Launch, elementwise_launch, head_launch, linear_launch
from medusa_sim.step.mixer_layers import MixerLayers
from medusa_sim.step.recurrent import recurrent_launches
from medusa_sim.step.sparse import block_sparse_launches, compressed_launches, sparse_latent_launches
from medusa_sim.step.workload import Scope, Workload
from medusa_sim.units import BYTES_PER_ELEMENT

_MIXERS: dict[type[Mixer], Callable[[Any, MixerLayers[Any]], list[Launch]]] = {
    Grouped: grouped_launches,
    BlockSparse: block_sparse_launches,
    Compressed: compressed_launches,
    GatedDelta: recurrent_launches,
    KimiDelta: recurrent_launches,
    Latent: sparse_latent_launches,
    Mamba2: recurrent_launches,
}
"""What builds the kernels of layers with a mixer of each kind; it is handed the mixer without its window."""


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
        layers = MixerLayers(
            model=model.in_form(whole.form),
            variants=tuple(variants),
            workload=workload,
            runtime=runtime,
            unfused_keys=workload.kv_len if unfused_keys is None else unfused_keys,
        )
        launches += _MIXERS[type(whole)](whole, layers)
    return sorted(launches, key=lambda each: (isinstance(each.operator, Elementwise), PARTS.index(each.part)))


def block_launches(model: Model, workload: Workload, runtime: Runtime) -> tuple[Launch, ...]:
    """The paper's simplified block (appendix G.3): linear layers and attention products, once.

    Unfused products use s keys, as Table 5 does; a fused kernel attends to s + q. Of a model with experts the
    block is `Model.last_layer`.
    """
    one = replace(model.resized(layers=1), parallel=ONE)
    exact = replace(workload, padded_rows=None)
    launches = [
        *mixer_launches(one, exact, runtime, unfused_keys=workload.seq_len),
        *feed_forward_launches(one, exact, runtime),
    ]
    parts = (each for launch in launches for each in (launch.composed[1:] and launch.composed) or (launch,))
    return tuple(
        launch for launch in parts if launch.part != "o_proj" and not isinstance(launch.operator, Elementwise)
    )


def model_launches(model: Model, workload: Workload, runtime: Runtime) -> tuple[Launch, ...]:
    """Everything an engine launches to turn token ids into next-token choices, drafting apart.

    The LM head and the choice run on the last token of a prompt, and on every candidate of a
    verification step. A serving engine adds residuals inside the norms and merges other small kernels.
    Under data-parallel attention a GPU has its own sequences, but for experts and MLPs the tokens of all.
    """
    own = workload.on_one_gpu(model.parallel)
    m, hidden = own.rows, model.hidden
    norms = model.norms_per_layer * model.block_count // 2
    logit_rows = workload.batch if workload.phase == "prefill" else workload.tokens
    launches = [
        elementwise_launch(model, "embedding", "embedding", "embedding", m, hidden),
        elementwise_launch(model, "norms", "rms_norm", "norm_rope", m, hidden, norms),
        *mixer_launches(model, own, runtime),
        *_residual_launches(model, m),
        *feed_forward_launches(model, workload, runtime),
        elementwise_launch(model, "final_norm", "rms_norm", "norm_rope", m, hidden),
        *exchange_launches(model, workload, own, logit_rows),
        head_launch(model, "lm_head", "lm_head", logit_rows, model.vocab, hidden),
        elementwise_launch(model, "next_token", "next_token", "accept", logit_rows, model.whole_vocab),
    ]
    return tuple(launches) if runtime.engine is None else _compiled(launches, runtime.engine)


def last_logits(launches: Iterable[Launch]) -> tuple[Launch, ...]:
    """Kernels of a pass that wants logits of its last token alone: so run the head and the last layer's MLP.

    llama.cpp takes the rows that are asked for behind the attention of its last layer.
    """
    kept: list[Launch] = []
    for launch in launches:
        operator, is_last = launch.operator, launch.operator.name in _LAST
        if not is_last or not isinstance(operator, Gemm | Elementwise):
            kept.append(launch)
            continue
        kept.append(replace(launch, operator=replace(operator, m=1), count=1))
        if launch.count > 1:
            kept.append(replace(launch, count=launch.count - 1))
    return tuple(kept)


_LAST = ("up_proj", "gate_proj", "gate_up_proj", "down_proj", "activation", "lm_head", "next_token")
"""Operators of rows whose logits are asked for, of the last layer and behind it."""
_CONNECTION_ENDS = (0.5, 2.0)
"""Ends where no kernel is fitted."""


def _residual_launches(model: Model, m: Size) -> list[Launch]:
    """What adds a mixer or feed-forward part to the residual stream, or mixes several streams around it."""
    hidden, sites = model.hidden, model.block_count
    if model.streams == 1:
        added = [elementwise_launch(model, "residuals", "residual", "norm_rope", m, hidden, sites)]
        if summed := model.part_count - sites:
            added.append(elementwise_launch(model, "mixer_sum", "residual", "norm_rope", m, hidden, summed))
        return added
    launches = []
    for part, (each, beside) in CONNECTION_WIDTHS.items():
        width = (each * model.streams + beside) * hidden
        mid, low, high = (
            elementwise_launch(
                model, "hyper_connections", READ_AND_WRITE, "norm_rope", m, round(share * width), sites
            )
            for share in (1.0, *_CONNECTION_ENDS)
        )
        composed = replace(mid, ends=(low.operator, high.operator))
        kernel = HyperConnection(
            name="hyper_connections",
            tokens=m,
            hidden=hidden,
            streams=model.streams,
            part=part,
            dtype=model.activation_dtype,
        )
        launches.append(replace(mid, operator=kernel, composed=(composed,)))
    return launches


_MERGED = (
    "norms", "final_norm", "qk_norm", "latent_norm", "rope", "activation", "shared_activation", "mixer_sum"
)  # fmt: skip
"""Operators that a compiler merges with their neighbours."""


def _compiled(launches: Iterable[Launch], engine: Engine) -> tuple[Launch, ...]:
    """As an engine compiles them: residual adds inside the norms, a share of the other elementwise time."""
    share = engine.elementwise_share.value
    return tuple(
        replace(launch, share=share) if launch.operator.name in _MERGED else launch
        for launch in launches
        if launch.operator.name != "residuals" or not engine.fused_residual
    )


def step_launches(model: Model, workload: Workload, runtime: Runtime, scope: Scope) -> tuple[Launch, ...]:
    """The kernels of one step without drafting, for the chosen scope."""
    if scope == "block":
        return block_launches(model, workload, runtime)
    return model_launches(model, workload, runtime)


def acceptance_launches(
    model: Model, workload: Workload, depth: int, longest: Size | None = None
) -> tuple[Launch, ...]:
    """Tree bookkeeping, acceptance and cache compaction after the LM head.

    Gathering the candidates, comparing them with the target's choice, the running product along the
    paths and the best path are four kernels over the candidates; compaction copies the KV rows of at
    most longest + 1 accepted tokens of every layer (None: as deep as the tree).
    """
    copied = np.asarray(depth if longest is None else longest) + 1
    rows: dict[int, int] = {}
    for count, mixer in model.blocks(Mixer):
        if mixer.row:
            rows[mixer.row] = rows.get(mixer.row, 0) + count
    tree = elementwise_launch(model, "tree_bookkeeping", "residual", "accept", workload.tokens, depth + 1, 4)
    return (
        tree,
        *(
            elementwise_launch(
                model,
                "cache_compaction",
                "embedding",
                "accept",
                np.asarray(workload.batch) * (copied * count),
                row,
            )
            for row, count in rows.items()
        ),
    )


def exchange_launches(model: Model, workload: Workload, own: Workload, logit_rows: Size) -> list[Launch]:
    """Collectives of one step (Z1) to (Z4); none on one GPU. own: the sequences of this GPU's attention."""
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
            _dispatch(model, kind, own.rows, count, experts) for count, experts in mixtures for kind in kinds
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


def feed_forward_launches(model: Model, workload: Workload, runtime: Runtime) -> list[Launch]:
    """The linear layers of all MLPs, the experts of the layers that have any, and what lies between.

    workload: the sequences of all GPUs, of which one has fewer under data-parallel attention alone.
    """
    m, own = workload.rows, workload.on_one_gpu(model.parallel).rows
    launches = []
    for count, mlp in model.blocks(Mlp):
        launches += _mlp(model, mlp, runtime, m, count)
    for count, experts in model.blocks(MoE):
        launches += _experts(model, experts, count, workload, runtime)
        if experts.shared:
            # sent to the GPUs of its experts, a token passes the shared ones where it is
            rows = own if model.parallel.exchanges_experts else m
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


def _experts(model: Model, experts: MoE, count: int, workload: Workload, runtime: Runtime) -> list[Launch]:
    """Router and routed experts of layers that have them; the latter hold their activation."""
    own = workload.on_one_gpu(model.parallel).rows
    share = experts.held / experts.experts
    woken = (experts.experts, experts.topk, workload.batch, workload.query_tokens, workload.overlap)
    few, many = union_band(*woken)
    stored = model.in_form(experts.form)
    kernel = Experts(
        name="experts",
        dtype=stored.dtype,
        weight_dtype=stored.weight_dtype,
        tokens=workload.rows,
        hidden=model.hidden,
        inter=experts.inter,
        experts=experts.experts,
        topk=experts.topk,
        local_experts=experts.held,
        hit=share * union(*woken),
        rows=np.asarray(workload.rows) * experts.topk * share,
        gated=experts.gated,
    )
    return [
        head_launch(model, "router", "experts", own, experts.experts, model.hidden, count),
        Launch(
            operator=kernel,
            part="experts",
            count=count,
            ends=(replace(kernel, hit=share * few), replace(kernel, hit=share * many)),
        ),
    ]
