"""Kernels of local engines (llama.cpp, MLX): products with quantised weights of few columns.

A matrix of W weights of a type with b bytes each, times m columns, on a device of bandwidth B and R lane
operations a second:

    (local 1)  vectors  t = launch + |W b / (B share), W passes (unpack + m' column) / R|_p     m <= limit
                   passes = ceil(m / group), m' = ceil(m / passes); separate columns are m products of one
    (local 2)  tiles  t = launch + |W b / (B share'), W (unpack' + (c - tile) column') / R + 2 W c / peak'|_p
                   c = tile ceil(m / tile), the columns of whole tiles
    (local 3)  experts  before the switch every pair of token and expert is a product of one column (1); the
                   second reader of an expert finds half of it in a cache. Behind it each distinct expert is
                   read once, with tiles of its own pairs (local 2): c is the mean over experts, of which
                   some have more pairs than others (`Experts.padded_rows`)
    (local 4)  cache    t = launch + |bytes / (B share), pairs 2 d ops / R|_p; d mod step elements cost more
    (local 5)  rows     a pass waits for the device, and its logits go to the host, which samples row by row
    (local 7)  watts    limited to w of the board's power, R and peak are ((w - s) / (1 - s))^(1/3) as high

A file of several types is the mean over its layers (`file_types.FILES`). Shares, unpack, column and limits:
`gpus/local.toml`.
"""

from __future__ import annotations

from typing import TypeAlias

import numpy as np

from medusa_sim.arrays import FloatArray, as_float
from medusa_sim.errors import SpecError
from medusa_sim.file_types import FILES, TYPES, Role, shares
from medusa_sim.gpus.gpu import Gpu
from medusa_sim.gpus.local import LocalLaw, MatrixLaw, TypeLaw, local_law
from medusa_sim.latency.bands import KernelParts
from medusa_sim.latency.operator_time import Bound, OperatorTime, Source
from medusa_sim.latency.waves import norm_max
from medusa_sim.operators.attention import Attention
from medusa_sim.operators.elementwise import Elementwise
from medusa_sim.operators.experts import Experts
from medusa_sim.operators.gemm import Gemm
from medusa_sim.operators.operator import Operator
from medusa_sim.units import US_PER_S

_ROLES: dict[str, Role] = {
    "k_proj": "keys", "v_proj": "values", "o_proj": "output", "out_proj": "output", "down_proj": "down",
    "shared_down_proj": "down", "lm_head": "head",
}  # fmt: skip
"""Name of a linear layer -> what its matrix is for; others are `linear`."""
_THIN = ("router", "beta_decay_proj", "decay_proj")
"""Matrices that no file quantises."""
_NOTHING = 1e-9
_Product: TypeAlias = tuple[FloatArray, FloatArray, float]
"""Memory and arithmetic of products of one type, microseconds, and the exponent of their smooth maximum."""
_PLAIN = {"fp32": "f32", "fp16": "f16", "bf16": "bf16"}


CONSTANT_WATTS = 0.25
"""s of (local 7): share of a board's power that does not follow the clock, memory and leakage; assumed.

The rest goes with clock and voltage squared, and voltage with the clock. Under a cap an RTX 5090 decodes
plainly hardly slower, while rounds of six drafts lose a fifth (Qwen3.8-27B, August 2026).
"""
BESIDE_READING, MOST_BESIDE = 3.0, 0.45
"""Half-width of arithmetic, tiles and launches: this many times that of bandwidth, at most the second.
Devices left out differ from the law of their class by 0.12 in bandwidth, 0.35 in the others
(`local_correction.SPREAD`)."""
ALIKE = 0.9
"""Share of the bandwidth's band that passes of any number of tokens have in common: of passes that take as
long as one token's, 80 % lie within 7 % where the band is 12 to 18 (`benchmarks/local_speed.py`)."""
_LEAST_POWER = 0.4
"""Lowest power limit that drivers accept, as a share of the board's power."""


def clock_under(limit_watts: float | None, gpu: Gpu) -> float:
    """Share of its clock that a device keeps under a power limit. Raises SpecError for one it cannot have."""
    if limit_watts is None:
        return 1.0
    local = gpu.local
    board = gpu.power.limit_watts if gpu.power is not None else None
    if board is None and local is not None and local.board_watts is not None:
        board = local.board_watts.value
    if board is None:
        raise SpecError(
            f"power limit {limit_watts:g} W: {gpu.name} says no power of its own; add local.board_watts to "
            "its file"
        )
    if limit_watts < _LEAST_POWER * board:
        raise SpecError(
            f"power limit {limit_watts:g} W: {gpu.name} has {board:g} W; give {_LEAST_POWER * board:.0f} W "
            "or more"
        )
    share = (limit_watts / board - CONSTANT_WATTS) / (1.0 - CONSTANT_WATTS)
    return float(min(share, 1.0) ** (1.0 / 3.0))


