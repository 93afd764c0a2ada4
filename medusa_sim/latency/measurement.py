"""`meta.toml` beside measured rows: the device, its rates and the conditions under which they were taken."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Literal

import msgspec
from msgspec import Meta as Limit

from medusa_sim.errors import DataError, shown
from medusa_sim.reading.documents import read_toml
from medusa_sim.reading.files import named
from medusa_sim.reading.strict import Schema, T, Text, Us, check_dtypes, convert

META = "meta.toml"
SCHEMA: Literal[1] = 1
_WHAT = "the record that a measurement writes next to its rows"

_BytesPerSecond = Annotated[float, Limit(gt=0.0, le=1e15, description="bytes/s")]
_Flops = Annotated[float, Limit(gt=0.0, le=1e18, description="FLOP/s")]
_Bytes = Annotated[int, Limit(ge=0, le=10**15, description="bytes")]
_Count = Annotated[int, Limit(ge=1, le=1_000_000)]
_Mhz = Annotated[float, Limit(gt=0.0, le=1e6, description="MHz")]


class Environment(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The device, and the conditions of a run.

    name: the GPU name of the project (a hardware file's); device: what the system calls it. clocks_mhz:
    highest clocks that the device may run at (by domain: sm, memory, core). current_clocks_mhz: at the
    start of the run; run_clocks_mhz: lowest, median and highest of a GPU's while it ran. threads: of the CPU,
    as torch uses them. load_average: processes that wanted to run in the last minute, before the measurement.
    """

    name: Text
    device: Text
    kind: Literal["cpu", "cuda"]
    units: _Count
    cache_bytes: _Bytes
    memory_bytes: _Bytes
    driver: Text
    clocks_mhz: dict[str, _Mhz]
    current_clocks_mhz: dict[str, _Mhz]
    torch: Text
    threads: _Count
    commit: Text
    date: Text
    load_average: Annotated[float, Limit(ge=0.0, le=1e6)]
    run_clocks_mhz: dict[str, _Mhz] = {}


class Rates(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Rates of the device: memory traffic of a copy (read and written) and of reading alone, and the best
    product of each dtype; and what launching one empty kernel costs (graph: 0 where there are no graphs).
    """

    copy_bytes_per_s: _BytesPerSecond
    read_bytes_per_s: _BytesPerSecond
    flops_per_s: dict[str, _Flops]
    launch_eager_us: Us
    launch_graph_us: Us = 0.0


class Meta(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How the rows of a folder were measured.

    method: how a time was taken, one line. models: whose shapes. environments of later runs that added
    rows are kept in `resumed`. attention: torch's kernel of a plain step and of a tree. reference: 10th
    percentile, median and 90th of the reference kernel, us, where every time was divided by its state.
    packed: whether the weights of linear layers were laid out once for the library.
    """

    schema: Schema
    title: Text
    method: Text
    models: tuple[Text, ...]
    dtypes: tuple[Text, ...]
    environment: Environment
    rates: Rates
    packed: bool = False
    attention: dict[str, Text] = {}
    reference: dict[str, Us] = {}
    resumed: tuple[Environment, ...] = ()


class _PublishedFile(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    source: Text
    note: Text


class PublishedMeta(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Rows that a paper printed: less is known of them. files: by name, where each was read and how."""

    schema: Schema
    title: Text
    device: Text
    driver: Text
    clocks: Text
    torch: Text
    date: Text
    files: dict[str, _PublishedFile]


def read_meta(folder: Path, form: type[T]) -> T:
    """`meta.toml` of a folder that `measure` wrote, as a `form`. Raises DataError naming file and key."""
    return convert(read_toml(folder / META, _WHAT, DataError), form, folder / META, error=DataError)


def check_meta(folder: Path, files: Sequence[str]) -> Meta | PublishedMeta:
    """`meta.toml` of a folder whose rows (in `files`, by name) are about to be used.

    Raises DataError where it is missing or damaged, or speaks of another device or of other files.
    """
    path = folder / META
    content = read_toml(path, _WHAT, DataError)
    if "files" in content:
        published = convert(content, PublishedMeta, path, error=DataError)
        if unknown := sorted(set(files) - published.files.keys()):
            raise DataError(f"{named(path)}: files: no source of {', '.join(unknown)}; say where it was read")
        return published
    meta = convert(content, Meta, path, error=DataError)
    if meta.environment.name != folder.name:
        raise DataError(
            f"{named(path)}: environment.name: given {shown(meta.environment.name)}; these are the rows of "
            f"{folder.name!r}, and a folder is called what its device is called"
        )
    check_dtypes((*meta.dtypes, *meta.rates.flops_per_s), path, "dtypes", DataError)
    return meta
