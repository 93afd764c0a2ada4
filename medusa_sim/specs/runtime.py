"""How a step's kernels are launched: what is fused, what a launch costs, which kernels are called.

Runtimes live in `runtimes.toml` beside this file; every time in it carries its source. A runtime that is a
serving engine has more to say (`engine.py`). One's own lie in `profiles/runtimes/` of the data folder or
anywhere as a `.toml` file: a table of the same keys, which may inherit from a shipped engine.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import lru_cache
from pathlib import Path
from typing import Literal, cast

from medusa_sim.data import DataDir, find, stems
from medusa_sim.errors import SpecError, unknown_name
from medusa_sim.reading import FileState, file_state, read_toml
from medusa_sim.specs.engine import Engine, read_engine
from medusa_sim.specs.sourced import Sourced, Table
from medusa_sim.units import BYTES_PER_ELEMENT

RUNTIMES_FILE = Path(__file__).with_name("runtimes.toml")

FOLDER = "profiles/runtimes"
_NAMES = "names"
"""The table of `runtimes.toml` that says which version a bare name stands for."""
_TIMES = ("launch_us", "host_us_per_launch", "host_us_per_step")
_MAX_US = 1e6


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Runtime:
    """A way to launch kernels.

    kernels: default kernel set by dtype of the linear layers. fused_qkv, fused_gate_up: whether those
    projections are one GEMM. attention: one fused kernel, or the two products of the paper's Table 5.
    launch_us: gap on the device for each launched kernel. host_us_per_launch, host_us_per_step: time
    of the host, which works ahead of the device (`step/compose.py`). head_rows: whether Medusa heads run on
    all candidates, as public code does, or on the accepted row alone.
    engine: what a serving engine adds; None for kernels alone. sources, notes: by field, the document of each
    time and how it was read.
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
    """One line for a name that is not there; for another version of a known engine, which ones there are."""
    engine, _, version = given.lower().rpartition("-")
    versions = [name for name in known if engine and name.startswith(f"{engine}-")]
    if versions and any(digit.isdigit() for digit in version):
        return (
            f"unknown runtime {given!r}: no terms are known for this version of {engine}; choose the nearest "
            f"of {', '.join(versions)}, or fit your own with `medusa-sim calibrate --engine-bench FILE`"
        )
    return unknown_name("runtime", given, known)


def _shipped() -> tuple[dict[str, Runtime], dict[str, str]]:
    return _runtimes(file_state(RUNTIMES_FILE))


@lru_cache(maxsize=4)
def _runtimes(state: FileState) -> tuple[dict[str, Runtime], dict[str, str]]:
    content = Table(str(state.path), read_toml(state.path))
    found: dict[str, Runtime] = {}
    for name in content:
        if name != _NAMES:
            found[name] = _runtime(name, content.table(name), found)
    if _NAMES not in content:
        return found, {}
    names = content.table(_NAMES)
    return found, {alias: names.choice(alias, found) for alias in names}


@lru_cache(maxsize=16)
def _read_own(state: FileState, shipped: FileState) -> Runtime:
    del shipped  # part of the key: what it inherits from may have changed
    return _runtime(state.path.stem, Table(str(state.path), read_toml(state.path)), _shipped()[0])


def _own(path: Path) -> Runtime:
    if not path.exists():
        raise SpecError(f"{path}: no such file; give a runtime's name or the path of its TOML file")
    return _read_own(file_state(path), file_state(RUNTIMES_FILE))


def _runtime(name: str, table: Table, known: dict[str, Runtime]) -> Runtime:
    relative = None
    if "inherits" in table:
        relative = known[table.choice("inherits", [key for key, of in known.items() if of.engine])]
    if relative is not None and relative.engine is not None:
        runtime = replace(
            relative,
            name=name,
            title=table.text("title", what="one line that says what it is"),
            engine=read_engine(table.table("engine"), (relative.name, relative.engine)),
        )
        table.finish()
        return runtime
    kernels = table.table("kernels")
    for dtype in kernels:
        if dtype not in BYTES_PER_ELEMENT:
            kernels.fail(dtype, f"unknown dtype; allowed: {', '.join(BYTES_PER_ELEMENT)}")
    times: dict[str, Sourced] = {key: table.number(key, 0.0, _MAX_US, "microseconds") for key in _TIMES}
    runtime = Runtime(
        name=name,
        title=table.text("title", what="one line that says what it is"),
        kernels={dtype: kernels.text(dtype, what="a kernel set") for dtype in kernels},
        fused_qkv=table.flag("fused_qkv"),
        fused_gate_up=table.flag("fused_gate_up"),
        attention=cast("Literal['fused', 'unfused']", table.choice("attention", ("fused", "unfused"))),
        head_rows=cast("Literal['all', 'accepted']", table.choice("head_rows", ("all", "accepted"))),
        launch_us=times["launch_us"].value,
        host_us_per_launch=times["host_us_per_launch"].value,
        host_us_per_step=times["host_us_per_step"].value,
        engine=read_engine(table.table("engine"), None) if "engine" in table else None,
        sources={key: number.source for key, number in times.items()},
        notes={key: number.note for key, number in times.items() if number.note},
    )
    table.finish()
    return runtime
