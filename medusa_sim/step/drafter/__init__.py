"""What drafting costs, apart from what it gains: every drafter by its name.

A new one is a class in a module here, its line below, its name in the engines that run it
(`specs/runtimes.toml`, their modules in `export/`), and its tests.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from importlib import import_module
from typing import TYPE_CHECKING

from medusa_sim.errors import UsageError, unknown_name

if TYPE_CHECKING:
    from medusa_sim.step.drafter.base import Drafter


_CLASSES = {
    "medusa": ("base", "Medusa"),
    "draft-model": ("draft_model", "DraftModel"),
    "eagle": ("layer", "Eagle"),
    "eagle3": ("layer", "Eagle3"),
    "mtp": ("layer", "Mtp"),
    "p-eagle": ("draft_model", "PEagle"),
    "pard": ("draft_model", "Pard"),
    "dflash": ("layer", "DFlash"),
    "dspark": ("layer", "DSpark"),
    "ngram": ("base", "FreeDrafter"),
    "suffix": ("base", "Suffix"),
}
"""Name -> module here and class: names are listed without importing what nobody asks for."""


class _Drafters(Mapping[str, "type[Drafter]"]):
    def __getitem__(self, name: str) -> type[Drafter]:
        module, kind = _CLASSES[name]
        drafter: type[Drafter] = getattr(import_module(f"medusa_sim.step.drafter.{module}"), kind)
        return drafter

    def __iter__(self) -> Iterator[str]:
        return iter(_CLASSES)

    def __len__(self) -> int:
        return len(_CLASSES)


DRAFTERS = _Drafters()
"""In the order in which they are listed to users."""


def drafter_names() -> tuple[str, ...]:
    """Names that `--drafter` takes."""
    return tuple(DRAFTERS)


def drafter_kind(name: str) -> type[Drafter]:
    """The drafter of that name. Raises UsageError for an unknown one."""
    if name not in _CLASSES:
        raise UsageError(unknown_name("drafter", name, DRAFTERS))
    return DRAFTERS[name]
