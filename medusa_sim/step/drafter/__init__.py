"""What drafting costs, apart from what it gains: every drafter by its name.

A new one is a class in a module here, its table in `drafters.toml`, its name in the engines that run it
(`specs/runtimes.toml`, their modules in `export/`), and its tests.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

from medusa_sim.errors import UsageError, unknown_name
from medusa_sim.reading import read_toml

if TYPE_CHECKING:
    from medusa_sim.step.drafter.base import Drafter


_FACTS = read_toml(Path(__file__).with_name("drafters.toml"), "the drafters")
_DEFAULT = _FACTS.pop("default")
_CLASSES = {name: tuple(facts["made"].split(":")) for name, facts in _FACTS.items()}
"""Name -> module here and class: names are listed without importing what nobody asks for."""
LOOKUPS = tuple(name for name, facts in _FACTS.items() if {**_DEFAULT, **facts}["looks_up"])
"""Drafters that look drafts up in the text and run no network."""


def facts_of(kind: str) -> dict[str, Any]:
    """What the class of that name says of itself; nothing of one that is no drafter itself."""
    name = next((name for name, (_, made) in _CLASSES.items() if made == kind), None)
    if name is None:
        return {}
    facts = {**_DEFAULT, **_FACTS[name], "name": name}
    return {**facts, "profiles": tuple(facts["profiles"])}


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
