"""Which fitted kernel times an operator: that of the engine and kernel that were asked for, else the nearest.

A kernel lies at `[kernels.<set>.<section>.<format>]`, or `<format>@<name>` where it is not what the library
takes by itself; its `name` is the library's own, which a row's may go on from ("FLASH_ATTN_MLA (FA3)"). The
nearest, in this order: the kernel of that name in the sets that were asked for, what those sets take by
themselves, then the same in every other set of the GPU; for each with the operator's format first, then with
formats of the same arithmetic. Where an engine calls another library for a format than the one that was timed
(`engine_formats.linear_rows`), its rows of another format come first; experts may run the products of another
kernel of the set (`engine_formats.expert_products`).
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import NamedTuple, TypeAlias

from medusa_sim.engines.engine_formats import expert_products, linear_rows, linear_tiles
from medusa_sim.errors import SpecError
from medusa_sim.gpus.fitted_attention import LatentKernel
from medusa_sim.gpus.fitted_experts import ExpertKernel
from medusa_sim.gpus.gpu import Gpu
from medusa_sim.gpus.inheritance import TRANSFER_ERROR, TRANSFER_ERROR_ALIKE, TRANSFER_ERROR_LIBRARY
from medusa_sim.gpus.kernels import (
    GemmKernel,
    GemmTile,
    Kernel,
    StreamKernel,
    computing_as,
    multiplying_as,
    tiled_by,
)
from medusa_sim.latency.bands import less_certain
from medusa_sim.latency.operator_time import OperatorTime, Source
from medusa_sim.operators.kinds import EXPERTS, KIND_OF, LATENT, LINEAR, Kind
from medusa_sim.operators.operator import Operator
from medusa_sim.units import SCALED

NAME_MARK = "@"
Tables: TypeAlias = "Mapping[str, Mapping[str, Kernel]]"
"""Kernels of one kind by the name of their set, then by key."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """Whose kernels are wanted."""

    set_name: str
    """Of the set where nothing else is said."""
    library: str = ""
    """Set of an engine's own kernels; what it borrows stands back where others were measured on this GPU."""
    engine: str = ""
    """Set that a row names; empty where it names none."""
    kernel_name: str = ""
    """The library's name of a kernel there; empty: any."""
    in_step: bool = False
    """Whether a step asks, which runs no library's fallback."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """A kernel, where it lies, and how far it is what was asked for."""

    place: str
    """`set:key`."""
    form: str
    """Numeric format that it is for."""
    kernel: Kernel
    is_asked: bool
    """Whether it is what was asked for and not merely the nearest."""
    error: float = TRANSFER_ERROR
    """What it adds to a band where it is not: less where it is of the library that the engine calls, in
    another format, more where it is another library's with the tiles of this one."""

    @property
    def set_name(self) -> str:
        """The set that has it."""
        return self.place.partition(":")[0]


class _Found(NamedTuple):
    """A kernel that may serve, and where it lies."""

    set_name: str
    form: str
    key: str
    kernel: Kernel
    is_named: bool
    """Whether a row's name is its own."""


class _Against(NamedTuple):
    """What speaks against a kernel, the weightiest first: the least is chosen."""

    is_another: bool
    """Rows name a kernel of an engine that the GPU has no set of: it has another format or another name."""
    is_lent: bool
    """It was measured on another GPU, where others were on this one."""
    is_foreign: bool
    """Of a set that was not asked for."""
    is_not_named: bool
    is_alternative: bool
    """The library does not take it by itself."""


