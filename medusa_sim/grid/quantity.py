"""The catalogue of quantities, each declared once: its name with the unit, its title, how it is read.

A room declares the quantities that it computes in its `quantities`, and lists there what the rows of its
commands hold. A quantity that is read from cells or runs and that no list names stands in the rows of every
command, last (`with_unlisted`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from medusa_sim.arrays import Band
from medusa_sim.grid.cells import Cells

Unit = Literal["us", "s", "per_s", "ratio", "times", "share", "bytes", ""]


@dataclass(frozen=True, slots=True, kw_only=True)
class Quantity:
    """One quantity.

    Values are read from `Cells` and broadcast with them. Others are attributes of a row of a schedule, or
    results of a run under load, a comparison or an answer, which fill them in by name.
    """

    name: str
    """Column and key, its unit at the end."""
    read: Callable[[Cells], Any] | None = None
    """Its values; text for what is the same of a whole scenario."""
    title: str = ""
    """Heading in tables for people; empty: it stands in none."""
    unit: Unit = ""
    """Its form in tables: a time, a rate, a ratio, a speedup, a share, bytes; empty: a number."""
    digits: int = 3
    """Significant digits of a number."""
    axis: str = ""
    """Title of a chart's axis; empty: the title."""
    phrase: str = ""
    """In a sentence, with {} for the number."""
    better: Literal["more", "less", ""] = ""
    """Which is better."""
    low_high: Callable[[Cells], Band] | None = None
    """Ends of its 80 % interval, themselves quantities: the name with _low and _high."""
    model_only: bool = False
    """Empty for `scope="block"`, which is one block and not a model."""
    labels: tuple[str, ...] = ()
    """Words that its values are codes for."""
    read_run: Callable[[Mapping[str, float]], float] | None = None
    """Its value in a run under load, from the run's other results."""

    @property
    def on_axis(self) -> str:
        """Title of a chart's axis."""
        return self.axis or self.title

    @property
    def end_quantities(self) -> Iterator[Quantity]:
        """Both ends of the interval, none without one."""
        if (low_high := self.low_high) is not None:
            for end, name in enumerate(both_ends(self.name)):
                yield Quantity(name=name, read=_end(low_high, end), model_only=self.model_only)


def _end(low_high: Callable[[Cells], Band], end: int) -> Callable[[Cells], Any]:
    return lambda cells: low_high(cells)[end]


BY_NAME: dict[str, Quantity] = {}
"""Every quantity of the rooms that were imported."""
_LISTED: set[str] = set()


def declare(*quantities: Quantity) -> tuple[Quantity, ...]:
    """Take quantities into the catalogue, with the ends of their intervals."""
    for quantity in quantities:
        BY_NAME.update({named.name: named for named in (quantity, *quantity.end_quantities)})
    return quantities


def listed(*names: str) -> tuple[str, ...]:
    """The columns of a command's rows, in their order; both ends of what is listed need not be."""
    _LISTED.update(names, both_ends(*names))
    return names


def both_ends(*names: str) -> tuple[str, ...]:
    """Names of both ends of the 80 % intervals of quantities."""
    return tuple(f"{name}_{end}" for name in names for end in ("low", "high"))


def unlisted() -> list[Quantity]:
    """Quantities that no command lists."""
    return [quantity for name, quantity in BY_NAME.items() if name not in _LISTED]


def with_unlisted(names: Iterable[str]) -> tuple[str, ...]:
    """Columns of a command's rows, and the quantities of cells that no command lists, last."""
    return (*names, *(quantity.name for quantity in unlisted() if quantity.read is not None))
