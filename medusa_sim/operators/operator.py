"""One kernel launch as a user of the GPU sees it: its shape, its FLOPs and the bytes it must move.

Table 5 of the Medusa paper (arXiv 2401.10774, appendix G) in three phases with one set of formulas:
prefill (`q_len = seq_len`), decode (`q_len = 1`) and parallel decode (`q_len = candidates`). Every
FLOP and byte count of the project is written here and nowhere else.

Shapes are numpy arrays that broadcast against each other, so that one operator holds a whole grid.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import reduce
from operator import mul
from typing import Any, ClassVar, Literal, NamedTuple, Self, TypeAlias, get_args

import numpy as np
import numpy.typing as npt

from medusa_sim.arrays import BoolArray, FloatArray, as_float
from medusa_sim.operators.row_schema import RowSchema
from medusa_sim.units import BYTES_PER_ELEMENT, HALVES, Format, format_of

Size: TypeAlias = npt.NDArray[np.int64] | npt.NDArray[np.float64] | int | float
"""A shape entry: one number, or an array that broadcasts against the operator's other entries."""

TextArray: TypeAlias = npt.NDArray[np.str_]
Numbers: TypeAlias = Mapping[str, FloatArray]
Words: TypeAlias = Mapping[str, TextArray]
"""Columns of rows of a table by name, an entry a row."""


class Fault(NamedTuple):
    """Rows of a table that contradict themselves: which, in which column, beside which other, what may be."""

    wrong: BoolArray
    column: str
    allowed: str
    beside: str = ""


AttentionKind = Literal["qk", "pv", "decode_attention", "verify_attention", "prefill_attention"]
ElementwiseKind = Literal["rms_norm", "rope", "activation", "residual", "embedding", "next_token"]
ATTENTION_KINDS: tuple[str, ...] = get_args(AttentionKind)
READ_AND_WRITE: ElementwiseKind = "rope"
"""Kind of any other pass that reads and writes each row once: of such, rotary embeddings were measured."""
UNFUSED_KINDS: tuple[str, ...] = ("qk", "pv")
ELEMENTWISE_KINDS: tuple[str, ...] = get_args(ElementwiseKind)
GENERATION, CONTEXT, VERIFY = "generation", "context", "verify"


