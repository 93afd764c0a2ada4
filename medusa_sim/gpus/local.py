"""Local engines (llama.cpp, MLX): what a device says to them, and the laws of their kernels.

A law belongs to a backend and a class of GPUs (`local.toml`): how fast a matrix of each type is read, what
unpacking and multiplying it takes for each column, at how many columns another kernel takes over.
`latency/local.py` has the equations. Devices that local engines alone run on lie in `hardware/local/`; a GPU
of a data centre says in its own file what they must know (`[local]`).
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from typing import Annotated, Any, Literal, TypeAlias

import msgspec
from msgspec import Meta

from medusa_sim.errors import SpecError, unknown_name
from medusa_sim.file_types import TYPES
from medusa_sim.reading.documents import read_toml
from medusa_sim.reading.files import FileState, file_state
from medusa_sim.reading.strict import Sourced, Text, convert

Backend: TypeAlias = Literal["cuda", "rocm", "vulkan", "metal", "cpu", "mlx"]
Group: TypeAlias = Literal["data centre", "workstation", "consumer", "laptop", "embedded", "Apple", "CPU"]
"""Kind of machine, by which lists are grouped."""

LLAMA_CPP = "llama.cpp"
"""An engine with a runtime for each backend."""
LAWS_FILE = Path(__file__).with_name("local.toml")

_Positive = Annotated[float, Meta(gt=0.0, le=1e3)]
_Ops = Annotated[float, Meta(ge=0.0, le=1e4, description="operations of a lane")]
_Columns = Annotated[int, Meta(ge=1, le=4096, description="columns")]
UNOPENED = "published figures, no sheet was opened"
"""How sources begin of numbers that somebody knew and nobody looked up."""


class LocalDevice(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Numbers of a device that local engines need besides its data sheet."""

    group: Group
    target: Text
    """Its name in compilers: `sm_86`, `gfx1100`, `apple9` (GPU family), `avx512`, `neon`."""
    vector_ops_per_s: Sourced[Annotated[float, Meta(ge=1e9, le=1e16, description="operations/s")]]
    """Of the units that dequantise: lanes (32-bit integers where the GPU counts them apart) times clock."""
    bandwidth_share: Sourced[Annotated[float, Meta(gt=0.0, le=1.5)]] | None = None
    """Share of the bandwidth that other devices of its class reach (None: as much)."""
    board_watts: Sourced[Annotated[float, Meta(ge=1.0, le=2e3)]] | None = None
    """Power of the board, or of the chip of a device without one, at which `vector_ops_per_s` holds."""
    gpu_memory_share: Sourced[Annotated[float, Meta(gt=0.0, le=1.0)]] | None = None
    """Of a memory that the host uses too, what the GPU may hold; None: it has its own."""


