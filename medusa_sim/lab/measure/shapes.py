"""What to measure, the most informative shapes first: a run that ends early still covers every operator.

Every axis value has a level: 0 where the answer to "how many candidates?" is decided, higher where it is
only refined. A shape's level is the sum over its axes; shapes run level by level, operators in turn.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

from medusa_sim.models.model import Model
from medusa_sim.operators.attention import Attention, AttentionKind
from medusa_sim.operators.elementwise import Elementwise, ElementwiseKind
from medusa_sim.operators.gemm import Gemm
from medusa_sim.operators.operator import Operator
from medusa_sim.units import BYTES_PER_ELEMENT

FAMILIES = tuple(made.FAMILY for made in (Gemm, Attention, Elementwise))
"""What the decoder is made of."""
Levels = dict[int, int]

M_MAX = 4096
LEAST_ROWS = 20
"""Of a kind of operator, that a fit needs."""


def _levels(*groups: Iterable[int]) -> Levels:
    """Values of level 0, of level 1, ...; a value keeps its lowest level."""
    levels: Levels = {}
    for level, values in enumerate(groups):
        for value in values:
            levels.setdefault(value, level)
    return levels


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
class TimedShape:
    """One shape to measure; its operator's sizes are single numbers.

    level: 0 is the most informative. between_bytes: bytes that a step reads between two uses of the same
    operands (the weights of the whole model; for attention also K and V of every layer): how cold they are.
    activation_bytes: what a layer writes for as many tokens, which is how cold activations are.
    """

    operator: Operator
    level: int
    between_bytes: float
    activation_bytes: float = 0.0

    @property
    def sizes(self) -> dict[str, int]:
        """Sizes by the names of columns."""
        return {name: int(size) for name, size in self.operator.sizes.items()}

    @property
    def key(self) -> tuple[object, ...]:
        """What makes two shapes one: linear layers of any name share their shape."""
        return (*self.operator.key, *self.operator.axes)

    @property
    def bytes(self) -> float:
        """Bytes that one launch moves."""
        return float(self.operator.bytes)

    @property
    def flops(self) -> float:
        """FLOPs of one launch."""
        return float(self.operator.flops)


def timed_shapes(models: Sequence[Model], dtypes: Sequence[str]) -> list[TimedShape]:
    """Every shape of these models and dtypes once, the most informative first.

    A shape that several models share is as cold as in the largest of them.
    """
    distinct: dict[tuple[object, ...], TimedShape] = {}
    for dtype in dtypes:
        for model in models:
            for shape in _of_model(model, dtype):
                held = distinct.get(shape.key)
                if held is None:
                    distinct[shape.key] = shape
                else:
                    distinct[shape.key] = replace(
                        held,
                        level=min(held.level, shape.level),
                        between_bytes=max(held.between_bytes, shape.between_bytes),
                        activation_bytes=max(held.activation_bytes, shape.activation_bytes),
                    )
    return _interleaved(distinct.values())


def fill_up(
    needed: Sequence[TimedShape], more: Sequence[TimedShape], least: int
) -> tuple[list[TimedShape], list[TimedShape]]:
    """Those needed with as many others of their kinds as make `least` of each; the rest of the others."""
    known = {shape.key for shape in needed}
    counts = Counter(shape.operator.kind for shape in needed)
    first, rest = list(needed), []
    for shape in more:
        if shape.key in known:
            continue
        if 0 < counts[shape.operator.kind] < least:
            counts[shape.operator.kind] += 1
            first.append(shape)
        else:
            rest.append(shape)
    return first, rest


def _interleaved(shapes: Iterable[TimedShape]) -> list[TimedShape]:
    """By level; within a level the families advance together, however many shapes each has."""
    groups: dict[tuple[int, str], list[TimedShape]] = {}
    for shape in shapes:
        groups.setdefault((shape.level, shape.operator.FAMILY), []).append(shape)
    placed = [
        (level, (place + 0.5) / len(group), FAMILIES.index(family), shape)
        for (level, family), group in groups.items()
        for place, shape in enumerate(group)
    ]
    return [shape for *_, shape in sorted(placed, key=lambda entry: entry[:3])]


def _of_model(model: Model, dtype: str) -> Iterator[TimedShape]:
    for name, n, k in linear_layers(model):
        for m, level in M_LEVELS.items():
            yield shape_of(model, Gemm(name=name, m=m, n=n, k=k, dtype=dtype), level)
    for kind, n in elementwise_widths(model):
        for m, level in ELEMENTWISE_M_LEVELS.items():
            yield shape_of(model, Elementwise(name=kind, kind=kind, m=m, n=n, dtype=dtype), level)
    for product, level in _attention(model, dtype):
        yield shape_of(model, product, level)


def shape_of(model: Model, operator: Gemm | Elementwise | Attention, level: int) -> TimedShape:
    """An operator of a model, as cold as the model's steps leave its operands."""
    size = BYTES_PER_ELEMENT[operator.dtype]
    weights = model.parameter_count * size
    if isinstance(operator, Attention):
        every_layer = model.layers * float(operator.kv_bytes)  # they come back after those of all others
        return TimedShape(operator=operator, level=level, between_bytes=weights + every_layer)
    written = size * (_WRITTEN_HIDDEN * model.hidden + _WRITTEN_INNER * model.mlp.width)
    return TimedShape(
        operator=operator, level=level, between_bytes=weights, activation_bytes=float(operator.m) * written
    )


