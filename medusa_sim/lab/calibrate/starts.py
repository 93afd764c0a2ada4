"""Where fits begin, and what is known of libraries before: `starts.toml`."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from pathlib import Path

from medusa_sim.lab.calibrate.search import Limits
from medusa_sim.reading.documents import read_toml
from medusa_sim.reading.strict import T, convert

_STARTS = Path(__file__).with_name("starts.toml")


@cache
def starts(section: str, form: type[T]) -> T:
    """A section of `starts.toml`: where fits begin, and what is known of libraries."""
    return convert(read_toml(_STARTS)[section], form, _STARTS, key=section)


Triples = dict[str, dict[str, tuple[float, float, float]]]
"""Start, lowest and highest value of parameters, by kind."""


@dataclass(frozen=True, slots=True)
class Bounds:
    """Where the parameters that least squares finds start, and how far they may go."""

    starts: dict[str, float]
    limits: Limits

    @classmethod
    def of(cls, kind: str) -> Bounds:
        """Those of a kind in `starts.toml`."""
        given = starts("bounds", Triples)[kind]
        return cls(
            {name: start for name, (start, _, _) in given.items()},
            {name: (lowest, highest) for name, (_, lowest, highest) in given.items()},
        )

    def at(self, place: str) -> Limits:
        """The limits of a part of a kernel."""
        return {f"{place}.{name}": limit for name, limit in self.limits.items()}
