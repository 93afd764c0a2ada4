"""One record for each kind of operator, from which every list of kinds follows.

Tables of operators, latency models, fits, sections of hardware files, sources, validation and the app loop
over KINDS. A new kind is an operator (a class in `operators/`), a table of fitted parameters (a field of
`gpus.kernels.KernelSet`) and a record here. `latency.stream` prices it; a kind with a law of its own has an
entry in `latency.laws` and a fit in `lab.calibrate.fits`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from medusa_sim.operators.attention import Attention
from medusa_sim.operators.collective import Collective
from medusa_sim.operators.dispatch import Dispatch
from medusa_sim.operators.elementwise import Elementwise
from medusa_sim.operators.experts import Experts
from medusa_sim.operators.gemm import Gemm
from medusa_sim.operators.hyper_connection import HyperConnection
from medusa_sim.operators.latent import LatentAttention
from medusa_sim.operators.operator import Operator, Size
from medusa_sim.operators.recurrent import Recurrent
from medusa_sim.operators.sparse import Sparse
from medusa_sim.operators.window import WindowAttention

if TYPE_CHECKING:
    from medusa_sim.gpus.kernels import Kernel, KernelSet

_BY_TOKENS = (1, 8, 64, 512, 4096, 65536, 4194304)


@dataclass(frozen=True, kw_only=True, eq=False)
class Kind:
    """A kind of operator."""

    title: str
    """Its name in text."""
    operator: type[Operator]
    names: tuple[str, ...]
    """Values of `Operator.kind`, which are also the names in the column `op` of tables."""
    section: str
    """Section of a kernel set in a hardware file: `[kernels.<set>.<section>.<key>]`."""
    groups: tuple[tuple[str, ...], ...]
    """Columns whose values a fit holds out together; the first tuple that varies over the rows is taken."""
    ranges: tuple[int, ...]
    """Upper ends of the ranges of `Operator.size` with a band each: new tokens, or bytes of collectives."""
    serial: str = ""
    """Section of its kernels on a device that overlaps nothing (a CPU), preferred where a set has both."""
    attention: Literal["", "grouped", "latent", "sparse"] = ""
    """Kind of attention; it decides an engine's kernel for several queries (`engines.backends`)."""
    is_chosen: bool = True
    """Whether a set holds kernels of several formats and libraries, keyed by the operator's `form`
    (`latency.choice.choose`); else it holds one for each name."""
    own_first: bool = False
    """Whether any form in a set that was asked for comes before the operator's own form in another set."""
    is_exact: bool = False
    """Whether only a kernel of the operator's own form counts as the kernel asked for."""

    def section_on(self, architecture: str) -> str:
        """Section of its kernels on a device of this architecture."""
        return self.serial if self.serial and architecture == "cpu" else self.section

    def place(self, operator: Operator, architecture: str) -> tuple[str, str]:
        """Section and key of an operator's kernel on a device of this architecture."""
        return self.section_on(architecture), operator.form if self.is_chosen else operator.kind

    def table(self, held: KernelSet) -> dict[str, Kernel]:
        """Its kernels in a set by key, those of `serial` included."""
        return {**held.table(self.section), **(held.table(self.serial) if self.serial else {})}


LINEAR = Kind(
    title="linear layers",
    operator=Gemm,
    names=("gemm",),
    section="gemm",
    groups=(("n", "k"),),
    ranges=(16, 64, 128, 256, 512, 1024, 4096),
    serial="serial_gemm",
)
FUSED = Kind(
    title="fused attention",
    operator=Attention,
    names=("decode_attention", "verify_attention", "prefill_attention"),
    section="attention",
    groups=(("heads", "kv_heads"), ("batch", "q_len"), ("kv_len", "head_dim")),
    ranges=_BY_TOKENS,
    serial="serial_attention",
    attention="grouped",
    is_chosen=False,
)
UNFUSED = Kind(
    title="unfused attention products",
    operator=Attention,
    names=("qk", "pv"),
    section="unfused",
    groups=(("kv_len",),),
    ranges=(16, 512, 1024, 4096),
    is_chosen=False,
)
ELEMENTWISE = Kind(
    title="elementwise kernels",
    operator=Elementwise,
    names=("rms_norm", "rope", "activation", "residual", "embedding", "next_token"),
    section="elementwise",
    groups=(("n",),),
    ranges=(16, 64, 256, 1024, 4096, 65536),
    is_chosen=False,
)
EXPERTS = Kind(
    title="layers of experts",
    operator=Experts,
    names=("moe",),
    section="moe",
    groups=(("hidden", "experts", "topk"), ("inter",)),
    ranges=(4, 16, 64, 256, 1024, 65536),
)
LATENT = Kind(
    title="latent attention",
    operator=LatentAttention,
    names=("mla_decode", "mla_prefill"),
    section="mla",
    groups=(("heads",), ("batch",)),
    ranges=_BY_TOKENS,
    attention="latent",
    own_first=True,
    is_exact=True,
)
COLLECTIVE = Kind(
    title="collectives",
    operator=Collective,
    names=("all_reduce", "all_gather", "reduce_scatter", "all_to_all"),
    section="collective",
    groups=(("message_bytes",),),
    ranges=(16384, 262144, 4194304, 67108864, 2147483648),
    own_first=True,
)
DISPATCH = Kind(
    title="dispatch of tokens to experts",
    operator=Dispatch,
    names=("dispatch", "combine"),
    section="dispatch",
    groups=(("ranks", "hidden"), ("tokens",)),
    ranges=(8, 64, 512, 4096, 65536),
    own_first=True,
    is_exact=True,
)
RECURRENT = Kind(
    title="linear attention",
    operator=Recurrent,
    names=("gdn", "kda", "mamba2"),
    section="recurrent",
    groups=(("heads", "key_heads"), ("batch",)),
    ranges=_BY_TOKENS,
    own_first=True,
    is_exact=True,
)
WINDOW = Kind(
    title="attention in a window",
    operator=WindowAttention,
    names=("window_attention",),
    section="window",
    groups=(("heads", "kv_heads", "head_dim"), ("batch",)),
    ranges=_BY_TOKENS,
    own_first=True,
    is_exact=True,
)
SPARSE = Kind(
    title="sparse attention",
    operator=Sparse,
    names=("dsa", "msa", "csa", "hca", "dsa_no_indexer"),
    section="sparse",
    groups=(("heads", "hidden"), ("batch",)),
    ranges=_BY_TOKENS,
    attention="sparse",
    own_first=True,
    is_exact=True,
)
CONNECTIONS = Kind(
    title="hyper-connections",
    operator=HyperConnection,
    names=("hyper_connections",),
    section="hyper",
    groups=(("tokens",),),
    ranges=(16, 64, 512, 4096, 65536, 1048576),
    own_first=True,
    is_exact=True,
)

KINDS = (
    LINEAR, FUSED, UNFUSED, ELEMENTWISE, EXPERTS, LATENT, COLLECTIVE, DISPATCH, RECURRENT, WINDOW, SPARSE,
    CONNECTIONS,
)  # fmt: skip
KIND_OF: dict[str, Kind] = {name: kind for kind in KINDS for name in kind.names}
"""The record of each `Operator.kind`."""


def operator_of(kind: str, dtype: str, sizes: Mapping[str, Size]) -> Operator:
    """The operator of a kind with the sizes of its COLUMNS."""
    made: Callable[..., Operator] = KIND_OF[kind].operator
    return made(name=kind, kind=kind, dtype=dtype, **sizes)
