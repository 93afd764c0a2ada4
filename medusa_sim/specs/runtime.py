"""How a step's kernels are launched: what is fused, what a launch costs, which kernels are called.

Runtimes live in `runtimes.toml` beside this file; every time in it carries its source. A runtime that is a
serving engine has more to say (`engine.py`). One's own lie in `profiles/runtimes/` of the data folder or
anywhere as a `.toml` file: a table of the same keys, which may inherit from a shipped engine.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import lru_cache
from pathlib import Path
from typing import Literal

import msgspec

from medusa_sim.data import DataDir, find, stems
from medusa_sim.errors import SpecError, shown, unknown_name
from medusa_sim.reading import FileState, file_state, read_toml
from medusa_sim.specs.engine import DRAFTING, Engine, EngineToml, engine_of
from medusa_sim.specs.strict import Sourced, Text, Us, check_dtypes, convert

UNTIMED = ("tgi", "llama-cpp")
"""Engines whose settings are known, but not their time between kernels: kernels alone are timed."""
RUNTIMES_FILE = Path(__file__).with_name("runtimes.toml")

FOLDER = "profiles/runtimes"
_NAMES = "names"
"""The table of `runtimes.toml` that says which version a bare name stands for."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Runtime:
    """A way to launch kernels.

    kernels: default kernel set by dtype of the linear layers. fused_qkv, fused_gate_up: whether those
    projections are one GEMM. repeats_kv: whether K and V are copied for every query head. attention: one
    fused kernel, or the two products of the paper's Table 5.
    launch_us: gap on the device for each launched kernel. host_us_per_launch, host_us_per_step: time
    of the host, which works ahead of the device (`step/compose.py`). host_us_per_drafted_step: what the code
    around drafts and acceptance takes while the device waits. head_rows: whether Medusa heads run on
    all candidates, as public code does, or on the accepted row alone.
    library: kernel set of an engine's own layers of experts, latent attention and collectives, used where
    some were measured on the GPU. engine: what a serving engine adds; None for kernels alone. sources, notes:
    by field, the document of each time and how it was read.
    """

    name: str
    title: str
    kernels: dict[str, str]
    fused_qkv: bool
    fused_gate_up: bool
    attention: Literal["fused", "unfused"]
    head_rows: Literal["all", "accepted"]
    launch_us: float
    host_us_per_launch: float
    host_us_per_step: float
    host_us_per_drafted_step: float = 0.0
    repeats_kv: bool = False
    library: str = ""
    engine: Engine | None = None
    sources: dict[str, str] = field(default_factory=dict)
    notes: dict[str, str] = field(default_factory=dict)

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

    def drafting(self, drafter: str) -> Runtime:
        """The runtime in a step that this drafter drafts for: its scheduling may not be asynchronous then."""
        return self if self.engine is None else replace(self, engine=self.engine.drafting(drafter))

    @property
    def kernels_alone(self) -> Runtime:
        """The same kernels without what the engine adds to them; itself where it is no engine."""
        if self.engine is None:
            return self
        return replace(self, name=f"{self.name}, kernels alone", engine=self.engine.kernels_alone)

    @property
    def is_measured(self) -> bool:
        """Whether it is no engine, or one of which some version was measured."""
        return self._measures("")

    @property
    def is_drafting_measured(self) -> bool:
        """Whether it is no engine, or one of which some version was measured while it drafts."""
        return self._measures(DRAFTING)

    def _measures(self, of: str) -> bool:
        return self.engine is None or self.engine.is_measured(self.name.partition("-")[0], of)

    @property
    def chain_only(self) -> bool:
        """Whether it runs no trees."""
        return self.engine is not None and self.engine.chain_only


def runtime_names(data_dir: DataDir = None) -> tuple[str, ...]:
    """Names in `runtimes.toml` in the order of the file, then one's own."""
    shipped = _shipped()[0]
    own = (name for name in stems(FOLDER, (".toml",), data_dir) if name not in shipped)
    return (*shipped, *own)


