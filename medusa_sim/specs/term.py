"""One number of an engine, with its source, its band and where it was measured.

host_us_per_step = { value = 391, band = 0.6, source = "...", measured = { ... }, note = "..." }
"""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta

from medusa_sim.specs.ranges import Case, Deviation, Elsewhere, Measured, Side, widening
from medusa_sim.specs.strict import Error, Text


class GivenTerm(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """One number of an engine as a file has it."""

    value: Annotated[float, Meta(ge=0.0, le=1e6)]
    source: Text
    band: Annotated[float, Meta(ge=0.0, le=100.0)] = 0.0
    """Relative half-width of its 80 % interval."""
    measured: Measured | None = None
    """Where it was measured; None: where all terms of its engine were."""
    valid: str = ""
    """What of that `measured` has no field for."""
    elsewhere: tuple[Elsewhere, ...] = ()
    """What stands for it outside that range."""
    deviations: tuple[Deviation, ...] = ()
    """By how much it differs in some set-ups, where nothing stands for it."""
    heldout_error: Error | None = None
    """Mean relative error of the step times that it predicts where they were left out of the fit; None where
    none was."""
    note: str = ""


class Term(GivenTerm, frozen=True, kw_only=True):
    """One number of an engine, as it holds in a set-up."""

    inherited_from: str = ""
    """The engine that was measured instead; empty: its own."""
    outside: tuple[Side, ...] = ()
    """Ranges outside of which the set-up lies that it was taken for (`at`)."""
    rule: str = ""
    """What stands for it there."""

    @property
    def half_width(self) -> float:
        """Half of the 80 % interval, in the unit of the term."""
        return self.value * self.band

    def at(self, case: Case) -> Term:
        """The term in a set-up; outside its range what stands for it, or with a wider band."""
        outside = () if self.measured is None else self.measured.outside(case)
        for other in self.elsewhere:
            if other.holds(case, outside):
                return msgspec.structs.replace(
                    self, value=other.value, band=other.band, source=other.source, rule=other.rule,
                    outside=outside if other.outside else (), heldout_error=None,
                )  # fmt: skip
        value = self.value
        for deviation in self.deviations:
            if deviation.holds(case):
                value = max(value * deviation.times + deviation.plus, 0.0)
        if not outside and value == self.value:
            return self
        band = widening(outside) * self.band if outside else self.band
        return msgspec.structs.replace(self, value=value, band=band, outside=outside)
