"""One record for each kind of operator, from which every list of kinds follows.

Tables of operators, latency models, fits, sections of hardware files, sources, validation and the app are
loops over KINDS. A new kind is an operator (`operators/`), the table of its fitted parameters (`specs/`, a
field of `KernelSet`), its time (`latency/`), its fit (`lab/calibrate/`), and a record in `kinds.toml`. What
lies further down the house, and operators that a dense model on one GPU has not, are named as `module:name`
and imported where they are asked for.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeGuard, cast

from msgspec import convert

from medusa_sim.operators.operator import Operator, Size
from medusa_sim.reading import read_toml

if TYPE_CHECKING:
    from medusa_sim.operators.experts import Experts
    from medusa_sim.operators.recurrent import Recurrent
    from medusa_sim.operators.sparse import Sparse
    from medusa_sim.operators.window import WindowAttention
    from medusa_sim.specs.kernels import Kernel, KernelSet


@dataclass(frozen=True, kw_only=True)
class Kind:
    """A kind of operator."""

    title: str
    """What people call it."""
    made: str
    """`module:class` of its operator, in this folder."""
    names: tuple[str, ...]
    """Values of `Operator.kind`, which are names in the column `op` of tables."""
    section: str
    """Of a kernel set in a hardware file: `[kernels.<set>.<section>.<key>]`."""
    time: str
    """`module:function` of its time: (gpu, kernel, operator, cold, form) where `is_chosen`, else (model,
    operator)."""
    fit: str
    """`module:function` of its fit: (rows, gpu, source, name) -> kernel."""
    groups: tuple[tuple[str, ...], ...]
    """Columns whose combinations a fit holds out together; the first that tell rows apart."""
    ranges: tuple[int, ...]
    """Upper ends of the ranges of `Operator.size` for which bands are kept."""
    serial: str = ""
    """Section of the same on a device that overlaps nothing (a CPU); it comes first where a set has both."""
    serial_fit: str = ""
    is_chosen: bool = True
    """Whether kernels of several formats and libraries lie side by side, keyed by the operator's `form`
    (`latency.calibrated.choose`); else a set has one for each name."""
    own_first: bool = False
    """Whether sets that were asked for serve in any of the operator's forms before other sets do."""
    is_exact: bool = False
    """Whether a kernel of another form is not what was asked for."""

    @cached_property
    def operator(self) -> type[Operator]:
        """The class of `made`."""
        return cast("type[Operator]", _resolved(f"operators.{self.made}"))

    @cached_property
    def timer(self) -> Callable[..., Any]:
        """The function of `time`."""
        return _resolved(self.time)

    def fitter(self, architecture: str) -> Callable[..., Kernel]:
        """The function that fits rows of a device of that architecture."""
        return _resolved(self.serial_fit if self.serial and architecture == "cpu" else self.fit)

    def place(self, operator: Operator, architecture: str) -> tuple[str, str]:
        """Section and key of an operator's kernel in a set of a device of that architecture."""
        section = self.serial if self.serial and architecture == "cpu" else self.section
        return section, operator.form if self.is_chosen else operator.kind

    def table(self, held: KernelSet) -> dict[str, Kernel]:
        """Its kernels in a set by key, of either form."""
        return {**held.table(self.section), **(held.table(self.serial) if self.serial else {})}


def _resolved(place: str) -> Callable[..., Any]:
    module, _, name = place.partition(":")
    function: Callable[..., Any] = getattr(import_module(f"medusa_sim.{module}"), name)
    return function


KINDS: tuple[Kind, ...] = convert(
    read_toml(Path(__file__).with_name("kinds.toml"), "the kinds of operators")["kind"],
    tuple[Kind, ...],
)
KIND_OF: dict[str, Kind] = {name: kind for kind in KINDS for name in kind.names}
"""The record of each `Operator.kind`."""


def operator_of(kind: str, dtype: str, sizes: Mapping[str, Size]) -> Operator:
    """The operator of a kind with the sizes of its COLUMNS."""
    made: Callable[..., Operator] = KIND_OF[kind].operator
    return made(name=kind, kind=kind, dtype=dtype, **sizes)


# What an operator is, told by its family: an isinstance would import classes that few steps need.
def is_experts(operator: Operator) -> TypeGuard[Experts]:
    """Whether it is a layer of experts."""
    return operator.FAMILY == "moe"


def is_in_window(operator: Operator) -> TypeGuard[WindowAttention]:
    """Whether it is attention in a window, of its own kernel."""
    return operator.FAMILY == "window"


def is_sparse(operator: Operator) -> TypeGuard[Sparse]:
    """Whether it is a module of sparse attention."""
    return operator.FAMILY == "sparse"


def has_phase(operator: Operator) -> TypeGuard[Recurrent | Sparse]:
    """Whether it verifies with a kernel other than a plain step's."""
    return operator.FAMILY in ("recurrent", "sparse")
