"""Which fitted kernel times an operator: that of the engine and kernel that were asked for, else the nearest.

A kernel lies at `[kernels.<set>.<section>.<format>]`, or `<format>@<name>` where it is not what the library
takes by itself; its `name` is the library's own. The nearest, in this order: the kernel of that name in the
sets that were asked for, what those sets take by themselves, then the same in every other set of the GPU; for
each with the operator's format first, then with formats of the same arithmetic.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Generic, Self, TypeVar

from medusa_sim.errors import SpecError
from medusa_sim.latency.base import OperatorTime, Source, less_certain
from medusa_sim.operators.operator import Operator
from medusa_sim.specs.formats import HALVES
from medusa_sim.specs.gpu import Gpu
from medusa_sim.specs.inheritance import TRANSFER_ERROR
from medusa_sim.specs.kernels import Kernel, KernelSet

KernelT = TypeVar("KernelT", bound=Kernel)
NAME_MARK = "@"


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """Whose kernels are wanted.

    kernels: name of the set where nothing else is said. library: the set of an engine's own kernels, where it
    holds some that were measured on this GPU. engine, kernel: the set that a row names and the library's name
    of a kernel there; empty where it does not.
    """

    kernels: str
    library: str = ""
    engine: str = ""
    kernel: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice(Generic[KernelT]):
    """A kernel and where it lies: `place` is `set:key`, `form` the format of the key.

    is_asked: whether it is what was asked for and not merely the nearest.
    """

    place: str
    form: str
    kernel: KernelT
    is_asked: bool

    def of_form(self, form: str) -> Self:
        """The same, and not what was asked for where its form is another."""
        return replace(self, is_asked=self.is_asked and self.form == form)


def choose(
    gpu: Gpu,
    section: str,
    operator: Operator,
    asked: Asked,
    table: Callable[[KernelSet], Mapping[str, KernelT]],
    *,
    forms: Sequence[str] | None = None,
    anywhere: bool = True,
    own_first: bool = False,
) -> Choice[KernelT]:
    """The kernel of `section` (`table` of a set) for an operator.

    forms: keys that may serve, best first; None: the operator's numeric format, then those of the same
    arithmetic. anywhere: whether sets that were not asked for may serve. own_first: whether the sets that
    were asked for serve in any of the forms before other sets do, and there the kernel that was named
    before others. Raises SpecError in one line where there is none of them.
    """
    others = (asked.library, asked.kernels, *gpu.kernels) if anywhere else (asked.kernels,)
    sets = dict.fromkeys([name for name in (asked.engine, *others) if name])
    held = {name: table(gpu.kernels[name]) for name in sets if name in gpu.kernels}
    if asked.library in held and asked.library not in (asked.engine, asked.kernels):
        held[asked.library] = _measured(held[asked.library])
    wanted = _forms(operator) if forms is None else forms
    found = [
        (set_name, form, key, kernel, _is_named(key, kernel, asked.kernel))
        for form in wanted
        for set_name, kernels in held.items()
        for key, kernel in _in_order(kernels, form, asked.kernel)
    ]
    if own_first:
        found.sort(
            key=lambda entry: (entry[0] not in (asked.engine, asked.library, asked.kernels), not entry[-1])
        )
    for set_name, form, key, kernel, is_named in found:
        is_asked = is_named and asked.engine in ("", set_name)
        return Choice(place=f"{set_name}:{key}", form=form, kernel=kernel, is_asked=is_asked)
    has = sorted({key for kernels in held.values() for key in kernels})
    of_set = "" if anywhere else f", kernel set {asked.kernels!r}"
    elsewhere = [name for name, kernels in gpu.kernels.items() if name not in held and table(kernels)]
    listed = f" ({', '.join(elsewhere)})" if elsewhere else ""
    raise SpecError(
        f"gpu {gpu.name!r}{of_set}: no {section} kernel for {wanted[0]!r} "
        f"(it has: {', '.join(has) or 'none'}); choose another GPU, dtype or --kernels{listed}, "
        "or fit it: medusa-sim calibrate"
    )


def _measured(kernels: Mapping[str, KernelT]) -> dict[str, KernelT]:
    """Those that were not inherited."""
    return {key: kernel for key, kernel in kernels.items() if not kernel.fit.inherited_from}


def said(choice: Choice[KernelT], found: OperatorTime) -> OperatorTime:
    """The time with its kernel's place; one that was not asked for is borrowed and less certain."""
    if choice.is_asked:
        return replace(found, kernels=choice.place)
    return replace(less_certain(found, TRANSFER_ERROR, Source.BORROWED), kernels=choice.place)


def _in_order(kernels: Mapping[str, KernelT], form: str, name: str) -> Iterator[tuple[str, KernelT]]:
    """Kernels of a format: the one of that name first, then the library's own choice, then any."""
    of_form = {key: kernel for key, kernel in kernels.items() if key.partition(NAME_MARK)[0] == form}
    order = {key: (not _is_named(key, of_form[key], name), key != form, key) for key in of_form}
    yield from ((key, of_form[key]) for key in sorted(of_form, key=order.__getitem__))


def _is_named(key: str, kernel: object, name: str) -> bool:
    own = getattr(kernel, "name", "") or key.partition(NAME_MARK)[2]
    return name in ("", own) or not own


def _forms(operator: Operator) -> list[str]:
    """The operator's format, then those whose arithmetic is the same."""
    found = [operator.form, operator.dtype]
    if "fp8" in found:
        found += ["fp8_block"]
    if operator.dtype in HALVES:
        found += [half for half in HALVES if half != operator.dtype]
    return list(dict.fromkeys(found))
