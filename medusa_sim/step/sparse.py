"""Latent attention, and that to chosen or compressed keys -> kernels: what chooses, what is attended to.

    (K5)  indexer    keys of all tokens once a request, 2 n_I d_I FLOPs a pair, a choice over s scores
    (K6)  attention  min(s, k) keys a query; beyond k each query reads its own choice
    (K7)  V4         the last tokens, and chosen or all compressed ones

A layer's projections, indexer, choice and attention are one module of `operators.sparse`, fitted for some
cards and engines. Elsewhere, and for sizes that nobody measured, the indexer is priced as an attention
product of as many bytes and FLOPs, the choice as a pass over its scores.
"""

from __future__ import annotations

import numpy as np

from medusa_sim.arrays import FloatArray
from medusa_sim.operators.latent import LatentAttention, LatentKind
from medusa_sim.operators.operator import (
    GENERATION,
    VERIFY,
    Attention,
    AttentionKind,
    Elementwise,
    Operator,
    Size,
)
from medusa_sim.operators.sparse import CHOICES, DSA_SIZES, HEADS, OUT_RANK, Sparse, SparseKind
from medusa_sim.specs.mixers import Latent, Mixer
from medusa_sim.specs.sparse import BlockSparse, Compressed
from medusa_sim.step.attention import FUSED_KIND, KERNEL_PHASE, grouped_launches
from medusa_sim.step.workload import Launch, Mixing, elementwise_launch, head_launch, linear_launch
from medusa_sim.units import Format


def chosen(operator: Operator, keys: FloatArray, reach: float, *, prompt: bool) -> Operator:
    """The kernel with at most `reach` keys a query; past it each query of a request has its own.

    A prompt is cut into blocks of `reach` queries over 1.5 times as many keys, as a window is.
    """
    sizes = operator.sizes
    queries = np.asarray(sizes["q_len"], dtype=np.float64)
    batch = np.asarray(sizes["batch"], dtype=np.float64)
    if prompt:
        blocks = np.maximum(keys / reach, 1.0)
        return operator.with_columns(
            batch=batch * blocks, q_len=queries / blocks, kv_len=np.where(blocks > 1.0, 1.5 * reach, keys)
        )
    apart = keys > reach + queries
    return operator.with_columns(
        batch=np.where(apart, batch * queries, batch),
        q_len=np.where(apart, 1.0, queries),
        kv_len=np.where(apart, reach, keys),
    )


def _module(
    at: Mixing[Mixer], kind: SparseKind, count: int, composed: list[Launch], **sizes: int
) -> list[Launch]:
    """A layer's module, and what it is composed of where nobody fitted one.

    Kernels of DeepSeek-V3.2 and MiniMax-M3 verify as they decode; V4's have rows of their own.
    """
    workload, model = at.workload, at.model
    phase = KERNEL_PHASE[workload.phase]
    if phase == VERIFY and kind not in ("csa", "hca"):
        phase = GENERATION
    queries = np.asarray(workload.query_tokens, dtype=np.float64)
    kernel = Sparse(
        name=f"{kind}_module",
        kind=kind,
        batch=workload.batch,
        q_len=queries,
        prefix=np.maximum(np.asarray(workload.kv_len, dtype=np.float64) - queries, 0.0),
        hidden=model.hidden,
        dtype=model.activation_dtype,
        kv_dtype=model.kv_dtype,
        gemm_dtype=Format(model.dtype, model.weight_dtype).key,
        phase=phase,
        **sizes,
    )
    return [Launch(operator=kernel, part="attention", count=count, composed=tuple(composed))]


def indexer_launches(
    at: Mixing[Mixer], count: int, heads: int, dim: int, keys: Size, kv_dtype: str
) -> list[Launch]:
    """Scores of all keys for every query, and the choice among them."""
    workload, model = at.workload, at.model
    kind: AttentionKind = FUSED_KIND[workload.phase]
    scores = Attention(
        name="indexer",
        kind=kind,
        batch=workload.batch,
        q_len=workload.query_tokens,
        kv_len=np.maximum(keys, workload.query_tokens),
        heads=heads,
        kv_heads=1,
        head_dim=dim / 2,  # one product instead of two: half of the bytes and FLOPs of attention
        dtype=model.activation_dtype,
        kv_dtype=kv_dtype,
    )
    rows = np.asarray(workload.batch) * np.asarray(workload.query_tokens)
    choice = Elementwise(name="choice", kind="rms_norm", m=rows, n=keys, dtype=model.activation_dtype)
    return [Launch(operator=each, part="attention", count=count) for each in (scores, choice)]


