"""One kernel launch as a user of the GPU sees it: its shape, its FLOPs and the bytes it must move.

Each family of kernels is a subclass in a module of this folder: linear layers (`gemm`), `attention`,
`elementwise`, and those of `kinds`. Every FLOP and byte count of the project stands there and nowhere else.

Shapes are numpy arrays that broadcast against each other, so that one operator holds a whole grid.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import reduce
from operator import mul
from typing import Any, ClassVar, NamedTuple, Self, TypeAlias

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
GENERATION, CONTEXT, VERIFY = "generation", "context", "verify"


class Fault(NamedTuple):
    """Rows of a table that contradict themselves: where, and what `column` may be, given `beside`."""

    wrong: BoolArray
    column: str
    allowed: str
    beside: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Operator(ABC):
    """Interface of one kernel launch. A new operator is a subclass and a record in `operators.kinds`."""

    FAMILY: ClassVar[str]
    """Name for all kinds with these columns."""
    COLUMNS: ClassVar[tuple[str, ...]]
    """Names of its sizes, arrays of one shape."""
    AXES: ClassVar[tuple[str, ...]]
    """Sizes along which a time may be interpolated between measured rows, outer to inner."""
    LABELS: ClassVar[tuple[str, ...]] = ()
    """Fields other than sizes and dtypes that tell operators apart."""
    ROWS: ClassVar[RowSchema] = RowSchema()
    """How rows of a table describe it (`table.operators_of` passes their cells to `of_rows`)."""
    SIZE: ClassVar[tuple[str, ...]] = ("batch", "q_len")
    """Sizes whose product is `size`."""
    STORED: ClassVar[str] = "dtype"
    """Field with the dtype of weights or of K and V in memory; None there means `dtype`."""
    FITTED_BY_STORED: ClassVar[bool] = False
    """Whether kernels are fitted for each stored dtype, with any unpacking in their time."""

    name: str
    """Its place in the model."""
    kind: str
    """Kind of computation: the key of its latency, its calibration and its measurement."""
    dtype: str
    """Dtype of activations and arithmetic."""

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
        """Bytes that a GPU must send to others in one launch; None: the operator does not communicate."""
        return None

    @property
    def peers(self) -> Size:
        """GPUs that take part."""
        return 1

    @property
    def size(self) -> FloatArray:
        """The size that the bands of a kernel depend on: new tokens of one launch, or its bytes."""
        return reduce(mul, (as_float(getattr(self, name)) for name in self.SIZE))

    @classmethod
    def of_rows(cls, kind: str, form: Format, numbers: Numbers, words: Words) -> Self:
        """The operator for rows of a table with one kind, one format and the same words in `ROWS.splits`.

        form: dtypes of arithmetic and weights, from the rows' `dtype`. numbers, words: the columns named in
        ROWS, an entry a row. Raises ValueError for a word that is not a numeric format.
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
        """Fields that rows give under other names or in other units."""
        del kind, form, numbers, words
        return {}

    @classmethod
    def faults(cls, kinds: TextArray, numbers: Numbers) -> Iterator[Fault]:
        """Contradictions in rows of the family; kinds and numbers have an entry a row."""
        del kinds, numbers
        yield from ()

    @classmethod
    def row_numbers(cls) -> tuple[str, ...]:
        """Columns that a row of a table must fill."""
        return cls.ROWS.numbers or cls.COLUMNS

    @property
    def stored_dtype(self) -> str:
        """Dtype of what stays in memory between steps (weights, K and V); activations have `dtype`."""
        return str(getattr(self, self.STORED) or self.dtype)

    @property
    def unpacks(self) -> bool:
        """Whether the kernel converts stored numbers to the width of its arithmetic."""
        if self.FITTED_BY_STORED:
            return False
        return BYTES_PER_ELEMENT[self.stored_dtype] != BYTES_PER_ELEMENT[self.dtype]

    @property
    def form(self) -> str:
        """Key of its kernels: the numeric format (`units`)."""
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
        """The plain step's operator, which runs instead where one token is verified; None: this one."""
        return None

    @property
    def sizes(self) -> dict[str, Size]:
        """Sizes by the names of COLUMNS."""
        return {name: getattr(self, name) for name in self.COLUMNS}

    @property
    def key(self) -> tuple[str | Size, ...]:
        """Kind, dtypes, LABELS and sizes that are not on AXES: a measured row must match these exactly."""
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
        """The same operator with `change` applied to every size."""
        return self.with_columns(**{name: change(np.asarray(size)) for name, size in self.sizes.items()})


def named_format(words: TextArray) -> Format | None:
    """The format in cells that are all equal; None for blank ones. Raises ValueError for other words."""
    word = str(words[0]).lower()
    return None if word in ("", "none") else format_of(word)


def operational_intensity(operator: Operator) -> FloatArray:
    """FLOPs per byte (Tables 6 to 8 print it beside TFLOP/s)."""
    return operator.flops / operator.bytes