def linear_layers(model: Model) -> list[tuple[str, int, int]]:
    """(name, n, k) of the fused and the separate projections, the MLP and the LM head, each shape once."""
    heads, inner, hidden = model.attention, model.mlp.width, model.hidden
    query, kv = heads.query_width, heads.kv_width
    layers = [
        ("qkv_proj", query + 2 * kv, hidden),
        ("o_proj", hidden, query),
        ("gate_up_proj", 2 * inner, hidden),
        ("down_proj", hidden, inner),
        ("q_proj", query, hidden),
        ("k_proj", kv, hidden),
        ("up_proj", inner, hidden),
        ("lm_head", model.vocab, hidden),
    ]
    if not model.mlp.gated:
        layers = [layer for layer in layers if layer[0] != "gate_up_proj"]
    seen: dict[tuple[int, int], tuple[str, int, int]] = {}
    for op, n, k in layers:
        seen.setdefault((n, k), (op, n, k))
    return list(seen.values())


def elementwise_widths(model: Model) -> list[tuple[ElementwiseKind, int]]:
    """(kind, row width) of the kernels between the linear layers."""
    rotated = model.attention.query_width + model.attention.kv_width
    widths: list[tuple[ElementwiseKind, int]] = [
        ("rms_norm", model.hidden),
        ("next_token", model.vocab),
        ("residual", model.hidden),
        ("activation", model.mlp.width),
        ("embedding", model.hidden),
    ]
    return [*widths, ("rope", rotated)] if model.rope else widths


def _attention(model: Model, dtype: str) -> Iterator[tuple[Attention, int]]:
    """Fused kernels over contexts and batches, causal prefill, and the two unfused products."""

    def product(kind: AttentionKind, batch: int, q_len: int, kv_len: int) -> Attention:
        return Attention(
            name=kind,
            kind=kind,
            batch=batch,
            q_len=q_len,
            kv_len=kv_len,
            heads=model.attention.heads,
            kv_heads=model.attention.kv_heads,
            head_dim=model.attention.head_dim,
            dtype=dtype,
        )

    for context, context_level in CONTEXT_LEVELS.items():
        for batch, batch_level in BATCH_LEVELS.items():
            for q_len, q_level in Q_LEVELS.items():
                kind: AttentionKind = "decode_attention" if q_len == 1 else "verify_attention"
                early = _FEW_EARLIER if q_len == 1 else 0
                level = max(0, context_level + batch_level + q_level - early)
                yield product(kind, batch, q_len, context + q_len), level
            for q_len, q_level in UNFUSED_Q_LEVELS.items():
                level = _UNFUSED_OFFSET + context_level + batch_level + q_level
                yield product("qk", batch, q_len, context), level
                yield product("pv", batch, q_len, context), level
    for q_len, q_level in PREFILL_LEVELS.items():
        for batch, batch_level in PREFILL_BATCH_LEVELS.items():
            level = max(0, q_level + batch_level - _FEW_EARLIER)
            yield product("prefill_attention", batch, q_len, q_len), level
