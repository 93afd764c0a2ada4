"""What every table of fitted kernel parameters shares: ranges of its numbers, its fit and its bands."""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta

from medusa_sim.specs.formats import SCALED
from medusa_sim.specs.strict import Error, Text

Share = Annotated[float, Meta(gt=0.0, le=1e3, description="(a share of the datasheet's rate)")]
Ratio = Annotated[float, Meta(ge=0.0, le=1e6)]
Rate = Annotated[float, Meta(gt=0.0, le=1e6)]
Count = Annotated[int, Meta(ge=0, le=1_000_000_000)]
Size = Annotated[int, Meta(ge=1, le=1_000_000)]
Norm = Annotated[float, Meta(gt=0.0, le=1e3, description="(the exponent of a norm)")]


class Residual(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """80 % band of measured / predicted on held-out shapes, for sizes up to `size_max`.

    The size is m for a GEMM, q_len x batch for attention, m for elementwise kernels.
    """

    size_max: Annotated[float, Meta(ge=0.0)]
    low: Annotated[float, Meta(gt=0.0, le=1e6)]
    high: Annotated[float, Meta(gt=0.0, le=1e6)]

    def __post_init__(self) -> None:
        """Refuse a band that encloses nothing. Raises ValueError."""
        if self.low > self.high:
            raise ValueError(f"low {self.low:g} is above high {self.high:g}; calibrate again")


class Fit(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Where a table of kernel parameters comes from and how well it does.

    `fit_error` and `heldout_error` are mean absolute percentage errors of time as fractions: on the
    rows of the fit, and with whole held-out shapes. `inherited_from` names the GPU whose
    efficiencies were borrowed, and is empty where the GPU itself was measured.
    """

    source: Text
    rows: Size
    fit_error: Error
    heldout_error: Error
    residuals: tuple[Residual, ...]
    inherited_from: str = ""

    @property
    def lender(self) -> str:
        """Name of the GPU of `inherited_from`; empty where nothing was borrowed."""
        return self.inherited_from.partition(":")[0]

    def is_borrowed(self, gpu: str) -> bool:
        """Whether it stands in for a kernel that nobody measured on this GPU.

        Of another GPU; or of this one's other library, for a format that libraries compute each in its way.
        """
        return self.lender not in ("", gpu) or self.inherited_from.rpartition(":")[2] in SCALED
