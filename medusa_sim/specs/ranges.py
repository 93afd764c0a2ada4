"""Where a term of an engine was measured, and what stands for it elsewhere.

    prompt_us_per_launch = { value = 145, band = 0.6, source = "...",
        measured = { forms = ["latent"], gpus = [8, 8], cards = ["hopper"], requests = 64 },
        elsewhere = [{ outside = ["forms"], value = 50, source = "...", rule = "ordinary launches" }] }

    linear_share = { value = 1.0, band = 0.05, source = "...",
        deviations = [{ formats = ["fp8"], times = 0.88 }, { cards = ["ada"], times = 0.98 }] }

Every deviation that holds counts: one fit takes all engines' rows together, in which what an engine, a card's
generation, a format of weights and a form of model share is one number each (`benchmarks/hierarchy.py`).

A set-up outside a range takes the first entry of `elsewhere` that fits it; without one the value stays, and
its band grows by WIDEN for every range that it is outside of. Requests and rows are no part of a set-up:
beyond those that were measured a term goes on as it did, with a band that opens (`step/host.py`).
"""

from __future__ import annotations

import math
from typing import Annotated, Literal, NamedTuple, TypeAlias

import msgspec
from msgspec import Meta

from medusa_sim.specs.mixers import Latent, Mixer
from medusa_sim.specs.model import Model
from medusa_sim.specs.strict import Text

Form: TypeAlias = Literal["dense", "mixture", "latent", "hybrid", "sparse"]
"""Of a model, the most particular that it has: experts, latent attention, recurrent layers, sparse
attention."""
Side: TypeAlias = Literal["forms", "gpus", "cards", "backends"]
"""A range of a set-up."""
WIDEN: dict[Side, float] = {"forms": 1.5, "gpus": 1.5, "cards": 1.25, "backends": 1.5}
"""How many times as wide a band becomes outside a range: on another card as between neighbouring versions of
an engine, elsewhere twice that step. Chosen, not fitted: published steps outside ranges are too few."""


def widening(outside: tuple[Side, ...]) -> float:
    """How many times as wide a band is outside these ranges: doubts of different kinds add in quadrature."""
    return 1.0 + math.hypot(*(WIDEN[side] - 1.0 for side in outside))


_Count = Annotated[int, Meta(ge=1)]


class Case(NamedTuple):
    """A set-up as ranges see it."""

    form: Form = "dense"
    """Of the model."""
    experts: bool = False
    """Whether the model has any."""
    gpus: int = 1
    """GPUs that share it."""
    card: str = "hopper"
    """Generation of the card (`Gpu.architecture`)."""
    backend: str = ""
    """Attention kernel of a verification (`specs.engine_facts`)."""
    formats: tuple[str, ...] = ()
    """Formats of the weights of any part of the model."""
    gpu: str = ""
    """The card itself; empty where nobody said, so that nothing tells how near anything measured lies."""
    sizes: str = ""
    """The shape of the model (`place.sizes_of`); likewise."""
    splits: bool = False
    """Whether attention is split over requests."""