@dataclass(frozen=True, slots=True)
class _Search:
    """What is looked for on a GPU, and where: sets that were asked for first."""

    gpu: Gpu
    operator: Operator
    asked: Asked

    @property
    def kind(self) -> Kind:
        """Kind of the operator."""
        return KIND_OF[self.operator.kind]

    @property
    def is_everywhere(self) -> bool:
        """Whether kernels of sets that were not asked for may serve."""
        return self.kind is not LINEAR or bool(self.asked.engine)

    @property
    def tables(self) -> Tables:
        """The tables of the kind."""
        asked, held = self.asked, self.gpu.kernels
        others = (asked.library, asked.set_name, *held) if self.is_everywhere else (asked.set_name,)
        sets = dict.fromkeys(name for name in (asked.engine, *others) if name in held)
        return {name: self.kind.table(held[name]) for name in sets}

    def found(self, tables: Tables, forms: Iterable[str]) -> Iterator[_Found]:
        """Every kernel of the formats, the best format first; a step takes no fallback of a library."""
        name = self.asked.kernel_name
        for form in forms:
            for set_name, kernels in tables.items():
                for key, kernel in _in_order(kernels, form, name):
                    is_fallback = isinstance(kernel, StreamKernel | LatentKernel) and kernel.fallback
                    if not (self.asked.in_step and is_fallback):
                        yield _Found(set_name, form, key, kernel, _is_named(key, kernel, name))

    def against(self, found: _Found, own_forms: Collection[str]) -> _Against:
        """What speaks against a kernel. own_forms: formats measured on this GPU."""
        kind, asked = self.kind, self.asked
        # then of the operator's own format
        is_nameless = bool(asked.kernel_name) and asked.engine not in self.gpu.kernels
        is_other = found.form != self.operator.forms[0] or not _says(found.kernel, asked.kernel_name)
        # how keys are split and experts grouped is the library's own: a relative's kernel of it is nearer
        # than another's here (experts in blocks of fp8 at 16 tokens: 4 % between H100 and H200, 46 between
        # libraries)
        may_stand_back = asked.library not in (asked.engine, asked.set_name) and kind not in (LATENT, EXPERTS)
        is_lent = found.set_name == asked.library and _is_lent(found.kernel) and found.form in own_forms
        return _Against(
            is_another=is_nameless and is_other,
            is_lent=may_stand_back and is_lent,
            is_foreign=kind.own_first and found.set_name not in (asked.engine, asked.library, asked.set_name),
            is_not_named=kind.own_first and not found.is_named,
            is_alternative=not asked.kernel_name and NAME_MARK in found.key,
        )

    def nothing_found(self, tables: Tables) -> SpecError:
        """The error that says what there is instead."""
        gpu, kind = self.gpu, self.kind
        has = sorted({key for kernels in tables.values() for key in kernels})
        of_set = "" if self.is_everywhere else f", kernel set {self.asked.set_name!r}"
        form = self.operator.forms[0]
        elsewhere = [
            name for name, held in gpu.kernels.items() if name not in tables and form in kind.table(held)
        ]
        other_set = f", --kernels {' or '.join(elsewhere)}" if elsewhere else ""
        return SpecError(
            f"gpu {gpu.name!r}{of_set}: no {kind.section} kernel for {form!r} "
            f"(it has: {', '.join(has) or 'none'}); choose another GPU or dtype{other_set}, "
            "or fit it: medusa-sim calibrate"
        )


