"""What one step processes, and how its kernels are written down.

One set of formulas serves the three phases of the Medusa paper's Table 5: prefill
(`query_tokens = seq_len`), decode (`query_tokens = 1`) and verification, the paper's parallel
decoding (`query_tokens = candidates`, root included). `network.py` makes kernels of a model and a workload.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any, Generic, Literal, TypeVar, get_args

import numpy as np

from medusa_sim.arrays import FloatArray
from medusa_sim.operators.operator import Elementwise, ElementwiseKind, Gemm, Operator, Size
from medusa_sim.specs.mixers import Mixer
from medusa_sim.specs.model import Model
from medusa_sim.specs.parallel import Parallel
from medusa_sim.specs.runtime import Runtime
from medusa_sim.step.union import CHAIN, Overlap

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
        return replace(
            self,
            batch=take(np.asarray(self.batch)),
            seq_len=take(np.asarray(self.seq_len)),
            query_tokens=take(np.asarray(self.query_tokens)),
            padded_rows=None if self.padded_rows is None else take(np.asarray(self.padded_rows)),
        )

    def on_one_gpu(self, parallel: Parallel) -> Workload:
        """The sequences whose attention one GPU computes: all, but for data-parallel attention."""
        if not parallel.dp_attention:
            return self
        share = replace(self, batch=np.ceil(np.asarray(self.batch) / parallel.tp))
        if self.padded_rows is None:
            return share
        return replace(share, padded_rows=np.ceil(np.asarray(self.padded_rows) / parallel.tp))


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

    @property
    def knows_length(self) -> bool:
        """Whether a size varies along the middle one of three axes (batch, length, count)."""
        ends = () if self.ends is None else self.ends
        return any(
            np.ndim(size) == 3 and np.shape(size)[1] > 1
            for operator in (self.operator, *ends)
            for size in operator.sizes.values()
        )

    def each(self, take: Callable[[FloatArray], FloatArray]) -> Launch:
        """With every size replaced by what `take` makes of it."""
        own, *ends = (
            of.with_columns(**{name: take(np.asarray(size)) for name, size in of.sizes.items()})
            for of in (self.operator, *(self.ends or ()))
        )
        return replace(self, operator=own, ends=None if self.ends is None else (ends[0], ends[1]))

    @property
    def kernels(self) -> int:
        """Launches of a step: a module is as many as what it is composed of."""
        return sum(each.kernels for each in self.composed) or self.count


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
