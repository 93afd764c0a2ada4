"""What one step processes, and how its kernels are written down.

One set of formulas serves the three phases of the Medusa paper's Table 5: prefill
(`query_tokens = seq_len`), decode (`query_tokens = 1`) and verification, the paper's parallel
decoding (`query_tokens = candidates`, root included). `network.py` makes kernels of a model and a workload.

Tokens of a step wake a number of distinct experts, the union that a layer of experts must read:

    (X1)  union = E (1 - (1 - k / E)^t),   t = b q^beta

E experts, k of them for each token, b sequences with q tokens each. Tokens of different sequences choose
independently (t = b q at beta 1); those of one sequence are alike and share experts, so that q of them wake
as many as q^beta would. beta 0.76 meets the published unions of chains; trees, whose branches begin alike,
share more. Known alternatives: `independent` tokens, and `disjoint` ones, which share no expert while there
are any left (what benchmarks call balanced).

Under expert parallelism a rank holds E / ep experts, and in the mean the same share of the union.

`Grid` has the axes of a grid of configurations: batch, length, candidates.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from numbers import Integral, Real
from typing import Any, Literal, get_args

import numpy as np

from medusa_sim.arrays import FloatArray, IntArray, as_float
from medusa_sim.errors import UsageError, check_kind, shown, unknown_name
from medusa_sim.file_types import FILES
from medusa_sim.operators.operator import Elementwise, ElementwiseKind, Gemm, Operator, Size
from medusa_sim.specs.model import Model
from medusa_sim.specs.parallel import Parallel

LARGEST = 10**12
"""On any axis: products of the three are counted in 64 bits."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Grid:
    """Axes of a sweep: whole numbers from 1, each axis in the order in which rows come out."""

    batch: IntArray
    seq_len: IntArray
    candidates: IntArray

    @classmethod
    def of(cls, batch: Sequence[int], seq_len: Sequence[int], candidates: Sequence[int]) -> Grid:
        """A grid of three lists. Raises UsageError for an empty axis or a value below 1."""
        axes = {"batch": batch, "seq_len": seq_len, "candidates": candidates}
        for name, values in axes.items():
            if len(values) == 0:
                raise UsageError(f"{name} is empty: give at least one whole number from 1")
            if min(values) < 1:
                raise UsageError(f"{name} {min(values)}: whole numbers from 1 are allowed")
            if max(values) > LARGEST:
                raise UsageError(f"{name} {max(values)}: whole numbers from 1 to {LARGEST:g} are allowed")
        return cls(**{name: np.asarray(values, dtype=np.int64) for name, values in axes.items()})

    @property
    def rows(self) -> int:
        """Configurations for one GPU and one model."""
        return self.batch.size * self.seq_len.size * self.candidates.size


Sizes = int | Iterable[int]
"""One whole number from 1, or several."""
_LARGEST = 2**53
"""Sizes are counted in double precision."""


def several(given: object) -> list[Any]:
    """One value or several, as a list; text is one."""
    return list(given) if isinstance(given, Iterable) and not isinstance(given, str) else [given]


def whole_numbers(name: str, sizes: Sizes) -> list[int]:
    """Sizes as a list. Raises UsageError for text, and for fractions, which would be truncated silently."""
    given = several(sizes)
    for size in given:
        whole = isinstance(size, Integral) or (isinstance(size, float) and size.is_integer())
        if isinstance(size, bool) or not whole or abs(size) > _LARGEST:
            raise UsageError(f"{name} {shown(size)}: whole numbers from 1 are allowed, one or several")
    return [int(size) for size in given]


def names(name: str, given: object) -> tuple[str, ...]:
    """Names, one or several. Raises UsageError for what is none."""
    listed = several(given)
    for each in listed:
        check_kind(name, each, "a name, or several", (str,))
    return tuple(listed)


