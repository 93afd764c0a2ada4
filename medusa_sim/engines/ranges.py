"""Where a term of an engine was measured, and its value elsewhere.

    prompt_us_per_launch = { value = 145, band = 0.6, source = "...",
        measured = { forms = ["latent"], gpus = [8, 8], generations = ["hopper"], requests = 64 },
        elsewhere = [{ outside = ["forms"], value = 50, source = "...", rule = "ordinary launches" }] }

    linear_share = { value = 1.0, band = 0.05, source = "...",
        deviations = [{ formats = ["fp8"], times = 0.88 }, { generations = ["ada"], times = 0.98 }] }

All deviations that hold are applied. They come from one fit of all engines' rows, with one number for each
engine, GPU generation, format of weights and form of model (`benchmarks/hierarchy.py`).

A set-up takes the first entry of `elsewhere` that fits it; an entry without `outside` fits inside the range
too. Where none fits, the value stays, and its band grows by WIDEN for every range that the set-up is outside
of. Requests and rows are not part of a set-up: beyond the measured ones a term is extrapolated, with a band
that grows (`step/host.py`).
"""

from __future__ import annotations

import math
from typing import Annotated, Literal, TypeAlias

import msgspec
from msgspec import Meta

from medusa_sim.engines.case import Case, Form
from medusa_sim.reading.strict import Text

Side: TypeAlias = Literal["forms", "gpus", "generations", "backends"]
"""A property of a set-up that a range may limit."""
WIDEN: dict[Side, float] = {"forms": 1.5, "gpus": 1.5, "generations": 1.25, "backends": 1.5}
"""Factor on a band outside a range: on another GPU that between neighbouring versions of an engine, elsewhere
twice that step. Chosen, not fitted: too few steps outside ranges were published."""


def band_factor(outside: tuple[Side, ...]) -> float:
    """Factor on a band outside these ranges; their parts add in quadrature."""
    return 1.0 + math.hypot(*(WIDEN[side] - 1.0 for side in outside))


_Count = Annotated[int, Meta(ge=1)]


class _Limits(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Set-ups of some models, GPUs and kernels; an empty field limits nothing."""

    forms: tuple[Form, ...] = ()
    """Forms of the models."""
    gpus: tuple[_Count, _Count] | None = None
    """Fewest and most GPUs."""
    generations: tuple[Text, ...] = ()
    """Generations of the GPUs (`Gpu.architecture`)."""
    backends: tuple[Text, ...] = ()
    """Keys of attention kernels in `backends.toml`."""

    def sides_beyond(self, case: Case) -> tuple[Side, ...]:
        """The ranges that a set-up is outside of."""
        sides: dict[Side, bool] = {
            "forms": not self.forms or case.form in self.forms,
            "gpus": self.gpus is None or self.gpus[0] <= case.gpus <= self.gpus[1],
            "generations": not self.generations or case.generation in self.generations,
            "backends": not self.backends or case.backend in self.backends,
        }
        return tuple(side for side, inside in sides.items() if not inside)


class MeasuredRange(_Limits, frozen=True, kw_only=True):
    """Where a term was measured."""

    requests: _Count | None = None
    """Most requests of a step."""
    fewer: tuple[tuple[Form, _Count], ...] = ()
    """Most requests of forms that were measured with fewer."""
    rows: _Count | None = None
    """Most rows of a step."""
    version: str = ""
    """Version of the engine."""
    assumed: bool = False
    """Whether this is the range given for all terms of the runtime, because the term has none itself."""

    def at(self, form: Form) -> MeasuredRange:
        """The range of models of one form: of one that was not measured the fewest requests of all."""
        if not self.fewer or self.requests is None:
            return self
        most = dict(self.fewer)
        requests = most.get(form, self.requests) if form in self.forms else min(most.values())
        return msgspec.structs.replace(self, requests=requests, fewer=())

    @property
    def text(self) -> str:
        """The range as text: `dense, mixture; 1 to 4 GPUs; hopper; up to 256 requests; version 0.15`."""
        gpus = ""
        if self.gpus is not None:
            few, many = self.gpus
            several = f"{few} GPUs" if few == many else f"{few} to {many} GPUs"
            gpus = "one GPU" if many == 1 else several
        limits = [f"up to {self.requests} requests"] if self.requests else []
        limits += [f"{form} up to {most}" for form, most in self.fewer]
        limits += [f"up to {self.rows} rows"] if self.rows else []
        parts = [", ".join(self.forms), gpus, ", ".join(self.generations), ", ".join(self.backends), *limits]
        version = f"version {self.version}" if self.version else ""
        return "; ".join(filter(None, [*parts, version]))


class Where(_Limits, frozen=True, kw_only=True):
    """Set-ups for which something is given."""

    formats: tuple[Text, ...] = ()
    """Formats of weights, in any part of the model."""
    experts: bool | None = None
    """Whether the model must have experts (True) or must not (False)."""
    splits: bool | None = None
    """Whether attention must be split over requests."""

    def holds(self, case: Case) -> bool:
        """Whether a set-up is one of them."""
        of_format = not self.formats or not set(self.formats).isdisjoint(case.formats)
        is_so = self.experts in (None, case.experts) and self.splits in (None, case.splits)
        return of_format and is_so and not self.sides_beyond(case)


class Elsewhere(Where, frozen=True, kw_only=True):
    """The value of a term in set-ups where it was not measured, and its rule."""

    value: Annotated[float, Meta(ge=0.0, le=1e6)]
    source: Text
    rule: Text
    """The rule in words."""
    band: Annotated[float, Meta(ge=0.0, le=100.0)] = 0.0
    outside: tuple[Side, ...] = ()
    """The set-up must be outside at least one of these ranges; empty: no condition."""

    def replaces(self, case: Case, outside: tuple[Side, ...]) -> bool:
        """Whether it applies to a set-up that is outside these ranges."""
        is_outside = not self.outside or any(side in outside for side in self.outside)
        return is_outside and self.holds(case)


class Deviation(Where, frozen=True, kw_only=True):
    """By how much a term differs from its value in some set-ups."""

    times: Annotated[float, Meta(gt=0.0, le=10.0)] = 1.0
    """Factor on the value ..."""
    plus: Annotated[float, Meta(ge=-1e6, le=1e6)] = 0.0
    """... and what is added."""
    only: str = ""
    """The only model whose rows it was fitted to, as `engines/nearness.toml` names it; empty: several."""

    @property
    def text(self) -> str:
        """The deviation as text: `x 0.88 for fp8; blackwell (llama-3.1-70b alone)`."""
        gpus = "" if self.gpus is None else f"{self.gpus[0]} to {self.gpus[1]} GPUs"
        split = {None: "", True: "attention split over requests", False: "attention not split"}[self.splits]
        experts = {None: "", True: "with experts", False: "without experts"}[self.experts]
        names = map(", ".join, (self.formats, self.forms, self.generations, self.backends))
        where = "; ".join(filter(None, [*names, gpus, split, experts]))
        parts = [f"x {self.times:g}"] * (self.times != 1.0) + [f"{self.plus:+g}"] * (self.plus != 0.0)
        return f"{' '.join(parts)} for {where}" + (f" ({self.only} alone)" if self.only else "")
