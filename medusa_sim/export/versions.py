"""Which versions of an engine the settings are known for, and what is written for one that is not."""

from __future__ import annotations

import re
from dataclasses import dataclass

from medusa_sim.errors import UsageError


@dataclass(frozen=True, slots=True)
class Versions:
    """Versions whose settings were read, oldest first, such as `0.24`; `default` is what installs today.

    A version between two of them is written as for the one before it; `ahead` releases (in the second
    number) beyond the newest one as for the newest. None: as many as come.
    """

    engine: str
    known: tuple[str, ...]
    default: str
    ahead: int | None = 2

    def chosen(self, asked: str | None) -> tuple[str, str]:
        """The known version to write for, and a note that is empty where it is the one asked for.

        Raises UsageError for text that is no version, and for versions too far from what is known.
        """
        if asked is None:
            return self.default, ""
        wanted = _numbers(asked)
        if not wanted:
            raise UsageError(f"{self.engine} version {asked!r} is no version; known: {', '.join(self.known)}")
        older = [name for name in self.known if _numbers(name) <= wanted]
        if not older or self._too_new(wanted):
            raise UsageError(
                f"{self.engine} {asked}: its settings are not known (known: {', '.join(self.known)}); their "
                "meaning changes between versions, so check the engine's documentation and edit what the "
                f"nearest known version gives (--engine-version {older[-1] if older else self.known[0]})"
            )
        nearest = older[-1]
        if wanted[: len(_numbers(nearest))] == _numbers(nearest):
            return nearest, ""
        return (
            nearest,
            f"{self.engine} {asked} was not read; written as for {nearest}, the nearest known before it",
        )

    def _too_new(self, wanted: tuple[int, ...]) -> bool:
        newest = _numbers(self.known[-1])
        if self.ahead is None:
            return False
        same_major = wanted[0] == newest[0]
        return not same_major or (len(wanted) > 1 and wanted[1] > newest[1] + self.ahead)


def _numbers(version: str) -> tuple[int, ...]:
    """(0, 24, 1) of `v0.24.1rc2`; empty where the text does not start like a version."""
    found = re.match(r"[vb]?(\d{1,9}(?:\.\d{1,9})*)", version.strip())
    return tuple(int(part) for part in found[1].split(".")) if found else ()