@dataclass(frozen=True, slots=True, kw_only=True)
class Operator(ABC):
    """Interface of one kernel launch. A new operator is a subclass and a record in `operators.kinds`."""

    FAMILY: ClassVar[str]
    """Name of the kinds that share its columns."""
    COLUMNS: ClassVar[tuple[str, ...]]
    """Names of its sizes, arrays of one shape."""
    AXES: ClassVar[tuple[str, ...]]
    """Sizes along which a time may be interpolated between measured rows, outer to inner."""
    LABELS: ClassVar[tuple[str, ...]] = ()
    """Fields that are no sizes and make another operator of it, beside the dtypes."""
    ROWS: ClassVar[RowSchema] = RowSchema()
    """How rows of a table name it (`table.operators_of` hands what they hold to `of_rows`)."""
    SIZE: ClassVar[tuple[str, ...]] = ("batch", "q_len")
    """Sizes whose product is `size`."""
    STORED: ClassVar[str] = "dtype"
    """Field with the dtype of what lies in memory between steps; None there is `dtype`."""
    FITTED_BY_STORED: ClassVar[bool] = False
    """Whether kernels are fitted for each of these, so that unpacking is never told apart."""

    name: str
    """Of its place in the model."""
    kind: str
    """What is computed: the key of its latency, its calibration and its measurement."""
    dtype: str
    """Of the activations and the arithmetic."""

    @property
    @abstractmethod
    def flops(self) -> FloatArray:
        """Floating-point operations of one launch."""

    @property
    @abstractmethod
    def bytes(self) -> FloatArray:
        """Bytes that must cross the memory bus in one launch."""

    @property
    def link_bytes(self) -> FloatArray | None:
        """Bytes that a GPU must send to others in one launch; None of an operator that sends none."""
        return None

    @property
    def peers(self) -> Size:
        """GPUs that take part."""
        return 1

    @property
    def size(self) -> FloatArray:
        """The size by which errors of predictions are told apart: new tokens of one launch, or its bytes."""
        return reduce(mul, (as_float(getattr(self, name)) for name in self.SIZE))

    @classmethod
    def of_rows(cls, kind: str, form: Format, numbers: Numbers, words: Words) -> Self:
        """The operator of rows of a table that share kind, format and the words that split them.

        form: dtypes of arithmetic and weights, from the rows' `dtype`. numbers, words: arrays of those of
        ROWS. Raises ValueError for a word that is no numeric format.
        """
        fields: dict[str, Any] = {name: numbers[name] for name in cls.COLUMNS if name in numbers}
        fields |= {name: str(words[name][0]) for name in cls.LABELS if name in words}
        if cls.STORED == "weight_dtype" and form.weight_dtype != form.dtype:
            fields["weight_dtype"] = form.weight_dtype
        made: Callable[..., Self] = cls
        return made(
            name=kind, kind=kind, dtype=form.dtype, **fields | cls.row_fields(kind, form, numbers, words)
        )

    @classmethod
    def row_fields(cls, kind: str, form: Format, numbers: Numbers, words: Words) -> dict[str, Any]:
        """Fields that rows of the family have under other names, or in other units."""
        del kind, form, numbers, words
        return {}

    @classmethod
    def faults(cls, kinds: TextArray, numbers: Numbers) -> Iterator[Fault]:
        """What rows of the family must not say; kinds and numbers as in `of_rows`, for every row."""
        del kinds, numbers
        yield from ()

    @classmethod
    def row_numbers(cls) -> tuple[str, ...]:
        """Columns that a row of a table must fill."""
        return cls.ROWS.numbers or cls.COLUMNS

    @property
    def stored_dtype(self) -> str:
        """Of what lies in memory between steps (weights, K and V); activations have `dtype`."""
        return str(getattr(self, self.STORED) or self.dtype)

    @property
    def unpacks(self) -> bool:
        """Whether what is stored has another width than the arithmetic and is converted inside the kernel."""
        if self.FITTED_BY_STORED:
            return False
        return BYTES_PER_ELEMENT[self.stored_dtype] != BYTES_PER_ELEMENT[self.dtype]

    @property
    def form(self) -> str:
        """Name of the numeric format, by which kernels are keyed (`units`)."""
        return Format(self.dtype, self.stored_dtype).key

    @property
    def forms(self) -> tuple[str, ...]:
        """Keys of kernels that may serve, best first: its own format, then those of the same arithmetic."""
        forms = [self.form, self.dtype]
        forms += ["fp8_block"] if "fp8" in forms else []
        forms += HALVES if self.dtype in HALVES else ()
        return tuple(dict.fromkeys(forms))

    @property
    def of_one_token(self) -> Self | None:
        """The plain step's operator, which runs in its place where one token is verified; None: its own."""
        return None

    @property
    def sizes(self) -> dict[str, Size]:
        """Shapes by the names of COLUMNS."""
        return {name: getattr(self, name) for name in self.COLUMNS}

    @property
    def key(self) -> tuple[str | Size, ...]:
        """Kind, dtypes, LABELS and the sizes off AXES: what must match a measured row exactly."""
        labels = (str(getattr(self, name)) for name in self.LABELS)
        off_axes = (getattr(self, name) for name in self.COLUMNS if name not in self.AXES)
        return (self.kind, self.dtype, self.stored_dtype, *labels, *off_axes)

    @property
    def axes(self) -> tuple[Size, ...]:
        """The sizes of AXES."""
        return tuple(getattr(self, name) for name in self.AXES)

    def with_columns(self, **sizes: Size) -> Self:
        """The same operator at other sizes."""
        return replace(self, **sizes)  # type: ignore[arg-type]  # COLUMNS are fields that hold a Size

    def mapped(self, change: Callable[[FloatArray], FloatArray]) -> Self:
        """With every size replaced by what `change` makes of it."""
        return self.with_columns(**{name: change(np.asarray(size)) for name, size in self.sizes.items()})