def latent_launches(mixer: Latent, at: Mixing[Latent]) -> list[Launch]:
    """Compression (held whole by every GPU), queries, the up-projections of K and V, attention and output.

    A decode or verification step multiplies queries and results with the up-projections instead of the cache
    ("absorption", arXiv 2405.04434, section 2.1.2); those products stay in the activations' dtype.
    """
    model, m, count, heads = at.model, at.rows, at.count, mixer.heads
    query_inputs = mixer.q_rank or model.hidden
    launches = [
        linear_launch(model, "qkv_a_proj", "qkv", m, mixer.down_width, model.hidden, count),
        linear_launch(model, "q_b_proj", "qkv", m, heads * mixer.qk_dim, query_inputs, count),
    ]
    if at.workload.phase == "prefill":
        width = heads * (mixer.nope_dim + mixer.v_dim)
        launches.append(linear_launch(model, "kv_b_proj", "qkv", m, width, mixer.kv_rank, count))
    else:
        launches += [
            head_launch(model, "k_absorb", "qkv", m, heads * mixer.kv_rank, mixer.nope_dim, count),
            head_launch(model, "v_absorb", "qkv", m, heads * mixer.v_dim, mixer.kv_rank, count),
        ]
    launches += [
        Launch(
            operator=_latent_attention(mixer, at, mixer.kv_rank, mixer.nope_dim, mixer.v_dim),
            part="attention",
            count=count,
        ),
        linear_launch(at.output_model, "o_proj", "o_proj", m, model.hidden, heads * mixer.v_dim, count),
    ]
    if mixer.gate:
        width = heads * mixer.v_dim
        launches += [
            linear_launch(model, "gate_proj", "qkv", m, width, model.hidden, count),
            elementwise_launch(model, "gate", "activation", "norm_rope", m, width, count),
        ]
    if model.rope and mixer.rotates:
        rotated = (heads + 1) * mixer.rope_dim
        launches.append(elementwise_launch(model, "rope", "rope", "norm_rope", m, rotated, count))
    norms = elementwise_launch(model, "latent_norm", "rms_norm", "norm_rope", m, mixer.norm_count, count)
    return [*launches, norms]


def _latent_attention(
    mixer: Latent | Compressed,
    at: Mixing[Latent] | Mixing[Compressed],
    latent_dim: int,
    nope_dim: int,
    v_dim: int,
) -> LatentAttention:
    """The step's attention of all heads to one latent key each."""
    workload = at.workload
    kind: LatentKind = "mla_prefill" if workload.phase == "prefill" else "mla_decode"
    return LatentAttention(
        name=kind,
        kind=kind,
        batch=workload.batch,
        q_len=workload.query_tokens,
        kv_len=workload.kv_len,
        heads=mixer.heads,
        latent_dim=latent_dim,
        rope_dim=mixer.rope_dim,
        nope_dim=nope_dim,
        v_dim=v_dim,
        dtype=at.model.activation_dtype,
        kv_dtype=at.model.kv_dtype,
    )


def sparse_latent_launches(mixer: Latent, at: Mixing[Latent]) -> list[Launch]:
    """Latent attention; with an indexer to what it chooses."""
    launches = latent_launches(mixer, at)
    index = mixer.indexer
    if index is None:
        return launches
    keys = np.asarray(at.workload.kv_len, dtype=np.float64)
    prompt = at.workload.phase == "prefill"
    launches = [
        Launch(
            operator=chosen(each.operator, keys, index.topk, prompt=prompt), part=each.part, count=each.count
        )
        if isinstance(each.operator, LatentAttention)
        else each
        for each in launches
    ]
    sizes = (mixer.kv_rank, mixer.rope_dim, index.dim, index.topk)
    is_module = sizes == DSA_SIZES and mixer.q_rank is not None and not mixer.gate
    heads = {
        "heads": mixer.heads,
        "q_rank": mixer.q_rank or 0,
        "nope_dim": mixer.nope_dim,
        "v_dim": mixer.v_dim,
    }
    if index.reuses:
        kind: SparseKind = "dsa_no_indexer"
        return _module(at, kind, at.count, launches, **heads, index_heads=0) if is_module else launches
    model, m, inputs = at.model, at.rows, mixer.q_rank or at.model.hidden
    launches += [
        linear_launch(model, "index_q_proj", "qkv", m, index.heads * index.dim, inputs, at.count),
        head_launch(model, "index_k_proj", "qkv", m, index.dim + index.heads, model.hidden, at.count),
        *indexer_launches(at, at.count, index.heads, index.dim, at.workload.kv_len, "fp8"),
    ]
    return _module(at, "dsa", at.count, launches, **heads, index_heads=index.heads) if is_module else launches


