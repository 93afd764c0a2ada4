"""What every table of fitted parameters in `hardware/<gpu>.toml` shares: ranges of numbers, fit and bands."""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta

from medusa_sim.reading.strict import Error, Text
from medusa_sim.units import SCALED

Share = Annotated[float, Meta(gt=0.0, le=1e3, description="(a share of the datasheet's rate)")]
Ratio = Annotated[float, Meta(ge=0.0, le=1e6)]
Rate = Annotated[float, Meta(gt=0.0, le=1e6)]
Part = Annotated[float, Meta(ge=0.0, le=1.0)]
UNSEEN_TOGETHER = 0.5
"""`Fit.together` of what stands in on the same GPU: no whole step tells it (chosen)."""
Count = Annotated[int, Meta(ge=0, le=1_000_000_000)]
Size = Annotated[int, Meta(ge=1, le=1_000_000)]
Norm = Annotated[float, Meta(gt=0.0, le=1e3, description="(the exponent of a norm)")]


class Residual(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """80 % band of measured / predicted on held-out shapes, over a range of sizes."""

    size_max: Annotated[float, Meta(ge=0.0)]
    """Largest `Operator.size` that it is for, such as the m of a GEMM or the q_len x batch of attention."""
    low: Annotated[float, Meta(gt=0.0, le=1e6)]
    """Lower end, a factor on the predicted time."""
    high: Annotated[float, Meta(gt=0.0, le=1e6)]
    """Upper end."""

    def __post_init__(self) -> None:
        """Refuse a band that encloses nothing. Raises ValueError."""
        if self.low > self.high:
            raise ValueError(f"low {self.low:g} is above high {self.high:g}; calibrate again")


class Fit(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Where a table of kernel parameters comes from and how well it does."""

    source: Text
    rows: Size
    """Measured rows that it was fitted to."""
    fit_error: Error
    """Mean absolute error of time on these rows, as a fraction."""
    heldout_error: Error
    """The same with whole shapes held out."""
    residuals: tuple[Residual, ...]
    inherited_from: str = ""
    """`gpu:set:key` of the kernel whose efficiencies were borrowed; empty where this GPU was measured."""
    slower: Rate = 1.0
    """How many times as long a borrowed kernel takes here as those efficiencies say."""
    together: Part = UNSEEN_TOGETHER
    """By which part of its band a borrowed kernel is off together with all of its kind (`inheritance`)."""

    @property
    def lender(self) -> str:
        """Name of the GPU of `inherited_from`; empty where nothing was borrowed."""
        return self.inherited_from.partition(":")[0]

    def is_borrowed(self, gpu: str) -> bool:
        """Whether it stands in for a kernel that nobody measured on this GPU.

        Of another GPU; or of this one's other library, for a format that libraries compute each in its way.
        """
        return self.lender not in ("", gpu) or self.inherited_from.rpartition(":")[2] in SCALED