class Measured(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Where a term was measured. Empty: it does not depend on that."""

    forms: tuple[Form, ...] = ()
    """Of models."""
    gpus: tuple[_Count, _Count] | None = None
    """Fewest and most."""
    cards: tuple[Text, ...] = ()
    """Their generations (`Gpu.architecture`)."""
    backends: tuple[Text, ...] = ()
    """Attention kernels by their key."""
    requests: _Count | None = None
    """Most requests of a step."""
    rows: _Count | None = None
    """Most rows of a step."""
    version: str = ""
    """Of the engine."""
    assumed: bool = False
    """Whether no row told this term alone: it is what its runtime says of all."""

    def outside(self, case: Case) -> tuple[Side, ...]:
        """The ranges that a set-up lies outside."""
        sides: dict[Side, bool] = {
            "forms": not self.forms or case.form in self.forms,
            "gpus": self.gpus is None or self.gpus[0] <= case.gpus <= self.gpus[1],
            "cards": not self.cards or case.card in self.cards,
            "backends": not self.backends or case.backend in self.backends,
        }
        return tuple(side for side, inside in sides.items() if not inside)

    @property
    def text(self) -> str:
        """In words: `dense, mixture; 1 to 4 GPUs; hopper; up to 256 requests; 0.15`."""
        gpus = ""
        if self.gpus is not None:
            few, many = self.gpus
            several = f"{few} GPUs" if few == many else f"{few} to {many} GPUs"
            gpus = "one GPU" if many == 1 else several
        limits = [f"up to {self.requests} requests"] if self.requests else []
        limits += [f"up to {self.rows} rows"] if self.rows else []
        parts = [", ".join(self.forms), gpus, ", ".join(self.cards), ", ".join(self.backends), *limits]
        return "; ".join(filter(None, [*parts, self.version]))


class Elsewhere(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """What stands for a term in set-ups outside its range, and the rule by which."""

    value: Annotated[float, Meta(ge=0.0, le=1e6)]
    source: Text
    rule: Text
    """In words."""
    band: Annotated[float, Meta(ge=0.0, le=100.0)] = 0.0
    outside: tuple[Side, ...] = ()
    """The ranges that such a set-up is outside of, any of them."""
    experts: bool | None = None
    """Whether its model must have any, or none."""
    forms: tuple[Form, ...] = ()
    """Forms that it must lie in; so are the next three."""
    gpus: tuple[_Count, _Count] | None = None
    cards: tuple[Text, ...] = ()
    backends: tuple[Text, ...] = ()
    formats: tuple[Text, ...] = ()
    """Of weights in any part of the model."""

    def holds(self, case: Case, outside: tuple[Side, ...]) -> bool:
        """Whether it stands for the term in a set-up that is outside of these ranges."""
        own = Measured(forms=self.forms, gpus=self.gpus, cards=self.cards, backends=self.backends)
        named = not self.outside or any(side in outside for side in self.outside)
        alike = self.experts is None or self.experts == case.experts
        of_format = not self.formats or not set(self.formats).isdisjoint(case.formats)
        return named and alike and of_format and not own.outside(case)


class Deviation(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """By how much a term differs in some set-ups from its value. What is not named asks nothing."""

    times: Annotated[float, Meta(gt=0.0, le=10.0)] = 1.0
    """So many times it ..."""
    plus: Annotated[float, Meta(ge=-1e6, le=1e6)] = 0.0
    """... and so much more."""
    forms: tuple[Form, ...] = ()
    gpus: tuple[_Count, _Count] | None = None
    cards: tuple[Text, ...] = ()
    formats: tuple[Text, ...] = ()
    """Of weights in any part of the model."""
    splits: bool | None = None
    """Whether attention is split over requests."""
    only: str = ""
    """The model by whose rows alone it was told, as `specs/nearness.toml` names it; empty: several models'
    rows tell it."""

    def holds(self, case: Case) -> bool:
        """Whether it counts in a set-up."""
        own = Measured(forms=self.forms, gpus=self.gpus, cards=self.cards)
        of_format = not self.formats or not set(self.formats).isdisjoint(case.formats)
        return of_format and self.splits in (None, case.splits) and not own.outside(case)

    @property
    def text(self) -> str:
        """In words: `x 0.88 for fp8; blackwell (llama-3.1-70b alone)`."""
        gpus = "" if self.gpus is None else f"{self.gpus[0]} to {self.gpus[1]} GPUs"
        split = {None: "", True: "attention split over requests", False: "attention not split"}[self.splits]
        names = map(", ".join, (self.formats, self.forms, self.cards))
        where = "; ".join(filter(None, [*names, gpus, split]))
        parts = [f"x {self.times:g}"] * (self.times != 1.0) + [f"{self.plus:+g}"] * (self.plus != 0.0)
        return f"{' '.join(parts)} for {where}" + (f" ({self.only} alone)" if self.only else "")


def form_of(model: Model) -> Form:
    """The form of a model."""
    if any(mixer.chooses_keys for _, mixer in model.blocks(Mixer)):
        return "sparse"
    if model.keeps_states:
        return "hybrid"
    if model.blocks(Latent):
        return "latent"
    return "dense" if model.experts is None else "mixture"
