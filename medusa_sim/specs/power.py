"""What a card draws: its power limit, and how watts follow from bytes, FLOPs and sampling.

`[power]` of a hardware file holds the limit with its source, and either `[power.fit]`, parameters fitted to
measured watts of this card, or `inherit = "GPU"`: the parameters of a measured card, scaled so that the same
shares of bandwidth, peak and time draw the same share of the limit. The law is `step/power.py`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, TypeAlias

import msgspec
from msgspec import Meta

from medusa_sim.errors import SpecError
from medusa_sim.specs.strict import Error, Sourced, Text

TRANSFER_ERROR = 0.3
"""80 % half-width, relative, of watts whose parameters come from another card; assumed, nothing measured."""

Watts: TypeAlias = Annotated[float, Meta(gt=0.0, le=1e5, description="watts")]
Joule: TypeAlias = Annotated[float, Meta(ge=0.0, le=1e-6, description="joule")]


class PowerFit(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Fitted parameters of one card.

    idle_watts: of a card that is on and runs nothing, its clocks up. joule_per_byte: over the memory bus.
    joule_per_flop: in `dtype`; other dtypes draw the same at the same share of their peak. sampling_watts:
    above idle while an engine filters logits, before the limit. error: 80 % half-width, relative.
    heldout_error: mean, of models that were left out of a refit.
    """

    idle_watts: Watts
    joule_per_byte: Joule
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Power:
    """Limit of a card and the parameters of its watts; lender: the measured card where it is another."""

    limit_watts: float
    fit: PowerFit
    lender: str = ""


def check_power(given: PowerToml, where: str) -> None:
    """Raise SpecError where fit and inherit are both there or both missing."""
    if (given.fit is None) == (given.inherit is None):
        raise SpecError(
            f'{where}: power: give either [power.fit], fitted to watts of this card, or inherit = "GPU", the '
            "card whose parameters are scaled by the limit"
        )


def scaled(fit: PowerFit, dtype: str, *, limit: float, peak: float, bandwidth: float) -> PowerFit:
    """The same share of the limit at the same share of bandwidth, of peak and of time.

    dtype: of the card that inherits; limit, peak, bandwidth: its own over those of the card that lends.
    """
    return msgspec.structs.replace(
        fit,
        idle_watts=fit.idle_watts * limit,
        joule_per_byte=fit.joule_per_byte * limit / bandwidth,
        joule_per_flop=fit.joule_per_flop * limit / peak,
        dtype=dtype,
        sampling_watts=fit.sampling_watts * limit,
        error=max(fit.error, TRANSFER_ERROR),
    )