class LocalLatency:
    """Times of one device in one backend. Raises SpecError where the backend does not run there.

    clock: share of its clock that a device keeps (`clock_under`).
    """

    name = "local"

    def __init__(self, gpu: Gpu, backend: str, law: LocalLaw | None = None, clock: float = 1.0) -> None:
        self.gpu, self.clock = gpu, clock
        self.law = local_law(backend, gpu.name, gpu.local) if law is None else law
        assert gpu.local is not None  # noqa: S101  # local_law refuses others
        share = gpu.local.bandwidth_share
        self.target = gpu.local.target
        self.bytes_per_us = gpu.bandwidth_bytes_per_s * (1.0 if share is None else share.value) / US_PER_S
        self.barrier_us = self.law.barrier_us if gpu.sms > 1 else 0.0
        self.ops_per_us = clock * gpu.local.vector_ops_per_s.value / US_PER_S

    def time(self, operator: Operator) -> OperatorTime:
        """Time of one launch. Raises SpecError for kinds that these engines compose of others."""
        match operator:
            case Gemm():
                return self._timed(self._linear(operator), operator.size)
            case Attention() if operator.is_fused:
                return self._attention(operator)
            case Elementwise():
                return self._pass(operator)
            case Experts():
                return self._experts(operator)
        raise SpecError(f"{self.law.name}: no kernel of {operator.kind!r}")

    def _linear(self, operator: Gemm) -> KernelParts:
        """A linear layer, averaged over the types of its weights."""
        weights, m = as_float(operator.n) * as_float(operator.k), as_float(operator.m)
        products = [
            (*self._product(name, share * weights, m), self.law.overlap_of(name))
            for name, share in self._types(operator.stored_dtype, operator.name)
        ]
        return _one_after_another(products, self.law.launch_us)

    def _types(self, stored: str, name: str) -> tuple[tuple[str, float], ...]:
        if stored not in FILES:
            return ((_PLAIN.get(stored, stored if stored in TYPES else "f16"), 1.0),)
        if name in _THIN:
            return (("f32", 1.0),)
        return shares(stored, _ROLES.get(name, "linear"))

    def _product(self, name: str, weights: FloatArray, m: FloatArray) -> tuple[FloatArray, FloatArray]:
        """(memory, arithmetic) of m columns and weights of the type of that name (local 1, local 2)."""
        law, kind = self.law, self.law.of_type(name)
        read = weights * TYPES[name] / self.bytes_per_us
        vectors = self._vectors(kind, weights, read, m)
        matrix = law.half if law.half is not None and name in ("f16", "bf16", "f32") else law.matrix
        tiles = self._tiles(matrix, kind, weights, read, matrix.tile * np.ceil(m / matrix.tile))
        is_vector = m <= law.columns(name, self.target)
        return np.where(is_vector, vectors[0], tiles[0]), np.where(is_vector, vectors[1], tiles[1])

    def _vectors(
        self, kind: TypeLaw, weights: FloatArray, read: FloatArray, m: FloatArray
    ) -> tuple[FloatArray, FloatArray]:
        if kind.blocks:
            ops, left = np.zeros_like(m), m
            for columns, block in kind.blocks:
                ops = ops + np.floor(left / columns) * block
                left = left % columns
            ops = ops if kind.single is None else np.where(m == 1.0, kind.single, ops)
            return read / kind.share + np.zeros_like(m), weights * ops / self.ops_per_us
        alone = kind.unpack + kind.column if kind.single is None else kind.single
        is_separate = m <= kind.separate
        passes = np.ceil(m / self.law.group)
        several = passes * (kind.unpack + np.ceil(m / passes) * kind.column)
        work = weights * (np.where(is_separate, m * alone, several) + _NOTHING) / self.ops_per_us
        return np.where(is_separate, m, 1.0) * read / kind.share, work

    def _tiles(
        self, matrix: MatrixLaw, kind: TypeLaw, weights: FloatArray, read: FloatArray, columns: FloatArray
    ) -> tuple[FloatArray, FloatArray]:
        """(memory, arithmetic) of the columns of whole tiles, or of their mean: linear in them (local 2)."""
        tiles = kind.tiles * self.law.matrix_of.get(self.target, 1.0)
        work = weights * (tiles * matrix.unpack + (columns - matrix.tile) * matrix.column) / self.ops_per_us
        if matrix.peak:
            work = work + 2.0 * weights * columns / (
                matrix.peak * self.clock * self.gpu.peak("fp16") / US_PER_S
            )
        return read / matrix.share + np.zeros_like(work), work

    def _experts(self, operator: Experts) -> OperatorTime:
        """Routed experts of a layer (local 3): gate and up, then down."""
        law = self.law
        rows, hit, tokens = (as_float(size) for size in (operator.rows, operator.hit, operator.tokens))
        columns = operator.padded_rows(law.grouped.tile) / np.maximum(np.minimum(hit, rows), _NOTHING)
        hidden, inter = as_float(operator.hidden), as_float(operator.inter)
        products: list[_Product] = []
        sorts = np.zeros_like(tokens)
        for role, size in (("linear", hidden * operator.first_width), ("down", hidden * inter)):
            stored = operator.stored_dtype
            types = self._types(stored, "down_proj" if role == "down" else "up_proj")
            if stored in FILES and "experts" in FILES[stored]:
                types = shares(stored, "experts")
            for name, share in types:
                kind, weights = law.of_type(name), share * size
                one = weights * TYPES[name] / self.bytes_per_us
                alone = kind.unpack + kind.column if kind.single is None else kind.single
                read = 0.5 * (rows + hit)
                single = (
                    read * one / (kind.share * law.pair_share),
                    rows * weights * (alone + _NOTHING) / self.ops_per_us,
                )
                tiles = self._tiles(law.grouped, kind, weights, one, columns)
                is_pairs = tokens <= law.pair_columns(name, self.target)
                sorts = np.where(is_pairs, sorts, law.sorted_us)
                products.append(
                    (
                        np.where(is_pairs, single[0], hit * tiles[0]),
                        np.where(is_pairs, single[1], hit * tiles[1]),
                        law.overlap_of(name),
                    )
                )
        fixed = 3.0 * law.launch_us + law.routing_us + sorts
        return self._timed(_one_after_another(products, fixed), operator.size)

    def _attention(self, operator: Attention) -> OperatorTime:
        law = self.law
        memory = operator.bytes / (self.bytes_per_us * law.attention_share)
        pairs = as_float(operator.batch) * as_float(operator.heads) * operator.attended_pairs
        left = as_float(operator.head_dim) % law.attention_step
        ops = law.attention_ops * (operator.head_dim - left) + law.attention_left_ops * left
        work = pairs * 2.0 * ops / self.ops_per_us
        parts = _one_after_another([(memory, np.maximum(work, 1e-12), law.overlap)], law.attention_us)
        return self._timed(parts, operator.size, is_product=False)

    def _pass(self, operator: Elementwise) -> OperatorTime:
        law = self.law
        if operator.kind == "next_token":
            rows_us = as_float(operator.m) * as_float(operator.n) * law.row_us_per_million / 1e6
            return self._timed(_reading(rows_us, law.step_us), operator.size)
        return self._timed(_reading(operator.bytes / self.bytes_per_us, law.pass_us), operator.size)

    def _timed(self, parts: KernelParts, size: FloatArray, *, is_product: bool = True) -> OperatorTime:
        """The time of the parts, with the law's band; a curve of somebody's own is of products.

        Most of what bandwidth is off by, every pass has alike; the rest is that of the kernel that the number
        of tokens chooses. What a pass does besides reading is less certain, and grows with its tokens.
        """
        time_us, fixed, memory = parts.time_us, parts.fixed_us, parts.memory_us
        if self.law.curve and is_product:
            columns, left = np.asarray(self.law.curve).T
            time_us, fixed = (part * np.exp(np.interp(size, columns, left)) for part in (time_us, fixed))
        time_us = np.asarray(time_us + self.barrier_us + np.zeros_like(size))
        bound = np.where(
            2.0 * np.asarray(fixed + self.barrier_us) > time_us,
            np.int8(Bound.LATENCY),
            np.where(memory >= parts.work_us, np.int8(Bound.MEMORY), np.int8(Bound.COMPUTE)),
        )
        source = Source.CALIBRATED if self.law.measured else Source.BORROWED
        compute_share = 1.0 - np.minimum(memory / time_us, 1.0)
        band = np.full_like(size, self.law.band)
        if self.law.beyond is not None:
            columns, wider = self.law.beyond
            band = np.where(size > columns, wider, band)
        half = np.hypot(band, np.minimum(BESIDE_READING * band, MOST_BESIDE) * compute_share)
        return OperatorTime(
            time_us=time_us,
            low_us=time_us * np.exp(-half),
            high_us=time_us * np.exp(half),
            device_half=ALIKE * self.law.band,
            bound=np.asarray(np.broadcast_to(bound, np.shape(time_us)), dtype=np.int8),
            source=np.broadcast_to(np.int8(source), np.shape(time_us)),
        )


def _one_after_another(products: list[_Product], fixed_us: FloatArray | float) -> KernelParts:
    """Products of which each is a smooth maximum, on top of what is fixed."""
    time_us = sum((norm_max(*product) for product in products), np.zeros(()))
    memory_us = sum((memory for memory, _, _ in products), np.zeros(()))
    work_us = sum((work for _, work, _ in products), np.zeros(()))
    return KernelParts(fixed_us + time_us, fixed_us, memory_us, work_us)


def _reading(memory_us: FloatArray, fixed_us: float) -> KernelParts:
    """A pass that reads alone, on top of what is fixed."""
    return KernelParts(fixed_us + memory_us, fixed_us, memory_us, np.zeros_like(memory_us))