def numbers(name: str, given: float | Iterable[float]) -> list[float]:
    """Numbers as a list, each once. Raises UsageError for what is none, such as text."""
    listed = several(given)
    for number in listed:
        if isinstance(number, bool) or not isinstance(number, Real):
            raise UsageError(f"{name} {shown(number)}: numbers are allowed, one or several")
    return list(dict.fromkeys(float(number) for number in listed))


_NEARLY_ALL = 1.0 - 1e-12


@dataclass(frozen=True, slots=True, kw_only=True)
class Overlap:
    """How far tokens of one sequence share experts.

    beta: exponent of (X1); None: they share none while there are any left. low, high: its spread over models
    and texts, which belongs in the band of whatever rests on it. source: where it was measured.
    """

    name: str
    beta: float | None
    low: float
    high: float
    source: str

    def at(self, beta: float) -> Overlap:
        """The same law at another exponent, without spread."""
        return Overlap(name=self.name, beta=beta, low=beta, high=beta, source=self.source)


CHAIN = Overlap(
    name="chain",
    beta=0.76,
    low=0.6,
    high=1.0,
    source="least squares on unions of 4 to 16 consecutive tokens of four models with 128 or 256 experts "
    "(cohere.com/blog/mixture-of-experts-models-get-more-from-speculative-decoding; "
    "github.com/Luce-Org/lucebox pull request 501; two public notes of measurements)",
)
TREE = Overlap(
    name="tree",
    beta=0.56,
    low=0.47,
    high=0.66,
    source="unions of trees of 31 to 255 tokens on OLMoE-1B-7B, Qwen3-30B-A3B and Mixtral-8x7B "
    "(MoE-Spec, arXiv 2602.16052)",
)
INDEPENDENT = Overlap(
    name="independent", beta=1.0, low=1.0, high=1.0, source="every token chooses alone: 55 % above chains"
)
DISJOINT = Overlap(
    name="disjoint", beta=None, low=1.0, high=1.0, source="no two tokens share an expert: balanced benchmarks"
)
OVERLAPS: dict[str, Overlap] = {each.name: each for each in (CHAIN, TREE, INDEPENDENT, DISJOINT)}


def overlap_of(name: str) -> Overlap:
    """The law of that name. Raises UsageError in one line for a name that is none."""
    try:
        return OVERLAPS[name]
    except KeyError:
        raise UsageError(unknown_name("overlap of experts", name, OVERLAPS)) from None


def union(
    experts: Size, topk: Size, batch: Size, query_tokens: Size, overlap: Overlap | float = CHAIN
) -> FloatArray:
    """Distinct experts that `batch` sequences with `query_tokens` each wake in a layer, an expectation (X1).

    overlap: a law, or its exponent beta. Arrays broadcast. Never below topk, never above experts.
    """
    all_of_them, chosen = as_float(experts), as_float(topk)
    sequences, tokens = as_float(batch), as_float(query_tokens)
    beta = overlap.beta if isinstance(overlap, Overlap) else overlap
    if beta is None:
        return np.minimum(all_of_them, sequences * tokens * chosen)
    missed = np.log1p(-np.minimum(chosen / all_of_them, _NEARLY_ALL))
    woken: FloatArray = -all_of_them * np.expm1(sequences * tokens**beta * missed)
    return woken


def union_band(
    experts: Size, topk: Size, batch: Size, query_tokens: Size, overlap: Overlap = CHAIN
) -> tuple[FloatArray, FloatArray]:
    """(low, high) of `union` over the spread of the exponent."""
    if overlap.beta is None:
        whole = union(experts, topk, batch, query_tokens, overlap)
        return whole, whole
    low, high = (union(experts, topk, batch, query_tokens, beta) for beta in (overlap.low, overlap.high))
    return low, high


