"""Latent attention, and that to chosen or compressed keys -> kernels: what chooses, what is attended to.

    (K5)  indexer    keys of all tokens once a request, 2 n_I d_I FLOPs a pair, a choice over s scores
    (K6)  attention  min(s, k) keys a query; beyond k each query reads its own choice
    (K7)  V4         the last tokens, and chosen or all compressed ones

A layer's projections, indexer, choice and attention are one module of `operators.sparse`, fitted for some
cards and engines. Elsewhere, and for sizes that nobody measured, the indexer is priced as an attention
product of as many bytes and FLOPs, the choice as a pass over its scores.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from medusa_sim.arrays import FloatArray, as_float
from medusa_sim.operators.latent import LatentAttention
from medusa_sim.operators.operator import GENERATION, VERIFY, Attention, Elementwise, Operator, Size
from medusa_sim.operators.sparse import CHOICES, DSA_SIZES, HEADS, OUT_RANK, Sparse, SparseKind
from medusa_sim.specs.mixers import Latent, Mixer
from medusa_sim.specs.sparse import BlockSparse, Compressed
from medusa_sim.step.attention import FUSED_KIND, KERNEL_PHASE, Mixing, grouped_launches
from medusa_sim.step.workload import Launch
from medusa_sim.units import Format


def chosen(operator: Operator, keys: FloatArray, reach: float, *, prompt: bool) -> Operator:
    """The kernel with at most `reach` keys a query; past it each query of a request has its own.

    A prompt is cut into blocks of `reach` queries over 1.5 times as many keys, as a window is.
    """
    queries, batch = (as_float(operator.sizes[name]) for name in ("q_len", "batch"))
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


def _module(at: Mixing[Mixer], kind: SparseKind, composed: list[Launch], **sizes: int) -> list[Launch]:
    """A layer's module, and what it is composed of where nobody fitted one.

    Kernels of DeepSeek-V3.2 and MiniMax-M3 verify as they decode; V4's have rows of their own.
    """
    phase = KERNEL_PHASE[at.workload.phase]
    if phase == VERIFY and kind not in ("csa", "hca"):
        phase = GENERATION
    kernel = at.attention(
        Sparse,
        f"{kind}_module",
        kind=kind,
        q_len=as_float(at.workload.query_tokens),
        prefix=at.prefix,
        hidden=at.model.hidden,
        kv_dtype=at.model.kv_dtype,
        gemm_dtype=Format(at.model.dtype, at.model.weight_dtype).key,
        phase=phase,
        **sizes,
    )
    return [replace(kernel, composed=tuple(composed))]


def indexer_launches(at: Mixing[Mixer], heads: int, dim: int, keys: Size, kv_dtype: str) -> list[Launch]:
    """Scores of all keys for every query, and the choice among them."""
    workload, dtype = at.workload, at.model.activation_dtype
    scores = at.attention(
        Attention,
        "indexer",
        kind=FUSED_KIND[workload.phase],
        kv_len=np.maximum(keys, workload.query_tokens),
        heads=heads,
        kv_heads=1,
        head_dim=dim / 2,  # one product instead of two: half of the bytes and FLOPs of attention
        kv_dtype=kv_dtype,
    )
    rows = np.asarray(workload.batch) * np.asarray(workload.query_tokens)
    choice = Elementwise(name="choice", kind="rms_norm", m=rows, n=keys, dtype=dtype)
    return [scores, replace(scores, operator=choice)]


def latent_launches(mixer: Latent, at: Mixing[Latent]) -> list[Launch]:
    """Compression (held whole by every GPU), queries, the up-projections of K and V, attention and output.

    A decode or verification step multiplies queries and results with the up-projections instead of the cache
    ("absorption", arXiv 2405.04434, section 2.1.2); those products stay in the activations' dtype.
    """
    hidden, heads = at.model.hidden, mixer.heads
    values = heads * mixer.v_dim
    launches = [
        at.linear("qkv_a_proj", "qkv", mixer.down_width, hidden),
        at.linear("q_b_proj", "qkv", heads * mixer.qk_dim, mixer.q_rank or hidden),
    ]
    if at.is_prompt:
        width = heads * (mixer.nope_dim + mixer.v_dim)
        launches.append(at.linear("kv_b_proj", "qkv", width, mixer.kv_rank))
    else:
        launches += [
            at.unquantised("k_absorb", heads * mixer.kv_rank, mixer.nope_dim),
            at.unquantised("v_absorb", values, mixer.kv_rank),
        ]
    sizes = {"latent_dim": mixer.kv_rank, "nope_dim": mixer.nope_dim, "v_dim": mixer.v_dim}
    launches += [_latent_attention(mixer, at, **sizes), at.output("o_proj", hidden, values)]
    if mixer.gate:
        launches += [
            at.linear("gate_proj", "qkv", values, hidden),
            at.passed("gate", "activation", values),
        ]
    if at.model.rope and mixer.rotates:
        launches.append(at.passed("rope", "rope", (heads + 1) * mixer.rope_dim))
    return [*launches, at.passed("latent_norm", "rms_norm", mixer.norm_count)]


def _latent_attention(mixer: Latent | Compressed, at: Mixing[Any], **sizes: int) -> Launch:
    """The step's attention of all heads to one latent key each."""
    kind = "mla_prefill" if at.is_prompt else "mla_decode"
    own = {"kv_len": at.workload.kv_len, "heads": mixer.heads, "rope_dim": mixer.rope_dim}
    return at.attention(LatentAttention, kind, kind=kind, kv_dtype=at.model.kv_dtype, **own, **sizes)


