"""What to measure, the most informative shapes first: a run that ends early still covers every operator.

Every axis value has a level: 0 where the answer to "how many candidates?" is decided, higher where it is
only refined. A shape's level is the sum over its axes; shapes run level by level, operators in turn.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Literal, cast

from medusa_sim.operators.operator import (
    Attention,
    AttentionKind,
    Elementwise,
    ElementwiseKind,
    Gemm,
    Operator,
)
from medusa_sim.specs.model import Model
from medusa_sim.units import BYTES_PER_ELEMENT

Family = Literal["gemm", "attention", "elementwise"]
FAMILIES: tuple[Family, ...] = ("gemm", "attention", "elementwise")
Levels = dict[int, int]

M_MAX = 4096


def _levels(*groups: Iterable[int]) -> Levels:
    """Values of level 0, of level 1, ...; a value keeps its lowest level."""
    found: Levels = {}
    for level, values in enumerate(groups):
        for value in values:
            found.setdefault(value, level)
    return found


M_LEVELS = _levels(
    (1, 16, 64, 128),
    (4, 8, 32, 48, 80, 96, 112, 256, 512),
    (2, 24, 40, 65, 129, 144, 160, 192, 1024),
    (56, 72, 88, 104, 120, 136, 176, 224, 257, 320, 384, 448, 2048),
    (17, 33, 6, 12, 20, 28, 193, 208, 240, 288, 352, 385, 416, 480, 640, 768, 1536, M_MAX),
)
"""Rows of linear layers: multiples of 8 and one past where tiles end, 1..512, then coarser to 4096."""

ELEMENTWISE_M_LEVELS = _levels(
    (1, 16, 64, 128), (2, 4, 8, 24, 32, 48, 80, 96, 112, 160, 192, 256, 384, 512, 1024), (2048, M_MAX)
)
Q_LEVELS = _levels((1, 64), (4, 16, 32, 128), (8, 48, 80, 96), (2, 24, 112))
CONTEXT_LEVELS = _levels((1024,), (), (128, 4096), (512, 2048, 8192), (256,))
BATCH_LEVELS = _levels((1, 4), (2, 8), (16,), (32,), (64,))
PREFILL_LEVELS = _levels((512,), (128,), (64, 256, 1024), (), (2048,))
PREFILL_BATCH_LEVELS = _levels((1,), (4,), (2, 8))
UNFUSED_Q_LEVELS = _levels((1, 64), (16, 128), (32, 48, 80, 96))
_WRITTEN_HIDDEN, _WRITTEN_INNER = 24, 4
"""Rows as wide as the model, and as its MLP, that a layer of the decoder writes for every token."""
_FEW_EARLIER = 2
"""Decoding and prefill have few shapes, and a fit needs twenty of each: they come levels earlier."""
_UNFUSED_OFFSET = 2
"""Unfused products are not part of an engine's step: they come after the kernels that are."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sizes:
    """Sizes of one operator as the columns of a row name them; 0 where one does not apply."""

    m: int = 0
    n: int = 0
    k: int = 0
    batch: int = 0
    q_len: int = 0
    kv_len: int = 0
    heads: int = 0
    kv_heads: int = 0
    head_dim: int = 0


@dataclass(frozen=True, kw_only=True)
class Case:
    """One shape to measure.

    level: 0 is the most informative. between_bytes: bytes that a step reads between two uses of the same
    operands (the weights of the whole model; for attention also K and V of every layer): how cold they are.
    activation_bytes: what a layer writes for as many tokens, which is how cold activations are.
    """

    op: str
    family: Family
    sizes: Sizes
    dtype: str
    level: int
    between_bytes: float
    activation_bytes: float = 0.0

    @property
    def key(self) -> tuple[object, ...]:
        """What makes two cases one: linear layers of any name share their shape."""
        return ("gemm" if self.family == "gemm" else self.op, self.sizes, self.dtype)

    @cached_property
    def operator(self) -> Operator:
        """Its FLOP and byte counts."""
        s = self.sizes
        if self.family == "gemm":
            return Gemm(name=self.op, m=s.m, n=s.n, k=s.k, dtype=self.dtype)
        if self.family == "elementwise":
            kind = cast("ElementwiseKind", self.op)
            return Elementwise(name=self.op, kind=kind, m=s.m, n=s.n, dtype=self.dtype)
        return Attention(
            name=self.op,
            kind=cast("AttentionKind", self.op),
            batch=s.batch,
            q_len=s.q_len,
            kv_len=s.kv_len,
            heads=s.heads,
            kv_heads=s.kv_heads,
            head_dim=s.head_dim,
            dtype=self.dtype,
        )

    @property
    def bytes(self) -> float:
        """Bytes that one launch moves."""
        return float(self.operator.bytes)

    @property
    def flops(self) -> float:
        """FLOPs of one launch."""
        return float(self.operator.flops)


