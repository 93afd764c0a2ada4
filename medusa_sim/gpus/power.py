"""Power of a GPU: its limit, and the parameters of the law in `serving/watts.py`.

`[power]` of a hardware file holds the limit with its source, and either `[power.fit]`, parameters fitted to
measured watts of this GPU, or `inherit = "GPU"`: the parameters of a measured GPU, scaled to draw the same
share of the limit at the same shares of bandwidth, peak and time.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, TypeAlias

import msgspec
from msgspec import Meta

from medusa_sim.reading.strict import Error, Sourced, Text

TRANSFER_ERROR = 0.3
"""Relative 80 % half-width of watts by another GPU's parameters; assumed, not measured."""

Watts: TypeAlias = Annotated[float, Meta(gt=0.0, le=1e5, description="watts")]
Joule: TypeAlias = Annotated[float, Meta(ge=0.0, le=1e-6, description="joule")]


class PowerFit(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Fitted parameters of one GPU.

    idle_watts: with clocks up and nothing running. joule_per_byte: over the memory bus; joule_per_cache_byte:
    of grouped attention, which computes whole tiles of rows for a byte of K and V. joule_per_flop: in
    `dtype`; other dtypes draw the same at the same share of their peak. sampling_watts: above idle while an
    engine filters logits, before the limit applies. error: relative 80 % half-width. heldout_error: mean
    relative error for models that a refit did not see.
    """

    idle_watts: Watts
    joule_per_byte: Joule
    joule_per_cache_byte: Joule
    joule_per_flop: Joule
    dtype: Text
    sampling_watts: Annotated[float, Meta(ge=0.0, le=1e5, description="watts")]
    error: Error
    source: Text
    rows: Annotated[int, Meta(ge=1)]
    fit_error: Error
    heldout_error: Error


class PowerToml(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """`[power]` of a hardware file as it stands there."""

    limit_watts: Sourced[Watts]
    fit: PowerFit | None = None
    inherit: Text | None = None

    def __post_init__(self) -> None:
        """Raises ValueError unless exactly one of fit and inherit is given."""
        if (self.fit is None) == (self.inherit is None):
            raise ValueError(
                'give either [power.fit], fitted to watts of this GPU, or inherit = "GPU", the GPU whose '
                "parameters are scaled by the limit"
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class Power:
    """Power limit of a GPU and its parameters; lender: the GPU they were measured on, if another."""

    limit_watts: float
    fit: PowerFit
    lender: str = ""


def scaled(fit: PowerFit, dtype: str, *, limit: float, peak: float, bandwidth: float) -> PowerFit:
    """A lender's parameters on another GPU: the same share of the limit at the same shares of the rates.

    dtype: one that the other GPU has. limit, peak, bandwidth: the other GPU's over the lender's.
    """
    return msgspec.structs.replace(
        fit,
        idle_watts=fit.idle_watts * limit,
        joule_per_byte=fit.joule_per_byte * limit / bandwidth,
        joule_per_cache_byte=fit.joule_per_cache_byte * limit / bandwidth,
        joule_per_flop=fit.joule_per_flop * limit / peak,
        dtype=dtype,
        sampling_watts=fit.sampling_watts * limit,
        error=max(fit.error, TRANSFER_ERROR),
    )
