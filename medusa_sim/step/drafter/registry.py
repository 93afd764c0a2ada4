"""Every drafter by its name. A new one is a module here, its line below, its tests, and the export maps."""

from __future__ import annotations

from medusa_sim.errors import UsageError, unknown_name
from medusa_sim.step.drafter.base import Drafter
from medusa_sim.step.drafter.dflash import DFlash
from medusa_sim.step.drafter.draft_model import DraftModel
from medusa_sim.step.drafter.dspark import DSpark
from medusa_sim.step.drafter.layer import Eagle, Eagle3
from medusa_sim.step.drafter.medusa import Medusa
from medusa_sim.step.drafter.mtp import Mtp
from medusa_sim.step.drafter.ngram import FreeDrafter, Suffix
from medusa_sim.step.drafter.parallel import Pard, PEagle

DRAFTERS: dict[str, type[Drafter]] = {
    kind.name: kind
    for kind in (
        Medusa,
        DraftModel,
        Eagle,
        Eagle3,
        Mtp,
        PEagle,
        Pard,
        DFlash,
        DSpark,
        FreeDrafter,
        Suffix,
    )
}
"""In the order in which they are listed to users."""


def drafter_names() -> tuple[str, ...]:
    """Names that `--drafter` takes."""
    return tuple(DRAFTERS)


def drafter_kind(name: str) -> type[Drafter]:
    """The drafter of that name. Raises UsageError for an unknown one."""
    try:
        return DRAFTERS[name]
    except KeyError:
        raise UsageError(unknown_name("drafter", name, DRAFTERS)) from None