@dataclass(frozen=True, slots=True, kw_only=True)
class Gemm(Operator):
    """A linear layer: (m, k) activations times (k, n) weights."""

    FAMILY = "gemm"
    STORED = "weight_dtype"
    COLUMNS = ("m", "n", "k")
    AXES = ("m",)
    SIZE = AXES

    kind: Literal["gemm"] = "gemm"
    m: Size
    """Tokens."""
    n: Size
    """Output features."""
    k: Size
    """Input features."""
    weight_dtype: str | None = None
    """Of the stored weights; None: `dtype`."""

    @property
    def flops(self) -> FloatArray:
        """2 m n k (Table 5, linear layers)."""
        return 2.0 * as_float(self.m) * as_float(self.n) * as_float(self.k)

    @property
    def weight_bytes(self) -> FloatArray:
        """Bytes of the weight matrix, read once: n k."""
        element = BYTES_PER_ELEMENT[self.stored_dtype]
        return element * as_float(self.n) * as_float(self.k)

    @property
    def activation_bytes(self) -> FloatArray:
        """Bytes read and written beside the weights: m (k + n)."""
        element = BYTES_PER_ELEMENT[self.dtype]
        return element * as_float(self.m) * (as_float(self.k) + as_float(self.n))

    @property
    def bytes(self) -> FloatArray:
        """Bytes that must cross the memory bus: n k + m (n + k) elements (Table 5)."""
        return self.weight_bytes + self.activation_bytes


def named_format(words: TextArray) -> Format | None:
    """The format that rows share; None where they name none. Raises ValueError for a word that is none."""
    word = str(words[0]).lower()
    return None if word in ("", "none") else format_of(word)


def attended_pairs(q_len: Size, kv_len: Size, *, causal: bool) -> FloatArray:
    """(query, key) pairs of one head: q s, without the upper triangle of the q x q corner where causal."""
    queries, keys = as_float(q_len), as_float(kv_len)
    return queries * (keys - (queries - 1.0) / 2.0) if causal else queries * keys


