"""Grouped and windowed attention -> kernels: projections, rotation, the products."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Generic, TypeVar

import numpy as np

from medusa_sim.arrays import FloatArray, as_float
from medusa_sim.operators.operator import (
    CONTEXT,
    GENERATION,
    VERIFY,
    Attention,
    AttentionKind,
    Elementwise,
    ElementwiseKind,
    Operator,
    Size,
)
from medusa_sim.operators.window import WindowAttention
from medusa_sim.specs.mixers import Grouped, Mixer
from medusa_sim.specs.model import Model
from medusa_sim.specs.runtime import Runtime
from medusa_sim.step.workload import (
    Launch,
    Part,
    Phase,
    Workload,
    elementwise_launch,
    head_launch,
    linear_launch,
)

FUSED_KIND: dict[Phase, AttentionKind] = {
    "prefill": "prefill_attention",
    "decode": "decode_attention",
    "verify": "verify_attention",
}

_NARROW = 512
"""Tokens of a window up to which its own kernels are asked. In a wide one the plain kernels are nearer to
engines: Gemma-3-27B's plain steps (window 1024) err 1.6 % with them and 2.4 % with those of windows.
"""
KERNEL_PHASE: dict[Phase, str] = {"prefill": CONTEXT, "decode": GENERATION, "verify": VERIFY}


MixerT_co = TypeVar("MixerT_co", bound=Mixer, covariant=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class Mixing(Generic[MixerT_co]):
    """Layers whose mixers are alike but for their windows."""

    model: Model
    """With the mixer's linear layers in their format."""
    variants: tuple[tuple[int, MixerT_co], ...]
    """(layers, mixer) of every window."""
    workload: Workload
    runtime: Runtime
    unfused_keys: Size
    """Keys of products that are no fused kernel."""

    @property
    def output_model(self) -> Model:
        """With the output projection in its format."""
        return self.model.in_form(self.variants[0][1].out_form)

    @property
    def count(self) -> int:
        """All of these layers."""
        return sum(count for count, _ in self.variants)

    @property
    def rows(self) -> Size:
        """Rows of their linear layers."""
        return self.workload.rows

    @property
    def keys(self) -> FloatArray:
        """Keys of a sequence, the new tokens included."""
        return as_float(self.workload.kv_len)

    @property
    def prefix(self) -> FloatArray:
        """Those before the new tokens."""
        return np.maximum(self.keys - as_float(self.workload.query_tokens), 0.0)

    @property
    def is_prompt(self) -> bool:
        """Whether a prompt is read."""
        return self.workload.phase == "prefill"

    def linear(self, name: str, part: Part, n: int, k: int) -> Launch:
        """A linear layer of every one of these, with n outputs and k inputs."""
        return linear_launch(self.model, name, part, self.rows, n, k, self.count)

    def output(self, name: str, n: int, k: int) -> Launch:
        """The same in the format of output projections."""
        return linear_launch(self.output_model, name, "o_proj", self.rows, n, k, self.count)

    def unquantised(self, name: str, n: int, k: int) -> Launch:
        """The same in the dtype of the activations, before attention."""
        return head_launch(self.model, name, "qkv", self.rows, n, k, self.count)

    def passed(
        self, name: str, kind: ElementwiseKind, n: int, part: Part = "norm_rope", rows: Size | None = None
    ) -> Launch:
        """A pass over rows (None: those of the linear layers) of width n."""
        m = self.rows if rows is None else rows
        return elementwise_launch(self.model, name, kind, part, m, n, self.count)

    def attention(self, made: Callable[..., Operator], name: str, **sizes: Any) -> Launch:
        """An operator of attention over the step's batch and queries, in the dtype of the activations."""
        of_step = {"batch": self.workload.batch, "q_len": self.workload.query_tokens}
        operator = made(name=name, dtype=self.model.activation_dtype, **{**of_step, **sizes})
        return Launch(operator=operator, part="attention", count=self.count)


