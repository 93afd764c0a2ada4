"""One cell: every quantity of the catalogue by its name, at one batch and length; the best of many."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from math import isnan
from typing import Any

import numpy as np

from medusa_sim.arrays import BoolArray, FloatArray
from medusa_sim.grid.cells import Cells
from medusa_sim.grid.quantities import values
from medusa_sim.grid.quantity import BY_NAME
from medusa_sim.scenario.draft_options import DraftOption


@dataclass(frozen=True, kw_only=True, eq=False)
class Cell:
    """A view of cells at the indices `b` (batch), `s` (length) and `k`, whose attributes are quantities."""

    cells: Cells
    b: int
    s: int
    k: int = 0

    def __getattr__(self, name: str) -> Any:
        """A quantity of `quantities`; None where it has no value."""
        if name not in BY_NAME or BY_NAME[name].read is None:
            raise AttributeError(name)
        return self._read(values(self.cells, [name])[name])

    @property
    def batch(self) -> int:
        """Sequences of a step."""
        return int(self.cells.surface.batch[self.b])

    @property
    def candidates(self) -> int:
        """Tokens that a step verifies of each, root included."""
        return int(self.cells.configurations.candidates[self.configuration])

    @property
    def configuration(self) -> int:
        """Index of what it runs among all configurations."""
        return self.cells.configuration_at(self.b, self.s, self.k)

    @property
    def option(self) -> DraftOption | None:
        """The way in which it drafts; None for plain decoding."""
        return self.cells.configurations.option_of(self.configuration)

    def _read(self, value: Any) -> Any:
        """The number of this cell, of an array over all cells."""
        if isinstance(value, str):
            return value
        number = self.cells.spread(value)[self.b, self.s, self.k].item()
        return None if isnan(number) else number

    def quantities(self, names: Iterable[str]) -> dict[str, Any]:
        """Some quantities by name."""
        return {name: getattr(self, name) for name in names}


def best_cell(cells: Cells, allowed: BoolArray, worth: FloatArray, s: int | None = None) -> Cell | None:
    """The allowed cell of most worth, at one length or (None) at any; None where none is allowed."""
    lengths = slice(s, None if s is None else s + 1)
    inside = cells.spread(allowed)[:, lengths]
    if not inside.any():
        return None
    values = np.where(inside, cells.spread(worth)[:, lengths], -np.inf)
    b, place, k = map(int, np.unravel_index(int(np.argmax(values)), values.shape))
    return Cell(cells=cells, b=b, s=(s or 0) + place, k=k)