def choose(gpu: Gpu, operator: Operator, asked: Asked) -> Choice:
    """The kernel for an operator, in one of its `forms`.

    Linear layers of sets that were not asked for serve only rows that name an engine. Where `own_first`, the
    sets that were asked for serve in any of the forms before other sets do, and there the kernel that was
    named before others. Raises SpecError in one line where there is none of them.
    """
    search = _Search(gpu, operator, asked)
    kind, tables = search.kind, search.tables
    is_step_linear = kind is LINEAR and asked.in_step
    rows_of = linear_rows(asked.library, gpu.architecture, operator.form) if is_step_linear else ""
    found = list(search.found(tables, (rows_of, *operator.forms) if rows_of else operator.forms))
    if not found:
        raise search.nothing_found(tables)
    own_forms = {choice.form for choice in found if not _is_lent(choice.kernel)}
    best = min(found, key=lambda choice: search.against(choice, own_forms))
    is_asked = best.is_named and asked.engine in ("", best.set_name)
    is_asked = is_asked and (not kind.is_exact or best.form == operator.form)
    choice = Choice(
        place=f"{best.set_name}:{best.key}", form=best.form, kernel=best.kernel, is_asked=is_asked
    )
    if best.form == rows_of:
        return _computing_as_own(choice, tables[best.set_name].get(operator.form), operator.form)
    if is_step_linear:
        tiles = linear_tiles(asked.library, gpu.architecture, best.form)
        return _by_own_library(_tiled_by(choice, tiles), asked)
    runs = expert_products(asked.library, gpu.architecture, best.form) if asked.in_step else ""
    products = tables[best.set_name].get(f"{best.form}{NAME_MARK}{runs}") if runs else None
    return _multiplying_as(choice, products)


def _computing_as_own(choice: Choice, format_kernel: Kernel | None, form: str) -> Choice:
    """The choice of a linear layer, computing as the set's kernel of its own format does, if it has one."""
    if not isinstance(choice.kernel, GemmKernel) or not isinstance(format_kernel, GemmKernel):
        return choice
    stands_in = computing_as(choice.kernel, format_kernel)
    return replace(choice, form=form, kernel=stands_in, is_asked=False, error=TRANSFER_ERROR_ALIKE)


def _tiled_by(choice: Choice, tiles: tuple[GemmTile, ...]) -> Choice:
    """The choice of a linear layer, with the engine's own tiles where some are given."""
    if not tiles or not isinstance(choice.kernel, GemmKernel):
        return choice
    return replace(choice, kernel=tiled_by(choice.kernel, tiles))


def _by_own_library(choice: Choice, asked: Asked) -> Choice:
    """The choice of a linear layer, less certain where libraries compute its format each in its way."""
    is_own = asked.library in ("", choice.set_name) or choice.form not in ("fp8", *SCALED)
    return choice if is_own else replace(choice, is_asked=False, error=TRANSFER_ERROR_LIBRARY)


def _multiplying_as(choice: Choice, products: Kernel | None) -> Choice:
    """The choice of a layer of experts, with the products of another kernel, where one is given."""
    if not isinstance(choice.kernel, ExpertKernel) or not isinstance(products, ExpertKernel):
        return choice
    both = multiplying_as(choice.kernel, products)
    return replace(choice, kernel=both, is_asked=False, error=TRANSFER_ERROR_ALIKE)


def _is_lent(kernel: Kernel) -> bool:
    return bool(kernel.fit.inherited_from)


def with_place(choice: Choice, time: OperatorTime) -> OperatorTime:
    """The time with its kernel's place; one that was not asked for is borrowed and less certain."""
    if choice.is_asked:
        return replace(time, place=choice.place)
    return replace(less_certain(time, choice.error, Source.BORROWED), place=choice.place)


def _in_order(kernels: Mapping[str, Kernel], form: str, name: str) -> Iterator[tuple[str, Kernel]]:
    """Kernels of a format: the one of that name first, then the library's own choice, then any."""
    of_form = {key: kernel for key, kernel in kernels.items() if key.partition(NAME_MARK)[0] == form}
    order = {key: (not _is_named(key, of_form[key], name), key != form, key) for key in of_form}
    yield from ((key, of_form[key]) for key in sorted(of_form, key=order.__getitem__))


def _is_named(key: str, kernel: object, name: str) -> bool:
    kernel_name = getattr(kernel, "name", "") or key.partition(NAME_MARK)[2]
    return not name or not kernel_name or _says(kernel, name) or name == kernel_name


def _says(kernel: object, name: str) -> bool:
    """Whether a row's name is the kernel's own, or goes on from it."""
    return name.partition(" ")[0] == getattr(kernel, "name", "")
