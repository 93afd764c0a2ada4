"""One record for each kind of operator, from which every list of kinds follows.

Tables of operators, latency models, fits, sections of hardware files, sources, validation and the app are
loops over KINDS. A new kind is an operator (`operators/`), the table of its fitted parameters (`specs/`, a
field of `KernelSet`), its time (`latency/`), its fit (`calibrate/`), and a record here. What lies further
down the house, and operators that a dense model on one GPU has not, are named as `module:name` and imported
where they are asked for.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from importlib import import_module
from typing import TYPE_CHECKING, Any, TypeGuard, cast

from medusa_sim.operators.operator import ATTENTION_KINDS, ELEMENTWISE_KINDS, UNFUSED_KINDS, Operator, Size

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
    (`latency.choice`); else a set has one for each name."""
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


RANGES_OF_M = (16, 64, 128, 256, 512, 1024, 4096)
RANGES_OF_QUERIES = (1, 8, 64, 512, 4096, 65536, 4194304)

_STREAM: dict[str, Any] = {
    "time": "latency.stream:stream_time",
    "fit": "calibrate.stream:fit_stream",
    "own_first": True,
    "is_exact": True,
}

KINDS: tuple[Kind, ...] = (
    Kind(
        title="linear layers",
        made="operator:Gemm",
        names=("gemm",),
        section="gemm",
        serial="serial_gemm",
        time="latency.calibrated:linear_time",
        fit="calibrate.transfer:fit_linear",
        serial_fit="calibrate.serial:fit_serial_gemm",
        groups=(("n", "k"),),
        ranges=RANGES_OF_M,
    ),
    Kind(
        title="fused attention",
        made="operator:Attention",
        names=tuple(kind for kind in ATTENTION_KINDS if kind not in UNFUSED_KINDS),
        section="attention",
        serial="serial_attention",
        time="latency.calibrated:fused_time",
        fit="calibrate.attention:fit_attention",
        serial_fit="calibrate.serial:fit_serial_attention",
        groups=(("heads", "kv_heads"), ("batch", "q_len"), ("kv_len", "head_dim")),
        ranges=RANGES_OF_QUERIES,
        is_chosen=False,
    ),
    Kind(
        title="unfused attention products",
        made="operator:Attention",
        names=UNFUSED_KINDS,
        section="unfused",
        time="latency.calibrated:unfused_time",
        fit="calibrate.attention:fit_unfused",
        groups=(("kv_len",),),
        ranges=(16, 512, 1024, 4096),
        is_chosen=False,
    ),
    Kind(
        title="elementwise kernels",
        made="operator:Elementwise",
        names=ELEMENTWISE_KINDS,
        section="elementwise",
        time="latency.calibrated:pass_time",
        fit="calibrate.stream:fit_elementwise",
        groups=(("n",),),
        ranges=(16, 64, 256, 1024, 4096, 65536),
        is_chosen=False,
    ),
    Kind(
        title="layers of experts",
        made="experts:Experts",
        names=("moe",),
        section="moe",
        time="latency.moe:experts_time",
        fit="calibrate.moe:fit_experts",
        groups=(("hidden", "experts", "topk"), ("inter",)),
        ranges=(4, 16, 64, 256, 1024, 65536),
    ),
    Kind(
        title="latent attention",
        made="latent:LatentAttention",
        names=("mla_decode", "mla_prefill"),
        section="mla",
        time="latency.attention:latent_time",
        fit="calibrate.latent:fit_latent",
        groups=(("heads",), ("batch",)),
        ranges=RANGES_OF_QUERIES,
        own_first=True,
        is_exact=True,
    ),
    Kind(
        title="collectives",
        made="experts:Collective",
        names=("all_reduce", "all_gather", "reduce_scatter", "all_to_all"),
        section="collective",
        time="latency.collective:collective_time",
        fit="calibrate.collective:fit_collective",
        groups=(("message_bytes",),),
        ranges=(2**14, 2**18, 2**22, 2**26, 2**31),
        own_first=True,
    ),
    Kind(
        title="dispatch of tokens to experts",
        made="experts:Dispatch",
        names=("dispatch", "combine"),
        section="dispatch",
        time="latency.collective:dispatch_time",
        fit="calibrate.collective:fit_dispatch",
        groups=(("ranks", "hidden"), ("tokens",)),
        ranges=(8, 64, 512, 4096, 65536),
        own_first=True,
        is_exact=True,
    ),
    Kind(
        title="linear attention",
        made="recurrent:Recurrent",
        names=("gdn", "kda", "mamba2"),
        section="recurrent",
        **_STREAM,
        groups=(("heads", "key_heads"), ("batch",)),
        ranges=RANGES_OF_QUERIES,
    ),
    Kind(
        title="attention in a window",
        made="window:WindowAttention",
        names=("window_attention",),
        section="window",
        **_STREAM,
        groups=(("heads", "kv_heads", "head_dim"), ("batch",)),
        ranges=RANGES_OF_QUERIES,
    ),
    Kind(
        title="sparse attention",
        made="sparse:Sparse",
        names=("dsa", "msa", "csa", "hca", "dsa_no_indexer"),
        section="sparse",
        **_STREAM,
        groups=(("heads", "hidden"), ("batch",)),
        ranges=RANGES_OF_QUERIES,
    ),
    Kind(
        title="hyper-connections",
        made="stream:HyperConnection",
        names=("hyper_connections",),
        section="hyper",
        **_STREAM,
        groups=(("tokens",),),
        ranges=(16, 64, 512, 4096, 65536, 1048576),
    ),
)

KIND_OF: dict[str, Kind] = {name: kind for kind in KINDS for name in kind.names}
"""The record of each `Operator.kind`."""


def operator_of(kind: str, dtype: str, sizes: Mapping[str, Size], name: str | None = None) -> Operator:
    """The operator of a kind with the sizes of its COLUMNS. name None: the kind's."""
    made: Callable[..., Operator] = KIND_OF[kind].operator
    return made(name=name or kind, kind=kind, dtype=dtype, **sizes)


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