def grouped_launches(mixer: Grouped, at: Mixing[Grouped]) -> list[Launch]:
    """Q, K and V, the products of windowed and other layers, output, rotation and norms."""
    hidden, query, kv = at.model.hidden, mixer.query_width, mixer.kv_width
    if at.runtime.fused_qkv:
        launches = [at.linear("qkv_proj", "qkv", mixer.input_width, hidden)]
    else:
        launches = [
            at.linear("q_proj", "qkv", query + mixer.gate_width, hidden),
            at.linear("k_proj", "qkv", kv, hidden),
        ]
        if not mixer.keys_are_values:
            launches.append(at.linear("v_proj", "qkv", mixer.value_width, hidden))
    if at.runtime.repeats_kv and mixer.heads != mixer.kv_heads:
        copied = np.asarray(at.workload.batch) * np.asarray(at.workload.kv_len)
        copy = elementwise_launch(
            at.model, "repeat_kv", "embedding", "attention", copied, query, 2 * at.count
        )
        launches.append(copy)
    launches += [*_products(mixer, at), at.output("o_proj", hidden, mixer.output_width)]
    if mixer.gate != "none":
        launches.append(at.passed("gate", "activation", mixer.output_width))
    if at.model.rope and mixer.rotates:
        launches.append(at.passed("rope", "rope", query + kv))
    if mixer.qk_norm:
        rows = np.asarray(at.rows) * (mixer.heads + mixer.kv_heads)
        launches.append(at.passed("qk_norm", "rms_norm", mixer.head_dim, rows=rows))
    return launches


def _products(mixer: Grouped, at: Mixing[Grouped]) -> list[Launch]:
    """QK^T, softmax and PV of every layer, fused or not; fused kernels of windowed layers read the window."""
    if at.runtime.attention != "fused":
        products: tuple[AttentionKind, ...] = ("qk", "pv")
        scores = np.asarray(at.rows) * mixer.heads
        softmax = Elementwise(
            name="softmax", kind="rms_norm", m=scores, n=at.workload.kv_len, dtype=at.model.activation_dtype
        )
        return [
            *(_attention(mixer, kind, at, kv_len=at.unfused_keys) for kind in products),
            Launch(operator=softmax, part="attention", count=at.count),
        ]
    # layers that see everything first
    variants = sorted(at.variants, key=lambda variant: variant[1].size is not None)
    return [_product(each, replace(at, variants=((count, each),))) for count, each in variants]


def _product(mixer: Grouped, at: Mixing[Grouped]) -> Launch:
    """Attention of a layer; in a narrow window a kernel of its own, where one is fitted for an engine."""
    kind = FUSED_KIND[at.workload.phase]
    plain = _attention(mixer, kind, at, **_in_window(mixer, at))
    if mixer.size is None or mixer.size > _NARROW or mixer.chunked or at.runtime.engine is None:
        return plain
    own = at.attention(
        WindowAttention,
        kind,
        q_len=as_float(at.workload.query_tokens),
        prefix=at.prefix,
        heads=mixer.heads,
        kv_heads=mixer.kv_heads,
        head_dim=mixer.head_dim,
        window=mixer.size,
        kv_dtype=at.model.kv_dtype,
        phase=KERNEL_PHASE[at.workload.phase],
    )
    return replace(own, composed=(plain,))


def _attention(mixer: Grouped, kind: AttentionKind, at: Mixing[Grouped], **sizes: Size) -> Launch:
    # one width for both products: that at which they are as large as they are
    width = mixer.head_dim if mixer.v_dim is None else (mixer.head_dim + mixer.v_dim) / 2
    own = {"kv_len": at.workload.kv_len, "heads": mixer.heads, "kv_heads": mixer.kv_heads, "head_dim": width}
    return at.attention(Attention, kind, kind=kind, kv_dtype=at.model.kv_dtype, **{**own, **sizes})


def _in_window(mixer: Grouped, at: Mixing[Grouped]) -> dict[str, Size]:
    """Sizes of a layer's kernel with fewer keys where it has a window.

    A prompt longer than the window w is s / w blocks of w queries over 1.5 w keys, which causal attention
    halves to the w pairs that each query has.
    """
    if mixer.size is None:
        return {}
    queries = as_float(at.workload.query_tokens)
    if not at.is_prompt:
        return {"kv_len": mixer.keys(at.keys, queries)}
    blocks = np.maximum(at.keys / mixer.size, 1.0)
    return {
        "kv_len": np.where(blocks > 1.0, 1.5 * mixer.size, at.keys),
        "batch": np.asarray(at.workload.batch) * blocks,
        "q_len": queries / blocks,
    }
