"""Attention to chosen or compressed keys -> kernels: what chooses, what is attended to.

    (K5)  indexer    keys of all tokens once a request, 2 n_I d_I FLOPs a pair, a choice over s scores
    (K6)  attention  min(s, k) keys a query; beyond k each query reads its own choice
    (K7)  V4         the last tokens, and chosen or all compressed ones

The indexer is priced as an attention product of as many bytes and FLOPs, the choice as a pass over its
scores. Public rows of whole modules agree with the slope: 50 to 54 us for a million keys, H100, vLLM.
"""

from __future__ import annotations

import numpy as np

from medusa_sim.arrays import FloatArray
from medusa_sim.operators.latent import LatentAttention, LatentKind
from medusa_sim.operators.operator import Attention, AttentionKind, Elementwise, Operator, Size
from medusa_sim.specs.mixers import Latent, Mixer
from medusa_sim.specs.sparse import BlockSparse, Compressed
from medusa_sim.step.attention import FUSED_KIND, grouped_launches, latent_launches
from medusa_sim.step.workload import Launch, Mixing, elementwise_launch, head_launch, linear_launch


def chosen(operator: Operator, keys: FloatArray, reach: float, *, prompt: bool) -> Operator:
    """The kernel with at most `reach` keys a query; past it each query of a request has its own.

    A prompt is cut into blocks of `reach` queries over 1.5 times as many keys, as a window is.
    """
    sizes = operator.columns
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
    if index.reuses:
        return launches
    model, m, inputs = at.model, at.rows, mixer.q_rank or at.model.hidden
    return [
        *launches,
        linear_launch(model, "index_q_proj", "qkv", m, index.heads * index.dim, inputs, at.count),
        head_launch(model, "index_k_proj", "qkv", m, index.dim + index.heads, model.hidden, at.count),
        *indexer_launches(at, at.count, index.heads, index.dim, at.workload.kv_len, "fp8"),
    ]


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
    return [*launches, index, *scores]


def compressed_launches(mixer: Compressed, at: Mixing[Compressed]) -> list[Launch]:
    """DeepSeek-V4: low-rank projections, the compressor, attention to the window and compressed keys."""
    model, m, count, hidden = at.model, at.rows, at.count, at.model.hidden
    width, workload = mixer.heads * mixer.head_dim, at.workload
    group = width // mixer.o_groups
    launches = [
        linear_launch(model, "q_a_kv_proj", "qkv", m, mixer.q_rank + mixer.head_dim, hidden, count),
        linear_launch(model, "q_b_proj", "qkv", m, width, mixer.q_rank, count),
        linear_launch(at.output_model, "o_a_proj", "o_proj", m, mixer.o_groups * mixer.o_rank, group, count),
        linear_launch(at.output_model, "o_b_proj", "o_proj", m, hidden, mixer.o_groups * mixer.o_rank, count),
        elementwise_launch(model, "rope", "rope", "norm_rope", m, (mixer.heads + 1) * mixer.rope_dim, count),
        elementwise_launch(model, "latent_norm", "rms_norm", "norm_rope", m, mixer.q_rank, count),
    ]
    for number, each in at.variants:
        launches += _compressed_attention(each, at, number)
        index = each.indexer
        if each.ratio:
            inner = each.head_dim + (0 if index is None else index.dim)
            launches.append(head_launch(model, "compressor", "qkv", m, each.branches * inner, hidden, number))
        if index is not None:
            launches.append(
                linear_launch(model, "index_q_proj", "qkv", m, index.heads * index.dim, mixer.q_rank, number)
            )
            keys = np.asarray(workload.kv_len, dtype=np.float64) / each.ratio
            launches += indexer_launches(at, number, index.heads, index.dim, keys, "fp8")
    return launches


def _compressed_attention(mixer: Compressed, at: Mixing[Compressed], count: int) -> list[Launch]:
    workload = at.workload
    kind: LatentKind = "mla_prefill" if workload.phase == "prefill" else "mla_decode"
    keys = np.asarray(workload.kv_len, dtype=np.float64)
    kernel: Operator = LatentAttention(
        name=kind,
        kind=kind,
        batch=workload.batch,
        q_len=workload.query_tokens,
        kv_len=workload.kv_len,
        heads=mixer.heads,
        latent_dim=mixer.head_dim - mixer.rope_dim,
        rope_dim=mixer.rope_dim,
        nope_dim=mixer.head_dim - mixer.rope_dim,
        v_dim=mixer.head_dim,
        dtype=at.model.activation_dtype,
        kv_dtype=at.model.kv_dtype,
    )
    queries = np.asarray(workload.query_tokens, dtype=np.float64)
    if workload.phase == "prefill":
        # the mean key count of a prompt's queries, as a causal square of as many pairs
        kernel = chosen(kernel, keys, float(np.max(mixer.keys(keys))), prompt=True)
    else:
        kernel = kernel.with_columns(kv_len=np.minimum(keys, mixer.keys(keys) + queries))
    return [Launch(operator=kernel, part="attention", count=count)]
