"""How an engine launches a step's kernels: what is fused, what a launch costs, which kernels it calls.

Runtimes live in `runtimes.toml` beside this file; every time in it carries its source.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Literal, cast

from medusa_sim.errors import SpecError, unknown_name
from medusa_sim.reading import FileState, file_state, read_toml
from medusa_sim.specs.sourced import Sourced, Table
from medusa_sim.units import BYTES_PER_ELEMENT

RUNTIMES_FILE = Path(__file__).with_name("runtimes.toml")

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
    sources, notes: by field, the document of each time and how it was read.
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


def runtime_names() -> tuple[str, ...]:
    """Names in `runtimes.toml`, in the order of the file."""
    return tuple(_runtimes(file_state(RUNTIMES_FILE)))


def load_runtime(name: str) -> Runtime:
    """A runtime by name. Raises SpecError for an unknown name (with the nearest) or a malformed file."""
    runtimes = _runtimes(file_state(RUNTIMES_FILE))
    if name not in runtimes:
        raise SpecError(unknown_name("runtime", name, runtimes))
    return runtimes[name]


@lru_cache(maxsize=4)
def _runtimes(state: FileState) -> dict[str, Runtime]:
    content = Table(str(state.path), read_toml(state.path))
    return {name: _runtime(name, content.table(name)) for name in content}


def _runtime(name: str, table: Table) -> Runtime:
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
        sources={key: number.source for key, number in times.items()},
        notes={key: number.note for key, number in times.items() if number.note},
    )
    table.finish()
    return runtime
