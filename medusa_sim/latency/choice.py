"""Which fitted kernel times an operator: that of the engine and kernel that were asked for, else the nearest.

A kernel lies at `[kernels.<set>.<section>.<format>]`, or `<format>@<name>` where it is not what the library
takes by itself; its `name` is the library's own, which a row's may go on from ("FLASH_ATTN_MLA (FA3)"). The
nearest, in this order: the kernel of that name in the
sets that were asked for, what those sets take by themselves, then the same in every other set of the GPU; for
each with the operator's format first, then with formats of the same arithmetic.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

from medusa_sim.errors import SpecError
from medusa_sim.latency.base import OperatorTime, Source, less_certain
from medusa_sim.operators.kinds import Kind
from medusa_sim.operators.operator import Gemm, Operator
from medusa_sim.specs.gpu import Gpu
from medusa_sim.specs.inheritance import TRANSFER_ERROR
from medusa_sim.specs.kernels import Kernel

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
class Choice:
    """A kernel and where it lies: `place` is `set:key`, `form` the format of the key.

    is_asked: whether it is what was asked for and not merely the nearest.
    """

    place: str
    form: str
    kernel: Kernel
    is_asked: bool


def choose(gpu: Gpu, kind: Kind, operator: Operator, asked: Asked) -> Choice:
    """The kernel of a kind for an operator, in one of its `forms`.

    Linear layers of sets that were not asked for serve only rows that name an engine. Where `own_first`, the
    sets that were asked for serve in any of the forms before other sets do, and there the kernel that was
    named before others. Raises SpecError in one line where there is none of them.
    """
    anywhere = kind.operator is not Gemm or bool(asked.engine)
    others = (asked.library, asked.kernels, *gpu.kernels) if anywhere else (asked.kernels,)
    sets = dict.fromkeys([name for name in (asked.engine, *others) if name])
    held = {name: kind.table(gpu.kernels[name]) for name in sets if name in gpu.kernels}
    if asked.library in held and asked.library not in (asked.engine, asked.kernels):
        held[asked.library] = _measured(held[asked.library])
    found = [
        (set_name, form, key, kernel, _is_named(key, kernel, asked.kernel))
        for form in operator.forms
        for set_name, kernels in held.items()
        for key, kernel in _in_order(kernels, form, asked.kernel)
    ]
    if not asked.kernel:  # what no library takes by itself comes after what others do
        found.sort(key=lambda entry: NAME_MARK in entry[2])
    if kind.own_first:
        found.sort(
            key=lambda entry: (entry[0] not in (asked.engine, asked.library, asked.kernels), not entry[-1])
        )
    if asked.kernel and asked.engine not in held:  # named without its engine, in the operator's own format
        found.sort(key=lambda entry: entry[1] != operator.forms[0] or not _says(entry[3], asked.kernel))
    for set_name, form, key, kernel, is_named in found:
        is_asked = is_named and asked.engine in ("", set_name)
        is_asked = is_asked and (not kind.is_exact or form == operator.form)
        return Choice(place=f"{set_name}:{key}", form=form, kernel=kernel, is_asked=is_asked)
    has = sorted({key for kernels in held.values() for key in kernels})
    of_set = "" if anywhere else f", kernel set {asked.kernels!r}"
    elsewhere = [name for name, kernels in gpu.kernels.items() if name not in held and kind.table(kernels)]
    listed = f" ({', '.join(elsewhere)})" if elsewhere else ""
    raise SpecError(
        f"gpu {gpu.name!r}{of_set}: no {kind.section} kernel for {operator.forms[0]!r} "
        f"(it has: {', '.join(has) or 'none'}); choose another GPU, dtype or --kernels{listed}, "
        "or fit it: medusa-sim calibrate"
    )


def _measured(kernels: Mapping[str, Kernel]) -> dict[str, Kernel]:
    """Those that were not inherited."""
    return {key: kernel for key, kernel in kernels.items() if not kernel.fit.inherited_from}


def with_place(choice: Choice, found: OperatorTime) -> OperatorTime:
    """The time with its kernel's place; one that was not asked for is borrowed and less certain."""
    if choice.is_asked:
        return replace(found, kernels=choice.place)
    return replace(less_certain(found, TRANSFER_ERROR, Source.BORROWED), kernels=choice.place)


def _in_order(kernels: Mapping[str, Kernel], form: str, name: str) -> Iterator[tuple[str, Kernel]]:
    """Kernels of a format: the one of that name first, then the library's own choice, then any."""
    of_form = {key: kernel for key, kernel in kernels.items() if key.partition(NAME_MARK)[0] == form}
    order = {key: (not _is_named(key, of_form[key], name), key != form, key) for key in of_form}
    yield from ((key, of_form[key]) for key in sorted(of_form, key=order.__getitem__))


def _is_named(key: str, kernel: object, name: str) -> bool:
    own = getattr(kernel, "name", "") or key.partition(NAME_MARK)[2]
    return not name or not own or _says(kernel, name) or name == own


def _says(kernel: object, name: str) -> bool:
    """Whether a row's name is the kernel's own, or goes on from it."""
    return name.partition(" ")[0] == getattr(kernel, "name", "")