def sparse_latent_launches(mixer: Latent, at: Mixing[Latent]) -> list[Launch]:
    """Latent attention; with an indexer to what it chooses."""
    launches, index = latent_launches(mixer, at), mixer.indexer
    if index is None:
        return launches
    launches = [
        replace(each, operator=chosen(each.operator, at.keys, index.topk, prompt=at.is_prompt))
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
        return _module(at, "dsa_no_indexer", launches, **heads, index_heads=0) if is_module else launches
    hidden = at.model.hidden
    launches += [
        at.linear("index_q_proj", "qkv", index.heads * index.dim, mixer.q_rank or hidden),
        at.unquantised("index_k_proj", index.dim + index.heads, hidden),
        *indexer_launches(at, index.heads, index.dim, at.workload.kv_len, "fp8"),
    ]
    return _module(at, "dsa", launches, **heads, index_heads=index.heads) if is_module else launches


def block_sparse_launches(mixer: BlockSparse, at: Mixing[BlockSparse]) -> list[Launch]:
    """Grouped attention to chosen blocks; index queries and key come out of the fused projection."""
    launches = [
        replace(each, operator=chosen(each.operator, at.keys, mixer.reach, prompt=at.is_prompt))
        if isinstance(each.operator, Attention) and each.operator.is_fused
        else each
        for each in grouped_launches(mixer, at)
    ]
    dtype = at.model.activation_dtype
    launches += [
        at.unquantised("index_proj", mixer.index_width, at.model.hidden),
        *indexer_launches(at, mixer.index_heads, mixer.index_dim, at.workload.kv_len, dtype),
    ]
    sizes = (mixer.head_dim, mixer.index_dim, mixer.reach)
    if sizes != (HEADS["msa"], HEADS["index"], CHOICES["msa"].topk):
        return launches
    return _module(at, "msa", launches, heads=mixer.heads, q_rank=0, index_heads=mixer.index_heads)


def compressed_launches(mixer: Compressed, at: Mixing[Compressed]) -> list[Launch]:
    """DeepSeek-V4: low-rank projections, the compressor, attention to the window and compressed keys."""
    variants = ((each, replace(at, variants=((number, each),))) for number, each in at.variants)
    return [launch for each, own in variants for launch in _compressed(each, own)]


def _compressed(mixer: Compressed, at: Mixing[Compressed]) -> list[Launch]:
    """Layers that are alike in their window and ratio too."""
    hidden, index = at.model.hidden, mixer.indexer
    width, out = mixer.heads * mixer.head_dim, mixer.o_groups * mixer.o_rank
    launches = [
        at.linear("q_a_kv_proj", "qkv", mixer.q_rank + mixer.head_dim, hidden),
        at.linear("q_b_proj", "qkv", width, mixer.q_rank),
        at.output("o_a_proj", out, width // mixer.o_groups),
        at.output("o_b_proj", hidden, out),
        at.passed("rope", "rope", (mixer.heads + 1) * mixer.rope_dim),
        at.passed("latent_norm", "rms_norm", mixer.q_rank),
        _compressed_attention(mixer, at),
    ]
    if mixer.ratio:
        inner = mixer.head_dim + (0 if index is None else index.dim)
        launches.append(at.unquantised("compressor", mixer.branches * inner, hidden))
    if index is not None:
        launches += [
            at.linear("index_q_proj", "qkv", index.heads * index.dim, mixer.q_rank),
            *indexer_launches(at, index.heads, index.dim, at.keys / mixer.ratio, "fp8"),
        ]
    kind: SparseKind = "hca" if index is None else "csa"
    if not _is_measured(mixer, kind):
        return launches
    index_heads = 0 if index is None else index.heads
    return _module(at, kind, launches, heads=mixer.heads, q_rank=mixer.q_rank, index_heads=index_heads)


def _is_measured(mixer: Compressed, kind: SparseKind) -> bool:
    """Whether its sizes are those of a module that was measured."""
    choice, index = CHOICES[kind], mixer.indexer
    sizes = (mixer.head_dim, mixer.o_rank, mixer.size, mixer.ratio)
    if sizes != (HEADS[kind], OUT_RANK, choice.window, choice.ratio):
        return False
    return index is None or (index.dim, index.topk) == (HEADS["index"], choice.topk)


def _compressed_attention(mixer: Compressed, at: Mixing[Compressed]) -> Launch:
    plain, keys = mixer.head_dim - mixer.rope_dim, at.keys
    launch = _latent_attention(mixer, at, latent_dim=plain, nope_dim=plain, v_dim=mixer.head_dim)
    if at.is_prompt:
        # the mean key count of a prompt's queries, as a causal square of as many pairs
        kernel = chosen(launch.operator, keys, float(np.max(mixer.keys(keys))), prompt=True)
    else:
        queries = as_float(at.workload.query_tokens)
        kernel = launch.operator.with_columns(kv_len=np.minimum(keys, mixer.keys(keys) + queries))
    return replace(launch, operator=kernel)
