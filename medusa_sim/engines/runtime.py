"""How a step's kernels are launched: what is fused, what a launch costs, which kernels are called.

Runtimes live in `runtimes.toml` beside this file; every time in it carries its source. A runtime that is a
serving engine has terms besides (`engine.py`). A user's runtimes are `.toml` files with the same keys, in
`profiles/runtimes/` of the data folder or anywhere; they may inherit from a shipped engine.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import lru_cache
from pathlib import Path
from typing import Literal, NamedTuple

import msgspec

from medusa_sim.data import DataDir, find, stems
from medusa_sim.engines.case import Case
from medusa_sim.engines.engine import VERSIONED, Engine, unversioned
from medusa_sim.engines.engine_table import EngineToml, engine_of
from medusa_sim.engines.nearness import kernels_half_share, widenings
from medusa_sim.engines.place import Place, version_numbers
from medusa_sim.engines.widening import Widening
from medusa_sim.errors import SpecError, shown, unknown_name
from medusa_sim.gpus.gpu import Gpu
from medusa_sim.reading.documents import read_toml
from medusa_sim.reading.files import FileState, file_state
from medusa_sim.reading.strict import Sourced, Text, Us, check_dtypes, convert

UNTIMED = ("llama-cpp",)
"""Engines whose settings are known, but not their time between kernels: kernels alone are timed."""
RUNTIMES_FILE = Path(__file__).with_name("runtimes.toml")
LOCAL_FILE = Path(__file__).with_name("local_runtimes.toml")

FOLDER = "profiles/runtimes"
_NAMES = "names"
"""The table of `runtimes.toml` that gives the version of a bare name."""
VERSION_WIDEN = 1.25
"""Factor on bands where one version of an engine stands for another."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Runtime:
    """A way to launch kernels."""

    name: str
    title: str
    kernels: dict[str, str]
    """Default kernel set by dtype of the linear layers."""
    fused_qkv: bool
    """Whether the projections to Q, K and V are one GEMM."""
    fused_gate_up: bool
    """Whether gate and up projection are one GEMM."""
    attention: Literal["fused", "unfused"]
    """One fused kernel, or the two products of the Medusa paper's Table 5."""
    head_rows: Literal["all", "accepted"]
    """Whether Medusa heads run on all candidates, as public code does, or on the accepted row alone."""
    launch_us: float
    """Gap on the device for each launched kernel."""
    host_us_per_launch: float
    """Time of the host for each kernel; the host works ahead of the device (`step/compose.py`)."""
    host_us_per_step: float
    """Time of the host for each forward pass."""
    host_us_per_drafted_step: float = 0.0
    """Time of the code around drafts and acceptance while the device waits (N15)."""
    host_us_per_lookup: float = 0.0
    """The same, where drafts are looked up in the text."""
    host_us_per_level: float = 0.0
    """The same between two levels of a tree whose drafter reads features of the target."""
    host_us_per_model_level: float = 0.0
    """The same of a draft model's tree, which hands on tokens alone."""
    repeats_kv: bool = False
    """Whether K and V are copied for every query head."""
    library: str = ""
    """Kernel set with an engine's own layers of experts, latent attention and collectives; used where some
    were measured on the GPU."""
    engine: Engine | None = None
    """The serving engine; None for kernels alone."""
    widenings: tuple[Widening, ...] = ()
    """Widenings of the band of its steps, of which the smallest counts (`engines/nearness.py`)."""
    kernels_half_share: float = 1.0
    """Share of the half-width of a plain step's kernels that counts (`engines/nearness.py`)."""
    versions: tuple[str, str] | None = None
    """First and last version of the engine whose terms these are."""
    asked: str = ""
    """A version that was asked for and stands under another name."""
    backend: str = ""
    """Attention kernel that the engine was told to take, by its key in `backends.toml`; empty: its own
    choice."""
    local: str = ""
    """Backend of a local engine, with the kernels of `gpus/local.toml`; empty: a server."""
    sources: dict[str, str] = field(default_factory=dict)
    """By field, the document of each time."""
    notes: dict[str, str] = field(default_factory=dict)
    """By field, how it was read."""

    def kernel_set(self, dtype: str) -> str:
        """Name of the default kernel set for linear layers of `dtype`. Raises SpecError where none is."""
        try:
            return self.kernels[dtype]
        except KeyError:
            known = ", ".join(self.kernels)
            raise SpecError(
                f"runtime {self.name} names no kernel set for dtype {dtype!r} (it has: {known}); "
                "choose one with --kernels, or another dtype"
            ) from None

    def step_kernels(self, gpu: Gpu, dtype: str) -> str:
        """Name of the kernel set of a whole step on a GPU. Raises SpecError where none is named for it."""
        named = self.kernel_set(dtype)
        return named if named == "paper" else gpu.step_kernels.get(dtype, named)

    def drafting(self, drafter: str) -> Runtime:
        """The runtime in a step with this drafter, which may turn off asynchronous scheduling."""
        return self if self.engine is None else replace(self, engine=self.engine.drafting(drafter))

    @property
    def kernels_alone(self) -> Runtime:
        """The same kernels without what the engine adds; unchanged if the runtime is not an engine.

        Unlike `cuda-graph`, kernels are merged and padded as the engine runs them.
        """
        if self.engine is None:
            return self
        return replace(self, name=f"{self.name}, kernels alone", engine=self.engine.kernels_alone)

    def is_measured(self, terms: str = "") -> bool:
        """Whether some version of the engine was measured; True for a runtime that is not an engine.

        terms: how the names of those begin that are asked about (`engine.DRAFTING`); empty: any.
        """
        engine = self.engine
        return engine is None or bool(self.local) or engine.is_measured(unversioned(self.name), terms)

    @property
    def holds_asked(self) -> bool:
        """Whether its terms were measured with the version that was asked for."""
        return not self.asked or self.versions is None or _distance(self.asked, self.versions) == (0, 0, 0)

    def at(self, case: Case) -> Runtime:
        """The runtime in a set-up: terms as they are there (`Term.at`), and the widenings of its bands.

        Kernels as a profiler times them, which nothing launches, have no widenings: they are no step.
        """
        is_launched = max(self.launch_us, self.host_us_per_launch) > 0.0
        is_near = bool(case.gpu) and (is_launched if self.engine is None else not self.local)
        return replace(
            self,
            engine=None if self.engine is None else self.engine.at(case),
            widenings=widenings(self.place(case)) if is_near else (),
            kernels_half_share=kernels_half_share(self.place(case)) if is_near else 1.0,
        )

    def place(self, case: Case) -> Place:
        """The place of a set-up in this runtime."""
        version = self.name if self.holds_asked else self.asked
        card = case.gpu, case.generation
        return Place(self.library, version, *card, case.formats, case.sizes, case.form)

    @property
    def chain_only(self) -> bool:
        """Whether it cannot verify trees."""
        return self.engine is not None and self.engine.chain_only

    @property
    def fills_lookups(self) -> bool:
        """Whether each request verifies as many drafts as every other, found or not."""
        return self.engine is not None and self.engine.fills_lookups

    @property
    def draft_reads_back(self) -> bool:
        """Whether a drafter reads the verified tokens in a pass of its own (`engines.engine.Engine`)."""
        return self.engine is not None and self.engine.draft_reads_back


