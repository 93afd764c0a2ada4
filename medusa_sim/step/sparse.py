"""Attention to chosen or compressed keys -> kernels: what chooses, what is attended to.

    (K5)  indexer    keys of all tokens once a request, 2 n_I d_I FLOPs a pair, a choice over s scores
    (K6)  attention  min(s, k) keys a query; beyond k each query reads its own choice
    (K7)  V4         the last tokens, and chosen or all compressed ones

A layer's projections, indexer, choice and attention are one module of `operators.sparse`, fitted for some
GPUs and engines. Elsewhere, and for sizes that nobody measured, the indexer is priced as an attention
product of as many bytes and FLOPs, the choice as a pass over its scores.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from medusa_sim.arrays import FloatArray, as_float
from medusa_sim.models.mixers import Latent, Mixer
from medusa_sim.models.sparse import BlockSparse, Compressed
from medusa_sim.operators.attention import Attention
from medusa_sim.operators.elementwise import Elementwise
from medusa_sim.operators.latent import LatentAttention
from medusa_sim.operators.operator import GENERATION, VERIFY, Operator, Size
from medusa_sim.operators.sparse import Sparse
from medusa_sim.operators.sparse_sizes import DSA_SIZES, HEAD_DIMS, KEY_CHOICES, OUT_RANK, SparseKind
from medusa_sim.step.attention import grouped_launches
from medusa_sim.step.latent import latent_attention, latent_launches
from medusa_sim.step.launch import Launch
from medusa_sim.step.mixer_layers import FUSED_KIND, KERNEL_PHASE, MixerLayers
from medusa_sim.units import Format


def reading_at_most(operator: Operator, keys: FloatArray, reach: float, *, prompt: bool) -> Operator:
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


def _module(
    layers: MixerLayers[Mixer], kind: SparseKind, composed: list[Launch], **sizes: int
) -> list[Launch]:
    """A layer's module, and what it is composed of where nobody fitted one.

    Kernels of DeepSeek-V3.2 and MiniMax-M3 verify as they decode; V4's have rows of their own.
    """
    phase = KERNEL_PHASE[layers.workload.phase]
    if phase == VERIFY and kind not in ("csa", "hca"):
        phase = GENERATION
    kernel = layers.attention(
        Sparse,
        f"{kind}_module",
        kind=kind,
        q_len=as_float(layers.workload.query_tokens),
        prefix=layers.prefix,
        hidden=layers.model.hidden,
        kv_dtype=layers.model.kv_dtype,
        gemm_dtype=Format(layers.model.dtype, layers.model.weight_dtype).key,
        phase=phase,
        **sizes,
    )
    return [replace(kernel, composed=tuple(composed))]


def indexer_launches(
    layers: MixerLayers[Mixer], heads: int, dim: int, keys: Size, kv_dtype: str
) -> list[Launch]:
    """Scores of all keys for every query, and the choice among them."""
    workload, dtype = layers.workload, layers.model.activation_dtype
    scores = layers.attention(
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


def sparse_latent_launches(mixer: Latent, layers: MixerLayers[Latent]) -> list[Launch]:
    """Latent attention; with an indexer to what it chooses."""
    launches, index = latent_launches(mixer, layers), mixer.indexer
    if index is None:
        return launches
    launches = [
        replace(
            launch,
            operator=reading_at_most(launch.operator, layers.keys, index.topk, prompt=layers.is_prompt),
        )
        if isinstance(launch.operator, LatentAttention)
        else launch
        for launch in launches
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
        return _module(layers, "dsa_no_indexer", launches, **heads, index_heads=0) if is_module else launches
    hidden = layers.model.hidden
    launches += [
        layers.linear("index_q_proj", "qkv", index.heads * index.dim, mixer.q_rank or hidden),
        layers.unquantised_linear("index_k_proj", index.dim + index.heads, hidden),
        *indexer_launches(layers, index.heads, index.dim, layers.workload.kv_len, "fp8"),
    ]
    return _module(layers, "dsa", launches, **heads, index_heads=index.heads) if is_module else launches


def block_sparse_launches(mixer: BlockSparse, layers: MixerLayers[BlockSparse]) -> list[Launch]:
    """Grouped attention to chosen blocks; index queries and key come out of the fused projection."""
    launches = [
        replace(
            launch,
            operator=reading_at_most(launch.operator, layers.keys, mixer.reach, prompt=layers.is_prompt),
        )
        if isinstance(launch.operator, Attention) and launch.operator.is_fused
        else launch
        for launch in grouped_launches(mixer, layers)
    ]
    dtype = layers.model.activation_dtype
    launches += [
        layers.unquantised_linear("index_proj", mixer.index_width, layers.model.hidden),
        *indexer_launches(layers, mixer.index_heads, mixer.index_dim, layers.workload.kv_len, dtype),
    ]
    sizes = (mixer.head_dim, mixer.index_dim, mixer.reach)
    if sizes != (HEAD_DIMS["msa"], HEAD_DIMS["index"], KEY_CHOICES["msa"].topk):
        return launches
    return _module(layers, "msa", launches, heads=mixer.heads, q_rank=0, index_heads=mixer.index_heads)


def compressed_launches(mixer: Compressed, layers: MixerLayers[Compressed]) -> list[Launch]:
    """DeepSeek-V4: low-rank projections, the compressor, attention to the window and compressed keys."""
    return [
        launch
        for count, variant in layers.variants
        for launch in _compressed(variant, replace(layers, variants=((count, variant),)))
    ]


def _compressed(mixer: Compressed, layers: MixerLayers[Compressed]) -> list[Launch]:
    """Layers that are alike in their window and ratio too."""
    hidden, index = layers.model.hidden, mixer.indexer
    width, out = mixer.heads * mixer.head_dim, mixer.o_groups * mixer.o_rank
    launches = [
        layers.linear("q_a_kv_proj", "qkv", mixer.q_rank + mixer.head_dim, hidden),
        layers.linear("q_b_proj", "qkv", width, mixer.q_rank),
        layers.output_linear("o_a_proj", out, width // mixer.o_groups),
        layers.output_linear("o_b_proj", hidden, out),
        layers.elementwise("rope", "rope", (mixer.heads + 1) * mixer.rope_dim),
        layers.elementwise("latent_norm", "rms_norm", mixer.q_rank),
        _compressed_attention(mixer, layers),
    ]
    if mixer.ratio:
        inner = mixer.head_dim + (0 if index is None else index.dim)
        launches.append(layers.unquantised_linear("compressor", mixer.branches * inner, hidden))
    if index is not None:
        launches += [
            layers.linear("index_q_proj", "qkv", index.heads * index.dim, mixer.q_rank),
            *indexer_launches(layers, index.heads, index.dim, layers.keys / mixer.ratio, "fp8"),
        ]
    kind: SparseKind = "hca" if index is None else "csa"
    if not _is_measured(mixer, kind):
        return launches
    index_heads = 0 if index is None else index.heads
    return _module(layers, kind, launches, heads=mixer.heads, q_rank=mixer.q_rank, index_heads=index_heads)


def _is_measured(mixer: Compressed, kind: SparseKind) -> bool:
    """Whether its sizes are those of a module that was measured."""
    choice, index = KEY_CHOICES[kind], mixer.indexer
    sizes = (mixer.head_dim, mixer.o_rank, mixer.size, mixer.ratio)
    if sizes != (HEAD_DIMS[kind], OUT_RANK, choice.window, choice.ratio):
        return False
    return index is None or (index.dim, index.topk) == (HEAD_DIMS["index"], choice.topk)


def _compressed_attention(mixer: Compressed, layers: MixerLayers[Compressed]) -> Launch:
    plain, keys = mixer.head_dim - mixer.rope_dim, layers.keys
    launch = latent_attention(mixer, layers, latent_dim=plain, nope_dim=plain, v_dim=mixer.head_dim)
    if layers.is_prompt:
        # the mean key count of a prompt's queries, as a causal square of as many pairs
        kernel = reading_at_most(launch.operator, keys, float(np.max(mixer.keys(keys))), prompt=True)
    else:
        queries = as_float(layers.workload.query_tokens)
        kernel = launch.operator.with_columns(kv_len=np.minimum(keys, mixer.keys(keys) + queries))
    return replace(launch, operator=kernel)