Phase = Literal["prefill", "decode", "verify"]
Scope = Literal["block", "model"]
Part = Literal[
    "qkv",
    "attention",
    "o_proj",
    "mlp",
    "experts",
    "exchange",
    "norm_rope",
    "embedding",
    "lm_head",
    "drafter",
    "accept",
]
PARTS: tuple[Part, ...] = get_args(Part)
"""The slices of a step that reports show, in the order in which they stack."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """What one step processes: `query_tokens` new tokens in each of `batch` sequences.

    seq_len: committed tokens before the step (the papers' s); in prefill the prompt itself. padded_rows: rows
    of the linear layers where an engine runs them at a captured size. All broadcast against each other.
    overlap: how far the new tokens of a sequence share experts. kept: what drafters of several depths share
    on one grid (`drafter.base.level_passes`).
    """

    phase: Phase
    batch: Size
    seq_len: Size
    query_tokens: Size
    padded_rows: Size | None = None
    overlap: Overlap = CHAIN
    kept: dict[Any, Any] | None = field(default=None, compare=False, repr=False)

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

    def each(self, take: Callable[[FloatArray], FloatArray]) -> Workload:
        """With every size replaced by what `take` makes of it."""
        sizes = {name: getattr(self, name) for name in ("batch", "seq_len", "query_tokens", "padded_rows")}
        taken = {name: take(np.asarray(size)) for name, size in sizes.items() if size is not None}
        return replace(self, **taken)  # type: ignore[arg-type]  # fields that hold a Size

    def on_one_gpu(self, parallel: Parallel) -> Workload:
        """The sequences whose attention one GPU computes: all, but for data-parallel attention."""
        if not parallel.dp_attention:
            return self
        rows = None if self.padded_rows is None else np.ceil(np.asarray(self.padded_rows) / parallel.tp)
        return replace(self, batch=np.ceil(np.asarray(self.batch) / parallel.tp), padded_rows=rows)


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

    share: of its time as a kernel of its own, where an engine fuses it with others. ends: the same operator
    at the ends of an 80 % interval of an uncertain input (few, many); their times widen its band. composed:
    what stands for the operator where the latency model has no kernel of it.
    """

    operator: Operator
    part: Part
    count: int = 1
    share: float = 1.0
    ends: tuple[Operator, Operator] | None = None
    composed: tuple[Launch, ...] = ()

    def each(self, take: Callable[[FloatArray], FloatArray]) -> Launch:
        """With every size replaced by what `take` makes of it."""
        own, *ends = (of.each(take) for of in (self.operator, *(self.ends or ())))
        return replace(self, operator=own, ends=None if self.ends is None else (ends[0], ends[1]))

    @property
    def kernels(self) -> int:
        """Launches of a step: a module is as many as what it is composed of."""
        return sum(each.kernels for each in self.composed) or self.count


def linear_launch(model: Model, name: str, part: Part, m: Size, n: int, k: int, count: int = 1) -> Launch:
    """A linear layer of m tokens, n outputs and k inputs in the model's dtypes."""
    gemm = Gemm(name=name, m=m, n=n, k=k, dtype=model.dtype, weight_dtype=model.weight_dtype)
    return Launch(operator=gemm, part=part, count=count)


def head_launch(model: Model, name: str, part: Part, m: Size, n: int, k: int, count: int = 1) -> Launch:
    """A linear layer outside the decoder layers: LM head, Medusa head. Files of local engines quantise it."""
    stored = model.weight_dtype if model.weight_dtype in FILES else None
    gemm = Gemm(name=name, m=m, n=n, k=k, dtype=model.activation_dtype, weight_dtype=stored)
    return Launch(operator=gemm, part=part, count=count)


def elementwise_launch(
    model: Model, name: str, kind: ElementwiseKind, part: Part, m: Size, n: int, count: int = 1
) -> Launch:
    """A norm, rope, activation, residual or copy over m rows of width n."""
    dtype = model.activation_dtype
    return Launch(operator=Elementwise(name=name, kind=kind, m=m, n=n, dtype=dtype), part=part, count=count)
