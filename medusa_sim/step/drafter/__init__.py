"""What drafting costs, apart from what it gains: every drafter by its name.

A new one is a class in a module here, its name and class below, its name in the engines that run it
(`engines/runtimes.toml`, their records in `export/`), and its tests.
"""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Literal, TypeAlias, get_args

from medusa_sim.errors import UsageError, unknown_name

if TYPE_CHECKING:
    from medusa_sim.step.drafter.base import Drafter

DrafterName: TypeAlias = Literal[
    "medusa", "draft-model", "eagle", "eagle3", "mtp", "p-eagle", "pard", "dflash", "dspark", "ngram",
    "suffix",
]  # fmt: skip
"""In the order in which they are listed to users."""


def drafter_names() -> tuple[DrafterName, ...]:
    """Names that `--drafter` takes, as help pages list them: without importing the classes."""
    names: tuple[DrafterName, ...] = get_args(DrafterName)
    return names


@cache
def drafters() -> dict[str, type[Drafter]]:
    """Every drafter by its name, in their order."""
    from medusa_sim.step.drafter.draft_model import DraftModel
    from medusa_sim.step.drafter.layer import Eagle, Eagle3, Mtp
    from medusa_sim.step.drafter.lookup import NGram, Suffix
    from medusa_sim.step.drafter.medusa import Medusa
    from medusa_sim.step.drafter.parallel import DFlash, DSpark, Pard, PEagle

    kinds: tuple[type[Drafter], ...] = (
        Medusa, DraftModel, Eagle, Eagle3, Mtp, PEagle, Pard, DFlash, DSpark, NGram, Suffix
    )  # fmt: skip
    return {kind.name: kind for kind in kinds}


def lookups() -> tuple[str, ...]:
    """Drafters that look drafts up in the text and run no network."""
    return tuple(name for name, kind in drafters().items() if kind.looks_up)


def drafter_class(name: str) -> type[Drafter]:
    """The drafter of that name. Raises UsageError for an unknown one."""
    if name.lower() == "none":  # a set-up of `compare` and a policy of `load` are called so
        raise UsageError(
            "drafter 'none': steps without drafts stand in every answer, as 1 candidate; servers that never "
            "draft are `compare --drafter none` and `load --policy none`"
        )
    if name not in drafters():
        raise UsageError(unknown_name("drafter", name, drafters()))
    return drafters()[name]