class TypeLaw(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Matrix-vector products of one type: lane operations a weight, once a pass and for each column."""

    share: _Positive
    """Share of the bandwidth that reading blocks of the type reaches."""
    unpack: _Ops = 0.0
    column: _Ops
    single: _Ops | None = None
    """Of a product of one column, where another kernel does it (None: unpack and column)."""
    tiles: _Positive = 1.0
    """Share of the unpacking after the switch."""
    limit: _Columns | None = None
    """Columns up to which its products are matrix-vector ones (None: the law's)."""
    separate: Annotated[int, Meta(ge=1, le=64)] = 1
    """Columns up to which each is a product of its own, which reads the matrix again."""
    overlap: _Positive | None = None
    """Exponent of the smooth maximum, where it is not the law's: 1 where reading and arithmetic add up."""
    blocks: tuple[tuple[_Columns, _Ops], ...] = ()
    """(columns, lane operations a weight) of blocks that columns are cut into, the widest first; of one
    column last. Instead of unpack and column."""


class MatrixLaw(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Products after the switch, in tiles of columns."""

    tile: _Columns
    share: _Positive
    unpack: _Ops
    """Lane operations a weight of the first tile: unpacking to the tile's own format."""
    column: _Ops = 0.0
    """More for every further column, in whole tiles."""
    peak: Annotated[float, Meta(ge=0.0, le=2.0)] = 0.0
    """Of the device's peak in fp16 (0: the law's lane operations say it all)."""


class LocalLaw(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Kernels of one backend on one class of devices. Times in microseconds."""

    name: Text
    backend: Backend
    targets: tuple[Text, ...]
    """How the devices' targets begin."""
    source: Text
    measured: bool = True
    """Whether rows of this class were fitted; else constants are taken from a neighbour."""
    overlap: _Positive
    """Exponent of the smooth maximum of memory and arithmetic."""
    launch_us: Annotated[float, Meta(ge=0.0, le=1e4)]
    """Of a product on top of its bytes."""
    pass_us: Annotated[float, Meta(ge=0.0, le=1e4)]
    """Of a norm, a rotation, a sum."""
    step_us: Annotated[float, Meta(ge=0.0, le=1e5)] = 0.0
    """Of every forward pass: the graph is set up, inputs are copied, the device is waited for."""
    barrier_us: Annotated[float, Meta(ge=0.0, le=1e4)] = 0.0
    """More of every launch on a device of several cores, whose threads wait for each other."""
    limit: _Columns
    group: _Columns
    """Columns of one pass over the matrix; more are further passes, each of which unpacks again."""
    limits: dict[str, dict[str, _Columns]] = {}
    """How targets begin -> type (or `else`) -> columns up to which products are matrix-vector ones."""
    types: dict[str, TypeLaw]
    matrix: MatrixLaw
    grouped: MatrixLaw
    """The same of experts, each with the tokens that chose it."""
    half: MatrixLaw | None = None
    """Products of 16-bit weights after the switch, where another kernel has them."""
    pairs: _Columns
    """Tokens up to which every pair of token and expert is a product of its own."""
    pair_limits: dict[str, dict[str, _Columns]] = {}
    """The same as in `limits`: by how targets begin, then by type."""
    pair_share: _Positive = 1.0
    """Of `share`, what products of single experts reach: small matrices."""
    routing_us: Annotated[float, Meta(ge=0.0, le=1e4)] = 0.0
    """Of a layer of experts on top of its products: the choice of experts, weights, sums."""
    matrix_of: dict[str, _Positive] = {}
    """Target -> of what tiles take on other devices of the class."""
    sorted_us: Annotated[float, Meta(ge=0.0, le=1e5)] = 0.0
    """Of a layer of experts after that: pairs are sorted by expert."""
    attention_share: _Positive
    """Of the bandwidth that reading K and V reaches."""
    attention_us: Annotated[float, Meta(ge=0.0, le=1e4)]
    attention_ops: _Ops = 0.0
    """Lane operations for each pair of query and element of K and V."""
    attention_step: _Columns = 1
    """Elements of a head that are taken at once; the rest is taken one by one."""
    attention_left_ops: _Ops = 0.0
    """The same for each element that is left."""
    row_us_per_million: Annotated[float, Meta(ge=0.0, le=1e5)] = 0.0
    """Of each row of logits, for a million of them: brought to the host and sampled there."""
    curve: tuple[tuple[float, float], ...] = ()
    """(columns, logarithm of a factor) on products, where somebody's own rows left something."""
    band: Annotated[float, Meta(ge=0.0, le=3.0)]
    """80 % half-width of a product's time, in the logarithm."""
    beyond: tuple[float, float] | None = None
    """(columns, band): the half-width of more columns than somebody's own rows have."""

    def of_type(self, weights: str) -> TypeLaw:
        """The law of a type; a type that nobody measured has the law of the nearest by bits."""
        if weights in self.types:
            return self.types[weights]
        nearest = min(self.types, key=lambda name: abs(TYPES[name] - TYPES.get(weights, 2.0)))
        return self.types[nearest]

    def columns(self, weights: str, target: str) -> int:
        """Columns up to which products with weights of a type are matrix-vector ones on a device."""
        own = _of_target(self.limits, target)
        return own.get(weights) or self.of_type(weights).limit or own.get("else") or self.limit

    def overlap_of(self, weights: str) -> float:
        """Exponent of the smooth maximum of memory and arithmetic of a type."""
        return self.of_type(weights).overlap or self.overlap

    def pair_columns(self, weights: str, target: str) -> int:
        """Tokens up to which every pair of token and expert is a product of its own."""
        own = _of_target(self.pair_limits, target)
        return own.get(weights) or own.get("else") or self.pairs


def _of_target(tables: dict[str, dict[str, int]], target: str) -> dict[str, int]:
    """The table whose key is the longest start of a target; empty where there is none."""
    key = max((key for key in tables if target.startswith(key)), key=len, default="")
    return tables.get(key, {})


class _File(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    law: tuple[LocalLaw, ...]


@lru_cache(maxsize=4)
def _laws(state: FileState) -> tuple[LocalLaw, ...]:
    content: dict[str, Any] = read_toml(state.path, "the laws of local engines")
    laws = convert(content, _File, state.path).law
    for law in laws:
        tables: tuple[dict[str, Any], ...] = (law.types, *law.pair_limits.values(), *law.limits.values())
        for types in tables:
            for name in types:
                if name not in TYPES and name != "else":
                    raise SpecError(f"{state.path}: law {law.name}: {unknown_name('type', name, TYPES)}")
    return laws


def laws() -> tuple[LocalLaw, ...]:
    """Every law, in the order of the file."""
    return _laws(file_state(LAWS_FILE))


def local_law(backend: str, gpu: str, device: LocalDevice | None) -> LocalLaw:
    """The law of a backend on a device. Raises SpecError where it does not run there, naming what does."""
    if device is None:
        raise SpecError(
            f"{gpu} says nothing to local engines: its file has no [local] table with target and "
            "vector_ops_per_s; choose another GPU or an engine of a server"
        )
    found = [law for law in laws() if device.target.startswith(law.targets)]
    for law in found:
        if law.backend == backend:
            return law
    has = ", ".join(runtimes_of(device)) or "none"
    raise SpecError(
        f"{runtime_of_backend(backend)} does not run on {gpu} ({device.target}); what does: {has}"
    )


def runtimes_of(device: LocalDevice | None) -> tuple[str, ...]:
    """Names of the runtimes that a device runs."""
    return tuple(dict.fromkeys(runtime_of_backend(law.backend) for law in laws_of(device)))


def with_backend(engine: str, device: LocalDevice | None) -> str:
    """Of `llama.cpp` the first runtime that a device runs; any other name as it is."""
    if engine != LLAMA_CPP:
        return engine
    return next((name for name in runtimes_of(device) if name.startswith(f"{engine}-")), engine)


def laws_of(device: LocalDevice | None) -> tuple[LocalLaw, ...]:
    """The laws of a device, one for each backend that runs there."""
    return () if device is None else tuple(law for law in laws() if device.target.startswith(law.targets))


def is_unopened(sources: Mapping[str, str]) -> bool:
    """Whether some number of a device, by its sources, was never looked up."""
    return any(source.startswith(UNOPENED) for source in sources.values())


def runtime_of_backend(backend: str) -> str:
    """Name of the runtime with that backend."""
    return backend if backend == "mlx" else f"{LLAMA_CPP}-{backend}"
