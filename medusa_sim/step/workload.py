"""Model and workload -> the kernels that one step launches.

One set of formulas serves the three phases of the Medusa paper's Table 5: prefill
(`query_tokens = seq_len`), decode (`query_tokens = 1`) and verification, the paper's parallel
decoding (`query_tokens = candidates`, root included).

`scope="block"` is the paper's simplified block (Q, K, V, QK^T, PV, up, gate, down), once.
`scope="model"` is what an engine runs: every layer with norms, rope, output projection, residuals
and activation, then the LM head and the choice of the next token.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np

from medusa_sim.operators.operator import (
    Attention,
    AttentionKind,
    Elementwise,
    ElementwiseKind,
    Gemm,
    Operator,
    Size,
)
from medusa_sim.specs.engine import Engine
from medusa_sim.specs.model import Model
from medusa_sim.specs.runtime import Runtime

Phase = Literal["prefill", "decode", "verify"]
Scope = Literal["block", "model"]
SCOPES: tuple[Scope, ...] = ("model", "block")
Part = Literal["qkv", "attention", "o_proj", "mlp", "norm_rope", "embedding", "lm_head", "drafter", "accept"]
PARTS: tuple[Part, ...] = (
    "qkv",
    "attention",
    "o_proj",
    "mlp",
    "norm_rope",
    "embedding",
    "lm_head",
    "drafter",
    "accept",
)
"""The slices of a step that reports show, in the order in which they stack."""

_FUSED_KIND: dict[Phase, AttentionKind] = {
    "prefill": "prefill_attention",
    "decode": "decode_attention",
    "verify": "verify_attention",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """What one step processes: `query_tokens` new tokens in each of `batch` sequences.

    seq_len: committed tokens before the step (the papers' s); in prefill the prompt itself. padded_rows: rows
    of the linear layers where an engine runs them at a captured size. All broadcast against each other.
    """

    phase: Phase
    batch: Size
    seq_len: Size
    query_tokens: Size
    padded_rows: Size | None = None

    @property
    def tokens(self) -> Size:
        """New tokens: m = batch x query_tokens."""
        rows: Size = np.asarray(self.batch) * np.asarray(self.query_tokens)
        return rows

    @property
    def rows(self) -> Size:
        """Rows of every linear layer: the tokens, with those that fill a captured size."""
        return self.tokens if self.padded_rows is None else self.padded_rows

    @property
    def kv_len(self) -> Size:
        """Keys that a fused kernel attends to, the new tokens included."""
        if self.phase == "prefill":
            return self.seq_len
        keys: Size = np.asarray(self.seq_len) + np.asarray(self.query_tokens)
        return keys


def prefill(batch: Size, seq_len: Size) -> Workload:
    """The whole prompt at once."""
    return Workload(phase="prefill", batch=batch, seq_len=seq_len, query_tokens=seq_len)


def decode(batch: Size, seq_len: Size) -> Workload:
    """One new token for each sequence."""
    return Workload(phase="decode", batch=batch, seq_len=seq_len, query_tokens=1)


def verify(batch: Size, seq_len: Size, candidates: Size) -> Workload:
    """`candidates` tree nodes (root included) for each sequence; 1 is plain decoding."""
    return Workload(phase="verify", batch=batch, seq_len=seq_len, query_tokens=candidates)


@dataclass(frozen=True, slots=True, kw_only=True)
class Launch:
    """An operator, how many times a step launches it, and which slice of the step it belongs to.

    share: of its time as a kernel of its own, where an engine fuses it with others.
    """

    operator: Operator
    part: Part
    count: int = 1
    share: float = 1.0


def linear_launch(model: Model, name: str, part: Part, m: Size, n: int, k: int, count: int = 1) -> Launch:
    """A linear layer of m tokens, n outputs and k inputs in the model's dtypes."""
    gemm = Gemm(name=name, m=m, n=n, k=k, dtype=model.dtype, weight_dtype=model.weight_dtype)
    return Launch(operator=gemm, part=part, count=count)


def head_launch(model: Model, name: str, part: Part, m: Size, n: int, k: int, count: int = 1) -> Launch:
    """A linear layer outside the decoder layers: LM head, Medusa head. Never quantised."""
    dtype = model.activation_dtype
    return Launch(operator=Gemm(name=name, m=m, n=n, k=k, dtype=dtype), part=part, count=count)


def elementwise_launch(
    model: Model, name: str, kind: ElementwiseKind, part: Part, m: Size, n: int, count: int = 1
) -> Launch:
    """A norm, rope, activation, residual or copy over m rows of width n."""
    dtype = model.activation_dtype
    return Launch(operator=Elementwise(name=name, kind=kind, m=m, n=n, dtype=dtype), part=part, count=count)


def _attention(model: Model, kind: AttentionKind, workload: Workload, kv_len: Size) -> Attention:
    return Attention(
        name=kind,
        kind=kind,
        batch=workload.batch,
        q_len=workload.query_tokens,
        kv_len=kv_len,
        heads=model.heads,
        kv_heads=model.kv_heads,
        head_dim=model.head_dim,
        dtype=model.activation_dtype,
        kv_dtype=model.kv_dtype,
    )


def _projections(model: Model, runtime: Runtime, m: Size, count: int) -> list[Launch]:
    query_width = model.heads * model.head_dim
    kv_width = model.kv_heads * model.head_dim
    if runtime.fused_qkv:
        return [linear_launch(model, "qkv_proj", "qkv", m, query_width + 2 * kv_width, model.hidden, count)]
    return [
        linear_launch(model, "q_proj", "qkv", m, query_width, model.hidden, count),
        linear_launch(model, "k_proj", "qkv", m, kv_width, model.hidden, count),
        linear_launch(model, "v_proj", "qkv", m, kv_width, model.hidden, count),
    ]


def _mlp(model: Model, runtime: Runtime, m: Size, count: int) -> list[Launch]:
    up = [linear_launch(model, "up_proj", "mlp", m, model.intermediate, model.hidden, count)]
    if model.gated and runtime.fused_gate_up:
        up = [linear_launch(model, "gate_up_proj", "mlp", m, 2 * model.intermediate, model.hidden, count)]
    elif model.gated:
        up.append(linear_launch(model, "gate_proj", "mlp", m, model.intermediate, model.hidden, count))
    return [*up, linear_launch(model, "down_proj", "mlp", m, model.hidden, model.intermediate, count)]


def block_launches(model: Model, workload: Workload, runtime: Runtime) -> tuple[Launch, ...]:
    """The paper's simplified block (appendix G.3): linear layers and attention products, once.

    Unfused products use s keys, as Table 5 does; a fused kernel attends to s + q.
    """
    return (
        *_projections(model, runtime, workload.tokens, 1),
        *_attention_launches(model, workload, runtime, unfused_keys=workload.seq_len, count=1),
        *_mlp(model, runtime, workload.tokens, 1),
    )


def _attention_launches(
    model: Model, workload: Workload, runtime: Runtime, unfused_keys: Size, count: int
) -> list[Launch]:
    if runtime.attention == "fused":
        kernel = _attention(model, _FUSED_KIND[workload.phase], workload, workload.kv_len)
        return [Launch(operator=kernel, part="attention", count=count)]
    products: tuple[AttentionKind, ...] = ("qk", "pv")
    return [
        Launch(operator=_attention(model, kind, workload, unfused_keys), part="attention", count=count)
        for kind in products
    ]


def model_launches(model: Model, workload: Workload, runtime: Runtime) -> tuple[Launch, ...]:
    """Everything an engine launches to turn token ids into next-token choices, drafting apart.

    The LM head and the choice run on the last token of a prompt, and on every candidate of a
    verification step. A serving engine adds residuals inside the norms and merges other small kernels.
    """
    m = workload.rows
    layers, hidden = model.layers, model.hidden
    norms = model.norms_per_layer * layers
    query_width = model.heads * model.head_dim
    rotated = query_width + model.kv_heads * model.head_dim
    launches = [
        elementwise_launch(model, "embedding", "embedding", "embedding", m, hidden),
        elementwise_launch(model, "norms", "rms_norm", "norm_rope", m, hidden, norms),
        *_projections(model, runtime, m, layers),
        *_attention_launches(model, workload, runtime, unfused_keys=workload.kv_len, count=layers),
        linear_launch(model, "o_proj", "o_proj", m, hidden, query_width, layers),
        elementwise_launch(model, "residuals", "residual", "norm_rope", m, hidden, 2 * layers),
        *_mlp(model, runtime, m, layers),
        elementwise_launch(model, "activation", "activation", "mlp", m, model.intermediate, layers),
        elementwise_launch(model, "final_norm", "rms_norm", "norm_rope", m, hidden),
    ]
    if model.rope:
        launches.append(elementwise_launch(model, "rope", "rope", "norm_rope", m, rotated, layers))
    if model.qk_norm:
        rows = np.asarray(m) * (model.heads + model.kv_heads)
        launches.append(
            elementwise_launch(model, "qk_norm", "rms_norm", "norm_rope", rows, model.head_dim, layers)
        )
    if runtime.attention == "unfused":
        scores = np.asarray(m) * model.heads
        softmax = Elementwise(
            name="softmax", kind="rms_norm", m=scores, n=workload.kv_len, dtype=model.activation_dtype
        )
        launches.append(Launch(operator=softmax, part="attention", count=layers))
    logit_rows = workload.batch if workload.phase == "prefill" else workload.tokens
    launches += [
        head_launch(model, "lm_head", "lm_head", logit_rows, model.vocab, hidden),
        elementwise_launch(model, "next_token", "next_token", "accept", logit_rows, model.vocab),
    ]
    return tuple(launches) if runtime.engine is None else _merged(launches, runtime.engine)


_MERGED = ("norms", "final_norm", "qk_norm", "rope", "activation")
"""Operators that a compiler merges with their neighbours."""


def _merged(launches: Iterable[Launch], engine: Engine) -> tuple[Launch, ...]:
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


def acceptance_launches(model: Model, workload: Workload, depth: int) -> tuple[Launch, ...]:
    """Tree bookkeeping, acceptance and cache compaction after the LM head.

    Gathering the candidates, comparing them with the target's choice, the running product along the
    paths and the best path are four kernels over the candidates; compaction copies the KV rows of at
    most depth + 1 accepted tokens of every layer.
    """
    kv_width = 2 * model.kv_heads * model.head_dim
    moved = np.asarray(workload.batch) * ((depth + 1) * model.layers)
    return (
        elementwise_launch(model, "tree_bookkeeping", "residual", "accept", workload.tokens, depth + 1, 4),
        elementwise_launch(model, "cache_compaction", "embedding", "accept", moved, kv_width),
    )
