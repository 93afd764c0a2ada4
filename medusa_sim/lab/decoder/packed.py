"""Weights laid out once as a CPU's library multiplies with them quickest (`decode --packed`).

torch's own linear layer gives oneDNN the weight row by row, and the library lays it out again in every call.
What several rows cost over one is then the library's curve, not the CPU's: packed, four rows of a layer that
lies in no cache take as long as one. A packed layer holds its weight twice.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from medusa_sim.errors import UsageError

PACKED_FROM = 131_072
"""Elements of a weight from which packing pays: 128 x 384 takes up to three times as long, 256 x 704 half to
four fifths of the time (fp32 and bf16, 1 to 8 rows, one thread of an EPYC)."""
_LIBRARY: Any = torch.ops.mkldnn


def reordered(weight: Tensor) -> Tensor:
    """A weight (out, in) as oneDNN wants it, opaque to torch. Raises UsageError where it has none."""
    try:
        packed: Tensor = _LIBRARY._reorder_linear_weight(weight.detach())
    except RuntimeError as error:
        raise UsageError(
            f"weights in {weight.dtype} cannot be packed on this CPU ({str(error).splitlines()[0]}); "
            "give fp32, or leave out --packed"
        ) from None
    return packed


def product(x: Tensor, weight: Tensor, packed: Tensor, bias: Tensor | None = None) -> Tensor:
    """X (..., in) times a weight in the form that is quicker: one row in fp32 goes to torch's own product."""
    if x.dtype == torch.float32 and x.numel() == x.shape[-1]:
        return functional.linear(x, weight, bias)
    out: Tensor = _LIBRARY._linear_pointwise(x, packed, bias, "none", [], "")
    return out


class PackedLinear(nn.Module):
    """A linear layer with its weight in both forms; made last, since it follows no cast and no move."""

    def __init__(self, plain: nn.Linear) -> None:
        super().__init__()
        self.weight, self.bias = plain.weight, plain.bias
        self._packed = reordered(plain.weight)

    def forward(self, x: Tensor) -> Tensor:
        """(..., in) -> (..., out)."""
        return product(x, self.weight, self._packed, self.bias)


def is_packed(outputs: int, inputs: int) -> bool:
    """Whether packing pays for a weight of that size."""
    return outputs * inputs >= PACKED_FROM


def pack(*modules: nn.Module | None) -> None:
    """Packs the linear layers of models and heads for which it pays. Raises UsageError off the CPU."""
    for module in modules:
        for parent in [] if module is None else list(module.modules()):
            for name, child in list(parent.named_children()):
                if isinstance(child, nn.Linear) and is_packed(*child.weight.shape):
                    _require(child.weight)
                    parent.add_module(name, PackedLinear(child))


def _require(weight: Tensor) -> None:
    if weight.device.type != "cpu" or not torch._C._has_mkldnn:
        raise UsageError(
            f"weights on {weight.device} cannot be packed: that takes a CPU whose torch has oneDNN; "
            "leave out --packed"
        )
    if weight.dtype not in (torch.float32, torch.bfloat16):
        raise UsageError(
            f"weights in {weight.dtype} cannot be packed: fp32 or bf16 can; give one, or leave out --packed"
        )
