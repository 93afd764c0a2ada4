"""Prices of an hour of a GPU: offers in `profiles/prices.toml`, each with its date and source.

A price without a date is refused, and one that is used is named with its date (`Price.text`): prices age.
"""

from __future__ import annotations

import datetime
from functools import lru_cache
from typing import Annotated, TypeAlias

import msgspec
from msgspec import Meta

from medusa_sim import data
from medusa_sim.data import DataDir
from medusa_sim.errors import SpecError, UsageError
from medusa_sim.reading.documents import read_toml
from medusa_sim.reading.files import FileState, file_state
from medusa_sim.reading.strict import Schema, Text, convert

PRICES_FILE = "prices.toml"
STALE_DAYS = 90
"""Days after which a price comes with a warning."""
GIVEN = "given"
"""The `offer` of a price that the user gave."""
LARGEST_USD = 1_000.0
"""Most dollars per GPU-hour; more cannot be the price of one GPU."""

Usd: TypeAlias = Annotated[float, Meta(gt=0.0, le=LARGEST_USD, description="US dollars per GPU-hour")]
Day: TypeAlias = Annotated[
    datetime.date, Meta(description="the day on which the price was valid, as in 2026-11-09")
]


class Price(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The price of an hour of one GPU on a date; offer: who offers what."""

    gpu: Text
    usd_per_gpu_hour: Usd
    offer: Text
    date: Day
    source: Text
    note: str = ""

    def age_days(self, today: datetime.date | None = None) -> int:
        """Days since the price was valid; today: None for the current date."""
        return ((today or datetime.date.today()) - self.date).days

    def text(self, today: datetime.date | None = None) -> str:
        """The price as a sentence names it, with a warning where it is older than STALE_DAYS."""
        line = f"${self.usd_per_gpu_hour:g} per GPU-hour of {self.gpu}"
        if self.offer == GIVEN:
            return line
        line += f" ({self.offer}, {self.date})"
        age = self.age_days(today)
        if age <= STALE_DAYS:
            return line
        return f"{line}: {age} days old, and prices older than {STALE_DAYS} days mislead"


class _File(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """`profiles/prices.toml` as it stands there."""

    schema: Schema
    price: tuple[Price, ...]


def prices(data_dir: DataDir = None) -> tuple[Price, ...]:
    """Every offer; a GPU in the user's own file replaces the shipped offers for it.

    Raises SpecError naming file and key for a row without date or source, one dated in the future, or a
    malformed file.
    """
    listed: list[Price] = []
    for root in data.data_roots(data_dir):
        path = root / "profiles" / PRICES_FILE
        if path.is_file():
            known = {price.gpu for price in listed}
            listed += [price for price in _read(file_state(path)) if price.gpu not in known]
    return tuple(listed)


@lru_cache(maxsize=8)
def _read(state: FileState) -> tuple[Price, ...]:
    rows = convert(read_toml(state.path, "a table of prices"), _File, state.path).price
    for number, price in enumerate(rows):
        if price.age_days() < -1:  # a day for the other side of the date line
            raise SpecError(
                f"{state.path}: price[{number}].date: given {price.date}; allowed: today or earlier"
            )
    return rows


def price_of(gpu: str, data_dir: DataDir = None) -> Price | None:
    """The first offer for a GPU; None where there is none. Raises as `prices`."""
    return next((price for price in prices(data_dir) if price.gpu == gpu), None)


def given_price(gpu: str, usd_per_gpu_hour: float) -> Price:
    """A price that the user gave. Raises UsageError outside (0, LARGEST_USD]."""
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