@dataclass(frozen=True, slots=True, kw_only=True)
class Attention(Operator):
    """An attention product of `batch` sequences, each with `q_len` queries over `kv_len` keys.

    `qk` and `pv` are the unfused products of Table 5 (kv_len = s there). The fused kinds do both
    products and the softmax in one kernel, and their `kv_len` includes the `q_len` new tokens.
    K and V are read once per sequence and `kv_heads`, however many queries attend to them.
    """

    FAMILY = "attention"
    STORED = "kv_dtype"
    COLUMNS = ("batch", "q_len", "kv_len", "heads", "kv_heads", "head_dim")
    AXES = ("batch", "q_len", "kv_len")
    ROWS = RowSchema(
        words={"kv_dtype": ""},
        splits=("kv_dtype",),
    )

    kind: AttentionKind
    batch: Size
    q_len: Size
    kv_len: Size
    heads: Size
    kv_heads: Size
    head_dim: Size
    kv_dtype: str | None = None

    @classmethod
    def row_fields(cls, kind: str, form: Format, numbers: Numbers, words: Words) -> dict[str, Any]:
        """The cache's dtype."""
        del kind, numbers
        cache = named_format(words["kv_dtype"])
        return {"kv_dtype": None if cache is None or cache.dtype == form.dtype else cache.dtype}

    @classmethod
    def faults(cls, kinds: TextArray, numbers: Numbers) -> Iterator[Fault]:
        """Query heads share K/V heads evenly; a fused kernel's kv_len includes its own new tokens."""
        uneven = numbers["heads"] % numbers["kv_heads"] != 0
        yield Fault(uneven, "kv_heads", "a divisor of heads", "heads")
        fused = ~np.isin(kinds, UNFUSED_KINDS)
        short = fused & (numbers["kv_len"] < numbers["q_len"])
        yield Fault(short, "kv_len", "at least q_len (kv_len includes the q_len new tokens)", "q_len")
        many = (kinds == "decode_attention") & (numbers["q_len"] != 1.0)
        yield Fault(many, "q_len", "1 for decode_attention (else verify_attention)")

    @property
    def is_fused(self) -> bool:
        """Whether one kernel does both products."""
        return self.kind not in UNFUSED_KINDS

    @property
    def is_causal(self) -> bool:
        """Whether the upper triangle of new tokens is skipped; a verification step masks it instead."""
        return self.kind == "prefill_attention"

    @property
    def attended_pairs(self) -> FloatArray:
        """(query, key) pairs of one head of one sequence.

        q s, except that causal prefill with a prefix skips the upper triangle of the q x q corner.
        A verification step computes the whole q x q corner and masks it (tree mask).
        """
        return attended_pairs(self.q_len, self.kv_len, causal=self.is_causal)

    @property
    def flops(self) -> FloatArray:
        """2 b n q s d for one product (Table 5); twice that for a fused kernel."""
        width = as_float(self.head_dim) * (4.0 if self.is_fused else 2.0)
        return width * as_float(self.batch) * as_float(self.heads) * self.attended_pairs

    @property
    def kv_bytes(self) -> FloatArray:
        """Bytes of K or V (unfused) or of both (fused), read once per sequence for all its queries."""
        element = BYTES_PER_ELEMENT[self.stored_dtype]
        width = as_float(self.head_dim) * (2.0 * element if self.is_fused else element)
        return width * as_float(self.batch) * as_float(self.kv_heads) * as_float(self.kv_len)

    @property
    def activation_bytes(self) -> FloatArray:
        """Bytes of queries, scores and outputs.

        Unfused (Table 5): b n q d for queries or outputs, b n s q for the scores. Fused: queries in
        and outputs out; the scores stay on chip.
        """
        element = BYTES_PER_ELEMENT[self.dtype]
        rows = element * as_float(self.batch) * as_float(self.heads) * as_float(self.q_len)
        if self.is_fused:
            return 2.0 * rows * as_float(self.head_dim)
        return rows * (as_float(self.head_dim) + as_float(self.kv_len))

    @property
    def bytes(self) -> FloatArray:
        """Bytes that must cross the memory bus. For `qk`/`pv`: b n (s q + (s + q) d) (Table 5)."""
        return self.kv_bytes + self.activation_bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Elementwise(Operator):
    """A kernel that is all memory traffic: m rows of width n (for the activation the output width)."""

    FAMILY = "elementwise"
    COLUMNS = ("m", "n")
    AXES = ("m",)
    SIZE = AXES

    kind: ElementwiseKind
    m: Size
    n: Size

    @property
    def flops(self) -> FloatArray:
        """A handful of operations per element; never what bounds such a kernel."""
        return _FLOPS_PER_ELEMENT[self.kind] * as_float(self.m) * as_float(self.n)

    @property
    def bytes(self) -> FloatArray:
        """Elements read and written, at the dtype's width."""
        touched = _TOUCHED_PER_ELEMENT[self.kind] * as_float(self.m) * as_float(self.n)
        return BYTES_PER_ELEMENT[self.dtype] * touched


_FLOPS_PER_ELEMENT: dict[str, float] = {
    "rms_norm": 4.0,  # square, sum, scale, weight
    "rope": 3.0,  # two products and a sum
    "activation": 5.0,  # SiLU (exp, add, divide, product) and the gate
    "residual": 1.0,
    "embedding": 0.0,
    "next_token": 4.0,  # as the norm whose kernel prices it where it has none of its own
}
_TOUCHED_PER_ELEMENT: dict[str, float] = {
    "rms_norm": 2.0,  # read, write
    "rope": 2.0,
    "activation": 3.0,  # gate and up read, one output written
    "residual": 3.0,  # two reads, one write
    "embedding": 2.0,
    "next_token": 2.0,
}


def operational_intensity(operator: Operator) -> FloatArray:
    """FLOPs per byte (Tables 6 to 8 print it beside TFLOP/s)."""
    return operator.flops / operator.bytes
