"""What is declared of a quantity: its name with the unit, its title, how it is read and shown."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from medusa_sim.arrays import Band
from medusa_sim.grid.cells import Cells

Unit = Literal["us", "s", "per_s", "ratio", "times", "share", "bytes", ""]


@dataclass(frozen=True, slots=True, kw_only=True)
class Quantity:
    """One quantity."""

    name: str
    """Column and key, its unit at the end."""
    read: Callable[[Cells], Any] | None = None
    """Its values; text for what is the same of a whole scenario."""
    title: str = ""
    """Heading in tables for people; empty: it stands in none."""
    unit: Unit = ""
    """How tables show it: a time, a rate, a ratio, a speedup, a share, bytes; empty: a number."""
    digits: int = 3
    """Significant digits of a number."""
    axis: str = ""
    """Title of a chart's axis; empty: the title."""
    phrase: str = ""
    """In a sentence, with {} for the number."""
    better: Literal["more", "less", ""] = ""
    """Which is better."""
    low_high: Callable[[Cells], Band] | None = None
    """Ends of its 80 % interval, themselves quantities named with `ends`."""
    ends: tuple[str, str] = ("", "")
    """Names of these; empty: the name with _low and _high."""
    model_only: bool = False
    """Empty for `scope="block"`, which is one block and not a model."""
    labels: tuple[str, ...] = ()
    """Words that its values are codes for."""
    read_run: Callable[[Mapping[str, float]], float] | None = None
    """Its value in a run under load, from the run's other results."""

    @property
    def on_axis(self) -> str:
        """What a chart's axis says."""
        return self.axis or self.title
