"""A kernel of a step: an operator, how often it is launched, and the slice of the step that it belongs to."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Literal, get_args

from medusa_sim.arrays import FloatArray
from medusa_sim.file_types import FILES
from medusa_sim.models.model import Model
from medusa_sim.operators.elementwise import Elementwise, ElementwiseKind
from medusa_sim.operators.gemm import Gemm
from medusa_sim.operators.operator import Operator, Size

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
class Launch:
    """An operator, how many times a step launches it, and which slice of the step it belongs to."""

    operator: Operator
    part: Part
    count: int = 1
    share: float = 1.0
    """Of its time as a kernel of its own, where an engine fuses it with others."""
    ends: tuple[Operator, Operator] | None = None
    """The same operator at the ends of an 80 % interval of an uncertain input (few, many); their times widen
    its band."""
    composed: tuple[Launch, ...] = ()
    """What stands for the operator where the latency model has no kernel of it."""
    role: Part | None = None
    """Slice of a drafter's own network that it belongs to, where `part` is `drafter`."""

    @property
    def attends(self) -> bool:
        """Whether it is attention, of the target or of a drafter."""
        return "attention" in (self.part, self.role)

    def mapped(self, change: Callable[[FloatArray], FloatArray]) -> Launch:
        """With every size replaced by what `change` makes of it."""
        operator, *ends = (other.mapped(change) for other in (self.operator, *(self.ends or ())))
        return replace(self, operator=operator, ends=None if self.ends is None else (ends[0], ends[1]))

    @property
    def kernel_count(self) -> int:
        """Launches of a step: a module is as many as what it is composed of."""
        return sum(launch.kernel_count for launch in self.composed) or self.count


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