def runtime_aliases() -> dict[str, str]:
    """Names of engines without a version, and the version that each stands for: the newest."""
    return dict(_shipped()[1])


def load_runtime(name: str, data_dir: DataDir = None) -> Runtime:
    """A runtime by name (`vllm` is its newest version), or the one in a `.toml` file.

    Raises SpecError for an unknown name (with the nearest) or a malformed file.
    """
    runtimes, aliases = _shipped()
    chosen = aliases.get(name, name)
    if chosen.endswith(".toml") or "/" in chosen:
        return _own(Path(chosen).expanduser())
    path = None if name in aliases else find(FOLDER, f"{chosen}.toml", data_dir)
    if path is not None:
        return _own(path)
    if chosen not in runtimes:
        raise SpecError(_unknown(name, (*runtime_names(data_dir), *aliases)))
    return runtimes[chosen]


def _unknown(given: str, known: tuple[str, ...]) -> str:
    """One line for a name that is not there; for another version of a known engine, those that are."""
    if given.lower() in UNTIMED:
        return (
            f"runtime {shown(given)}: nobody measured its steps; choose cuda-graph (kernels alone), and "
            f"`recommend --export {given.lower()}` for its settings"
        )
    engine, _, version = given.lower().rpartition("-")
    versions = [name for name in known if engine and name.startswith(f"{engine}-")]
    if versions and any(digit.isdigit() for digit in version):
        newest = f" ({engine} is the newest, {_shipped()[1][engine]})" if engine in _shipped()[1] else ""
        return (
            f"unknown runtime {shown(given)}: no terms are known for this version of {engine}; choose the "
            f"nearest of {', '.join(versions)}{newest}, or fit yours with "
            "`medusa-sim calibrate engine FILE`"
        )
    return unknown_name("runtime", given, known)


def _shipped() -> tuple[dict[str, Runtime], dict[str, str]]:
    return _runtimes(file_state(RUNTIMES_FILE))


@lru_cache(maxsize=4)
def _runtimes(state: FileState) -> tuple[dict[str, Runtime], dict[str, str]]:
    content = read_toml(state.path, "a file of runtimes")
    names = convert(content.pop(_NAMES, {}), dict[str, str], state.path, key=_NAMES)
    runtimes: dict[str, Runtime] = {}
    for name, given in content.items():
        runtimes[name] = _runtime(name, given, f"{state.path}", name, runtimes)
    for alias, name in names.items():
        if name not in runtimes:
            raise SpecError(f"{state.path}: {_NAMES}.{alias}: {unknown_name('runtime', name, runtimes)}")
    return runtimes, names


@lru_cache(maxsize=16)
def _read_own(state: FileState, shipped: FileState) -> Runtime:
    del shipped  # part of the key: what it inherits from may have changed
    content = read_toml(state.path, "a runtime's name or the path of its TOML file")
    return _runtime(state.path.stem, content, str(state.path), "", _shipped()[0])


def _own(path: Path) -> Runtime:
    return _read_own(file_state(path), file_state(RUNTIMES_FILE))


class _Relative(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A runtime of a file that inherits from a shipped engine."""

    inherits: str
    title: Text
    library: str | None = None
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
    repeats_kv: bool = False
    library: str = ""
    engine: EngineToml | None = None


def _runtime(name: str, content: object, where: str, key: str, known: dict[str, Runtime]) -> Runtime:
    """The runtime that `content` describes, at `key` of the file `where`. known: it may inherit from one."""
    below = f"{key}." if key else ""
    if isinstance(content, dict) and "inherits" in content:
        relative = convert(content, _Relative, where, key=key)
        engines = {name: of.engine for name, of in known.items() if of.engine is not None}
        if relative.inherits not in engines:
            raise SpecError(f"{where}: {below}inherits: {unknown_name('engine', relative.inherits, engines)}")
        lender = known[relative.inherits]
        lent = (relative.inherits, engines[relative.inherits])
        engine = engine_of(relative.engine, lent, where, f"{below}engine")
        library = lender.library if relative.library is None else relative.library
        return replace(lender, name=name, title=relative.title, library=library, engine=engine)
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