def runtime_names(data_dir: DataDir = None) -> tuple[str, ...]:
    """Names in `runtimes.toml` in the order of the file, then the user's."""
    shipped = _shipped().runtimes
    own = (name for name in stems(FOLDER, (".toml",), data_dir) if name not in shipped)
    return (*shipped, *own)


def runtime_aliases() -> dict[str, str]:
    """Names of engines without a version, and the version that each means: the newest."""
    return dict(_shipped().aliases)


def local_runtime_names() -> tuple[str, ...]:
    """Names of local engines, in the order of their file."""
    return tuple(_local().runtimes)


def load_runtime(name: str, data_dir: DataDir = None) -> Runtime:
    """A runtime by name (`vllm` is its newest version), or the one in a `.toml` file.

    Another version of a known engine (`vllm-0.16`) is the one that holds it, else the nearest, whose bands
    are then VERSION_WIDEN times as wide. Raises SpecError for an unknown name (with the nearest) or a
    malformed file.
    """
    found = _found(name, data_dir)
    if found is None:
        known = (*runtime_names(data_dir), *runtime_aliases(), *local_runtime_names())
        raise SpecError(_unknown("runtime", name, known))
    return found


def load_engine(name: str, data_dir: DataDir = None) -> Runtime:
    """As `load_runtime`, where an engine was asked for: for an unknown name the error lists engines alone."""
    found = _found(name, data_dir)
    if found is None:
        raise SpecError(_unknown("engine", name, (*runtime_aliases(), *local_runtime_names())))
    return found


