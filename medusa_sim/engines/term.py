"""One number of an engine, with its source, its band and where it was measured.

host_us_per_step = { value = 391, band = 0.6, source = "...", measured = { ... }, note = "..." }
"""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta

from medusa_sim.engines.case import Case
from medusa_sim.engines.ranges import Deviation, Elsewhere, MeasuredRange, Side, band_factor
from medusa_sim.reading.strict import Error, Text


class GivenTerm(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """One number of an engine as a file gives it."""

    value: Annotated[float, Meta(ge=0.0, le=1e6)]
    source: Text
    band: Annotated[float, Meta(ge=0.0, le=100.0)] = 0.0
    """Relative half-width of its 80 % interval."""
    measured: MeasuredRange | None = None
    """Where it was measured; None: where all terms of its engine were measured."""
    valid: str = ""
    """Conditions of the measurement that `measured` has no field for."""
    elsewhere: tuple[Elsewhere, ...] = ()
    """Values that replace it elsewhere."""
    deviations: tuple[Deviation, ...] = ()
    """By how much it differs in some set-ups where nothing replaces it."""
    heldout_error: Error | None = None
    """Mean relative error of step times that were left out of the fit; None: none were."""
    note: str = ""


class Term(GivenTerm, frozen=True, kw_only=True):
    """One number of an engine in a set-up."""

    inherited_from: str = ""
    """The engine that it was measured in instead; empty: its own."""
    outside: tuple[Side, ...] = ()
    """Ranges that the set-up passed to `at` is outside of."""
    rule: str = ""
    """The rule that replaced its value there; empty: none."""

    @property
    def half_width(self) -> float:
        """Half of its 80 % interval, in the unit of the term."""
        return self.value * self.band

    def at(self, case: Case) -> Term:
        """The term in a set-up; outside its range another value, or a wider band."""
        measured = None if self.measured is None else self.measured.at(case.form)
        outside = () if measured is None else measured.sides_beyond(case)
        for other in self.elsewhere:
            if other.replaces(case, outside):
                return msgspec.structs.replace(
                    self, value=other.value, band=other.band, source=other.source, rule=other.rule,
                    outside=outside if other.outside else (), heldout_error=None, measured=measured,
                )  # fmt: skip
        value = self.value
        for deviation in self.deviations:
            if deviation.holds(case):
                value = max(value * deviation.times + deviation.plus, 0.0)
        if not outside and value == self.value and measured is self.measured:
            return self
        band = band_factor(outside) * self.band if outside else self.band
        return msgspec.structs.replace(self, value=value, band=band, outside=outside, measured=measured)
