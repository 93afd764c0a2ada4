"""Kernels that mostly read and write rows: norms, rotations, activations, additions, copies."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

from medusa_sim.arrays import FloatArray, as_float
from medusa_sim.operators.operator import Operator, Size
from medusa_sim.units import BYTES_PER_ELEMENT

ElementwiseKind = Literal["rms_norm", "rope", "activation", "residual", "embedding", "next_token"]
READ_AND_WRITE: ElementwiseKind = "rope"
"""Kind for any pass that reads and writes each row once; rotary embeddings were measured."""
ELEMENTWISE_KINDS: tuple[str, ...] = get_args(ElementwiseKind)
_FLOPS_PER_ELEMENT: dict[str, float] = {
    "rms_norm": 4.0,  # square, sum, scale, weight
    "rope": 3.0,  # two products and a sum
    "activation": 5.0,  # SiLU (exp, add, divide, product) and the gate
    "residual": 1.0,
    "embedding": 0.0,
    "next_token": 4.0,  # as for the norm, whose kernel prices it where it was not fitted
}
_TOUCHED_PER_ELEMENT: dict[str, float] = {
    "rms_norm": 2.0,  # read, write
    "rope": 2.0,
    "activation": 3.0,  # gate and up read, one output written
    "residual": 3.0,  # two reads, one write
    "embedding": 2.0,
    "next_token": 2.0,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Elementwise(Operator):
    """A kernel bound by memory traffic: m rows of width n (for the activation its output width)."""

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