def _found(name: str, data_dir: DataDir) -> Runtime | None:
    """The runtime of `load_runtime`; None for an unknown name."""
    runtimes, aliases = _shipped()
    chosen = aliases.get(name, name)
    path = None if name in aliases else find(FOLDER, f"{chosen}.toml", data_dir)
    if chosen.endswith(".toml") or "/" in chosen:
        path = Path(chosen).expanduser()
    if path is not None:
        return _own(file_state(path), file_state(RUNTIMES_FILE))
    if chosen in runtimes:
        return runtimes[chosen]
    local = _local()
    if (own := local.aliases.get(name, name)) in local.runtimes:
        return local.runtimes[own]
    return _nearest(chosen.lower(), runtimes)


def _nearest(name: str, runtimes: dict[str, Runtime]) -> Runtime | None:
    """The runtime whose versions include this one, else the nearest; None for an unknown engine."""
    found = VERSIONED.fullmatch(name)
    if found is None:
        return None
    engine, version = found.groups()
    known = [one for one in runtimes.values() if one.versions and one.name.startswith(f"{engine}-")]
    if not known:
        return None

    def order(runtime: Runtime) -> tuple[tuple[int, int, int], tuple[int, int, int]]:
        assert runtime.versions is not None  # noqa: S101  # those without are left out
        return _distance(version, runtime.versions), version_numbers(runtime.versions[0])

    chosen = replace(min(known, key=order), asked=name)
    if chosen.engine is None or chosen.versions is None or _distance(version, chosen.versions) == (0, 0, 0):
        return chosen
    return replace(chosen, engine=chosen.engine.widen_bands(VERSION_WIDEN))


def _distance(version: str, span: tuple[str, str]) -> tuple[int, int, int]:
    """Majors, minors and patches between a version and a span; zeros inside (0.11.1 is inside 0.11)."""
    own, first, last = version_numbers(version), version_numbers(span[0]), version_numbers(span[1])
    depth = 1 + span[1].count(".")
    if first <= own and own[:depth] <= last[:depth]:
        return (0, 0, 0)
    low, high = (own, first) if own < first else (last, own)
    if low[0] != high[0]:  # from the end of one major to the start of the other
        return (high[0] - low[0], *((high[1:]) if own < first else (-last[1], -last[2])))
    return (0, high[1] - low[1], abs(high[2] - low[2]) if high[1] == low[1] else 0)


def _unknown(kind: str, given: str, known: tuple[str, ...]) -> str:
    """The message for an unknown name of a runtime or engine."""
    if given.lower() in UNTIMED:
        return (
            f"{kind} {shown(given)}: it has a runtime for each backend; choose "
            f"{', '.join(local_runtime_names())}, and `recommend --export {given.lower()}` for its settings"
        )
    return unknown_name(kind, given, known)