def block_sparse_launches(mixer: BlockSparse, at: Mixing[BlockSparse]) -> list[Launch]:
    """Grouped attention to chosen blocks; index queries and key come out of the fused projection."""
    keys = np.asarray(at.workload.kv_len, dtype=np.float64)
    prompt = at.workload.phase == "prefill"
    launches = []
    for each in grouped_launches(mixer, at):
        operator = each.operator
        if isinstance(operator, Attention) and operator.is_fused:
            operator = chosen(operator, keys, mixer.reach, prompt=prompt)
        launches.append(Launch(operator=operator, part=each.part, count=each.count))
    index = head_launch(at.model, "index_proj", "qkv", at.rows, mixer.index_width, at.model.hidden, at.count)
    dtype = at.model.activation_dtype
    scores = indexer_launches(at, at.count, mixer.index_heads, mixer.index_dim, at.workload.kv_len, dtype)
    launches += [index, *scores]
    sizes = (mixer.head_dim, mixer.index_dim, mixer.reach)
    if sizes != (HEADS["msa"], HEADS["index"], CHOICES["msa"].topk):
        return launches
    return _module(at, "msa", at.count, launches, heads=mixer.heads, q_rank=0, index_heads=mixer.index_heads)


def compressed_launches(mixer: Compressed, at: Mixing[Compressed]) -> list[Launch]:
    """DeepSeek-V4: low-rank projections, the compressor, attention to the window and compressed keys."""
    launches = []
    for number, each in at.variants:
        own = [*_compressed_projections(mixer, at, number), *_compressed_attention(each, at, number)]
        index, model, workload = each.indexer, at.model, at.workload
        if each.ratio:
            inner = each.head_dim + (0 if index is None else index.dim)
            width = each.branches * inner
            own.append(head_launch(model, "compressor", "qkv", at.rows, width, model.hidden, number))
        if index is not None:
            width = index.heads * index.dim
            own.append(linear_launch(model, "index_q_proj", "qkv", at.rows, width, mixer.q_rank, number))
            keys = np.asarray(workload.kv_len, dtype=np.float64) / each.ratio
            own += indexer_launches(at, number, index.heads, index.dim, keys, "fp8")
        kind: SparseKind = "hca" if index is None else "csa"
        if _is_measured(each, kind):
            index_heads = 0 if index is None else index.heads
            own = _module(
                at, kind, number, own, heads=each.heads, q_rank=each.q_rank, index_heads=index_heads
            )
        launches += own
    return launches


def _is_measured(mixer: Compressed, kind: SparseKind) -> bool:
    """Whether its sizes are those of a module that was measured."""
    choice, index = CHOICES[kind], mixer.indexer
    sizes = (mixer.head_dim, mixer.o_rank, mixer.size, mixer.ratio)
    if sizes != (HEADS[kind], OUT_RANK, choice.window, choice.ratio):
        return False
    return index is None or (index.dim, index.topk) == (HEADS["index"], choice.topk)


def _compressed_projections(mixer: Compressed, at: Mixing[Compressed], count: int) -> list[Launch]:
    model, m, hidden = at.model, at.rows, at.model.hidden
    width = mixer.heads * mixer.head_dim
    group = width // mixer.o_groups
    return [
        linear_launch(model, "q_a_kv_proj", "qkv", m, mixer.q_rank + mixer.head_dim, hidden, count),
        linear_launch(model, "q_b_proj", "qkv", m, width, mixer.q_rank, count),
        linear_launch(at.output_model, "o_a_proj", "o_proj", m, mixer.o_groups * mixer.o_rank, group, count),
        linear_launch(at.output_model, "o_b_proj", "o_proj", m, hidden, mixer.o_groups * mixer.o_rank, count),
        elementwise_launch(model, "rope", "rope", "norm_rope", m, (mixer.heads + 1) * mixer.rope_dim, count),
        elementwise_launch(model, "latent_norm", "rms_norm", "norm_rope", m, mixer.q_rank, count),
    ]


def _compressed_attention(mixer: Compressed, at: Mixing[Compressed], count: int) -> list[Launch]:
    workload = at.workload
    keys = np.asarray(workload.kv_len, dtype=np.float64)
    plain = mixer.head_dim - mixer.rope_dim
    kernel: Operator = _latent_attention(mixer, at, plain, plain, mixer.head_dim)
    queries = np.asarray(workload.query_tokens, dtype=np.float64)
    if workload.phase == "prefill":
        # the mean key count of a prompt's queries, as a causal square of as many pairs
        kernel = chosen(kernel, keys, float(np.max(mixer.keys(keys))), prompt=True)
    else:
        kernel = kernel.with_columns(kv_len=np.minimum(keys, mixer.keys(keys) + queries))
    return [Launch(operator=kernel, part="attention", count=count)]
