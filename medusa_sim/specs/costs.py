"""What a card draws and costs: watts as they follow from bytes, FLOPs and sampling, and prices of an hour.

`[power]` of a hardware file holds the limit with its source, and either `[power.fit]`, parameters fitted to
measured watts of this card, or `inherit = "GPU"`: the parameters of a measured card, scaled so that the same
shares of bandwidth, peak and time draw the same share of the limit. The law is `step/watts.py`.

`profiles/prices.toml` holds offers of an hour of a GPU with their dates and sources. A price without a date
is refused, and one that is used is named with its date (`Price.text`): prices age.
"""

from __future__ import annotations

import datetime
from dataclasses import dataclass
from functools import lru_cache
from typing import Annotated, TypeAlias

import msgspec
from msgspec import Meta

from medusa_sim import data
from medusa_sim.data import DataDir
from medusa_sim.errors import SpecError, UsageError
from medusa_sim.reading import FileState, file_state, read_toml
from medusa_sim.specs.strict import Error, Schema, Sourced, Text, convert

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


PRICES = "prices.toml"
STALE_DAYS = 90
"""Age from which a price is no longer used without a warning."""
GIVEN = "given"
"""Offer of a price that came with the question."""
LARGEST_USD = 1_000.0
"""Per GPU-hour; above it the number is no price of one GPU."""

Usd: TypeAlias = Annotated[float, Meta(gt=0.0, le=LARGEST_USD, description="US dollars per GPU-hour")]
Day: TypeAlias = Annotated[
    datetime.date, Meta(description="the day on which the price held, as in 2026-11-09")
]


class Price(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """What somebody asks for an hour of one GPU, and when; offer: who, and for what."""

    gpu: Text
    usd_per_gpu_hour: Usd
    offer: Text
    date: Day
    source: Text
    note: str = ""

    def age_days(self, today: datetime.date | None = None) -> int:
        """Days since the price held (today None: by the clock)."""
        return ((today or datetime.date.today()) - self.date).days

    def text(self, today: datetime.date | None = None) -> str:
        """The price as a sentence names it; where it is older than STALE_DAYS that is said."""
        line = f"${self.usd_per_gpu_hour:g} per GPU-hour of {self.gpu}"
        if self.offer == GIVEN:
            return line
        line += f" ({self.offer}, {self.date})"
        age = self.age_days(today)
        if age <= STALE_DAYS:
            return line
        return f"{line}: {age} days old, and prices older than {STALE_DAYS} days mislead"


class _PricesToml(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """`profiles/prices.toml` as it stands there."""

    schema: Schema
    price: tuple[Price, ...]


def prices(data_dir: DataDir = None) -> tuple[Price, ...]:
    """Every offer; GPUs of the user's own file replace the shipped rows of the same GPU.

    Raises SpecError naming file and key for a row without date or source, one dated in the future, or a
    malformed file.
    """
    listed: list[Price] = []
    for root in data.data_roots(data_dir):
        path = root / "profiles" / PRICES
        if path.is_file():
            known = {price.gpu for price in listed}
            listed += [price for price in _read(file_state(path)) if price.gpu not in known]
    return tuple(listed)


@lru_cache(maxsize=8)
def _read(state: FileState) -> tuple[Price, ...]:
    rows = convert(read_toml(state.path, "a table of prices"), _PricesToml, state.path).price
    for number, price in enumerate(rows):
        if price.age_days() < -1:  # a day for the other side of the date line
            raise SpecError(
                f"{state.path}: price[{number}].date: given {price.date}; allowed: a day that has come"
            )
    return rows


def price_of(gpu: str, data_dir: DataDir = None) -> Price | None:
    """The first offer of a GPU; None where there is none. Raises SpecError from loading."""
    return next((price for price in prices(data_dir) if price.gpu == gpu), None)


def given_price(gpu: str, usd_per_gpu_hour: float) -> Price:
    """A price that came with the question. Raises UsageError outside (0, LARGEST_USD]."""
    if not 0.0 < usd_per_gpu_hour <= LARGEST_USD:
        raise UsageError(
            f"price {usd_per_gpu_hour:g}: dollars per GPU-hour above 0, at most {LARGEST_USD:g}, are allowed"
        )
    return Price(
        gpu=gpu,
        usd_per_gpu_hour=float(usd_per_gpu_hour),
        offer=GIVEN,
        date=datetime.date.today(),
        source="given with the question",
    )