class _Known(NamedTuple):
    """The runtimes of a file by name, and other names of these."""

    runtimes: dict[str, Runtime]
    aliases: dict[str, str]


def _shipped() -> _Known:
    return _runtimes(file_state(RUNTIMES_FILE))


def _local() -> _Known:
    return _runtimes(file_state(LOCAL_FILE))


@lru_cache(maxsize=4)
def _runtimes(state: FileState) -> _Known:
    content = read_toml(state.path, "a file of runtimes")
    names = convert(content.pop(_NAMES, {}), dict[str, str], state.path, key=_NAMES)
    runtimes: dict[str, Runtime] = {}
    for name, given in content.items():
        runtimes[name] = _runtime(name, given, f"{state.path}", name, runtimes)
    for alias, name in names.items():
        if name not in runtimes:
            raise SpecError(f"{state.path}: {_NAMES}.{alias}: {unknown_name('runtime', name, runtimes)}")
    return _Known(runtimes, names)


@lru_cache(maxsize=16)
def _own(state: FileState, shipped: FileState) -> Runtime:
    """The runtime of a user's file."""
    del shipped  # part of the key: what it inherits from may have changed
    content = read_toml(state.path, "a runtime's name or the path of its TOML file")
    return _runtime(state.path.stem, content, str(state.path), "", _shipped().runtimes)


class _Relative(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A runtime of a file that inherits from a shipped engine."""

    inherits: str
    title: Text
    versions: tuple[Text, Text] | None = None
    library: str | None = None
    backend: str = ""
    local: str = ""
    engine: EngineToml


class _Whole(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A runtime of a file that says everything itself."""

    title: Text
    kernels: dict[str, Text]
    fused_qkv: bool
    fused_gate_up: bool
    attention: Literal["fused", "unfused"]
    head_rows: Literal["all", "accepted"]
    launch_us: Sourced[Us]
    host_us_per_launch: Sourced[Us]
    host_us_per_step: Sourced[Us]
    host_us_per_drafted_step: Sourced[Us] | None = None
    host_us_per_lookup: Sourced[Us] | None = None
    host_us_per_level: Sourced[Us] | None = None
    host_us_per_model_level: Sourced[Us] | None = None
    repeats_kv: bool = False
    library: str = ""
    backend: str = ""
    local: str = ""
    versions: tuple[Text, Text] | None = None
    engine: EngineToml | None = None


def _runtime(name: str, content: object, where: str, key: str, known: dict[str, Runtime]) -> Runtime:
    """The runtime that `content` describes, at `key` of the file `where`. known: it may inherit from one."""
    below = f"{key}." if key else ""
    if isinstance(content, dict) and "inherits" in content:
        relative = convert(content, _Relative, where, key=key)
        engines = {name: one.engine for name, one in known.items() if one.engine is not None}
        if relative.inherits not in engines:
            raise SpecError(f"{where}: {below}inherits: {unknown_name('engine', relative.inherits, engines)}")
        lender = known[relative.inherits]
        lent = (relative.inherits, engines[relative.inherits])
        engine = engine_of(relative.engine, lent, where, f"{below}engine")
        library = lender.library if relative.library is None else relative.library
        return replace(
            lender, name=name, title=relative.title, library=library, engine=engine,
            versions=relative.versions, backend=relative.backend or lender.backend,
            local=relative.local or lender.local,
        )  # fmt: skip
    whole = convert(content, _Whole, where, key=key)
    check_dtypes(whole.kernels, where, f"{below}kernels")
    fields = {name: value for name in whole.__struct_fields__ if (value := getattr(whole, name)) is not None}
    if whole.engine is not None:
        fields["engine"] = engine_of(whole.engine, None, where, f"{below}engine")
    times = {name: value for name, value in fields.items() if isinstance(value, Sourced)}
    return Runtime(
        name=name,
        **fields | {name: number.value for name, number in times.items()},
        sources={key: number.source for key, number in times.items()},
        notes={key: number.note for key, number in times.items() if number.note},
    )
