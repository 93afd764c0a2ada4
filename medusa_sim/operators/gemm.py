"""A linear layer, its FLOPs and the bytes it must move (Table 5 of the Medusa paper)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from medusa_sim.arrays import FloatArray, as_float
from medusa_sim.operators.operator import Operator, Size
from medusa_sim.units import BYTES_PER_ELEMENT


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
    """Dtype of the stored weights; None: `dtype`."""

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