def cases(models: Sequence[Model], dtypes: Sequence[str]) -> list[Case]:
    """Every shape of these models and dtypes once, the most informative first.

    A shape that several models share is as cold as in the largest of them.
    """
    found: dict[tuple[object, ...], Case] = {}
    for dtype in dtypes:
        for model in models:
            for case in _of_model(model, dtype):
                held = found.get(case.key)
                if held is None:
                    found[case.key] = case
                else:
                    found[case.key] = replace(
                        held,
                        level=min(held.level, case.level),
                        between_bytes=max(held.between_bytes, case.between_bytes),
                        activation_bytes=max(held.activation_bytes, case.activation_bytes),
                    )
    return _interleaved(found.values())


def _interleaved(found: Iterable[Case]) -> list[Case]:
    """By level; within a level the families advance together, however many shapes each has."""
    groups: dict[tuple[int, Family], list[Case]] = {}
    for case in found:
        groups.setdefault((case.level, case.family), []).append(case)
    placed = [
        (level, (place + 0.5) / len(group), FAMILIES.index(family), case)
        for (level, family), group in groups.items()
        for place, case in enumerate(group)
    ]
    return [case for *_, case in sorted(placed, key=lambda entry: entry[:3])]


def _of_model(model: Model, dtype: str) -> Iterator[Case]:
    weights = model.parameter_count * BYTES_PER_ELEMENT[dtype]

    written = BYTES_PER_ELEMENT[dtype] * (
        _WRITTEN_HIDDEN * model.hidden + _WRITTEN_INNER * model.intermediate
    )

    def case(op: str, family: Family, sizes: Sizes, level: int) -> Case:
        found = Case(
            op=op,
            family=family,
            sizes=sizes,
            dtype=dtype,
            level=level,
            between_bytes=weights,
            activation_bytes=sizes.m * written,
        )
        if isinstance(found.operator, Attention):  # a layer's K and V come back after those of all others
            every_layer = model.layers * float(found.operator.kv_bytes)
            return replace(found, between_bytes=weights + every_layer)
        return found

    for op, n, k in linear_layers(model):
        for m, level in M_LEVELS.items():
            yield case(op, "gemm", Sizes(m=m, n=n, k=k), level)
    for op, n in elementwise_widths(model):
        for m, level in ELEMENTWISE_M_LEVELS.items():
            yield case(op, "elementwise", Sizes(m=m, n=n), level)
    for op, sizes, level in _attention(model):
        yield case(op, "attention", sizes, level)


def linear_layers(model: Model) -> list[tuple[str, int, int]]:
    """(name, n, k) of the fused and the separate projections, the MLP and the LM head, each shape once."""
    query, kv, hidden = model.heads * model.head_dim, model.kv_heads * model.head_dim, model.hidden
    layers = [
        ("qkv_proj", query + 2 * kv, hidden),
        ("o_proj", hidden, query),
        ("gate_up_proj", 2 * model.intermediate, hidden),
        ("down_proj", hidden, model.intermediate),
        ("q_proj", query, hidden),
        ("k_proj", kv, hidden),
        ("up_proj", model.intermediate, hidden),
        ("lm_head", model.vocab, hidden),
    ]
    if not model.gated:
        layers = [layer for layer in layers if layer[0] != "gate_up_proj"]
    seen: dict[tuple[int, int], tuple[str, int, int]] = {}
    for op, n, k in layers:
        seen.setdefault((n, k), (op, n, k))
    return list(seen.values())


def elementwise_widths(model: Model) -> list[tuple[str, int]]:
    """(kind, row width) of the kernels between the linear layers."""
    rotated = (model.heads + model.kv_heads) * model.head_dim
    return [
        ("rms_norm", model.hidden),
        ("next_token", model.vocab),
        ("residual", model.hidden),
        ("activation", model.intermediate),
        ("embedding", model.hidden),
        *([("rope", rotated)] if model.rope else []),
    ]


def _attention(model: Model) -> Iterator[tuple[str, Sizes, int]]:
    """Fused kernels over contexts and batches, causal prefill, and the two unfused products."""
    heads = {"heads": model.heads, "kv_heads": model.kv_heads, "head_dim": model.head_dim}
    for context, context_level in CONTEXT_LEVELS.items():
        for batch, batch_level in BATCH_LEVELS.items():
            for q_len, q_level in Q_LEVELS.items():
                op = "decode_attention" if q_len == 1 else "verify_attention"
                sizes = Sizes(batch=batch, q_len=q_len, kv_len=context + q_len, **heads)
                early = _FEW_EARLIER if q_len == 1 else 0
                yield op, sizes, max(0, context_level + batch_level + q_level - early)
            for q_len, q_level in UNFUSED_Q_LEVELS.items():
                sizes = Sizes(batch=batch, q_len=q_len, kv_len=context, **heads)
                for op in ("qk", "pv"):
                    yield op, sizes, _UNFUSED_OFFSET + context_level + batch_level + q_level
    for q_len, q_level in PREFILL_LEVELS.items():
        for batch, batch_level in PREFILL_BATCH_LEVELS.items():
            sizes = Sizes(batch=batch, q_len=q_len, kv_len=q_len, **heads)
            yield "prefill_attention", sizes, max(0, q_level + batch_level - _FEW_EARLIER)
