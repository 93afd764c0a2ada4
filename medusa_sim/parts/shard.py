"""A share of the parts of a work, for a machine that knows nothing of others."""

from __future__ import annotations

import re
from dataclasses import dataclass

from medusa_sim.errors import UsageError, shown

_SHARD = re.compile(r"([0-9]{1,9})/([0-9]{1,9})", re.ASCII)


@dataclass(frozen=True, slots=True)
class Shard:
    """Every `count`-th part from the `number`-th on, counted from 1."""

    number: int = 1
    count: int = 1

    @classmethod
    def read(cls, text: str) -> Shard:
        """`3/8`. Raises UsageError for anything else."""
        match = _SHARD.fullmatch(text.strip())
        if match is None or not 1 <= int(match[1]) <= int(match[2]):
            raise UsageError(f"shard {shown(text)}: give i/n with i from 1 to n, as in 3/8")
        return cls(int(match[1]), int(match[2]))

    @property
    def name(self) -> str:
        """Name of its claim on a folder."""
        return f"shard-{self.number}-of-{self.count}"

    def numbers(self, parts: int) -> range:
        """Its own of so many parts."""
        return range(self.number - 1, parts, self.count)
