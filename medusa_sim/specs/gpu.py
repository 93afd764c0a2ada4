"""A GPU as its datasheet describes it, with the kernel parameters fitted to it.

One GPU a file, `hardware/<name>.toml`. Datasheet numbers carry their source; `[kernels.<set>]` holds
fitted parameters (`medusa_sim.specs.kernels`), written by `medusa-sim calibrate`.
"""

from __future__ import annotations

import dataclasses
import os
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path

import msgspec

from medusa_sim import data
from medusa_sim.errors import SpecError, unknown_name
from medusa_sim.reading import FileState, file_state, first_not_finite, read_toml
from medusa_sim.specs.inheritance import (
    Inheritance,
    completed,
    fitted_kernels,
    inheritance,
    is_chained,
    missing,
)
from medusa_sim.specs.kernels import KernelSet
from medusa_sim.specs.sourced import Sourced, Table, conversion_error
from medusa_sim.units import BYTES_PER_ELEMENT

SCHEMA = 1
HARDWARE = "hardware"

# Wide enough for any chip, narrow enough to refuse a number in the wrong unit (GB, TFLOP/s).
_RANGES: dict[str, tuple[float, float, str]] = {
    "sms": (1, 10_000, "streaming multiprocessors"),
    "l2_bytes": (1e5, 1e11, "bytes"),
    "memory_bytes": (1e8, 1e14, "bytes"),
    "bandwidth_bytes_per_s": (1e9, 1e15, "bytes/s"),
    "link_bandwidth_bytes_per_s": (1e8, 1e14, "bytes/s, one direction"),
}
_WHOLE = ("sms", "l2_bytes", "memory_bytes")
_PEAK = (1e10, 1e18, "FLOP/s, dense")


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Gpu:
    """One GPU. SI units; peaks are dense and per dtype; a missing dtype is an error, never scaled.

    sources, notes: by dotted key (`peak_flops_per_s.fp16`) the document of each number and how it was read.
    kernels: fitted parameters by set (`torch`, `sglang`, `paper`), with what is borrowed from relatives.
    paper_peak_flops_per_s: peaks that a paper used where they differ, only for reproducing it.
    Two loads of the same files give the same object, so a Gpu may be a cache key.
    """

    name: str
    title: str
    architecture: str
    sms: int
    l2_bytes: float
    memory_bytes: float
    bandwidth_bytes_per_s: float
    peak_flops_per_s: dict[str, float]
    link_bandwidth_bytes_per_s: float
    paper_peak_flops_per_s: dict[str, float] = field(default_factory=dict)
    sources: dict[str, str] = field(default_factory=dict)
    notes: dict[str, str] = field(default_factory=dict)
    kernels: dict[str, KernelSet] = field(default_factory=dict)
    path: str = ""

    def peak(self, dtype: str) -> float:
        """Dense peak of a dtype in FLOP/s. Raises SpecError where the datasheet gives none."""
        try:
            return self.peak_flops_per_s[dtype]
        except KeyError:
            listed = ", ".join(self.peak_flops_per_s)
            raise SpecError(
                f"{self.name} has no dense peak for dtype {dtype!r} (it has: {listed}); "
                "choose one of these or another GPU, no peak is scaled from another dtype's"
            ) from None

    def kernel_set(self, name: str) -> KernelSet:
        """Fitted parameters of a kernel set. Raises SpecError naming the sets that exist."""
        try:
            return self.kernels[name]
        except KeyError:
            sets = ", ".join(self.kernels) or "none"
            dtypes = sorted({dtype for kernels in self.kernels.values() for dtype in kernels.linear})
            other = f"choose --dtype {' or '.join(dtypes)}, " if dtypes else ""
            raise SpecError(
                f"{self.name} has no kernel set {name!r} (it has: {sets}); {other}calibrate it with "
                f"`medusa-sim calibrate --gpu {self.name} --kernels {name}` or use --latency roofline"
            ) from None


@dataclass(frozen=True, slots=True, eq=False)
class _GpuFile:
    """A parsed file before anything is borrowed."""

    gpu: Gpu
    borrowed: dict[str, Inheritance]


def gpu_names(data_dir: str | os.PathLike[str] | None = None) -> tuple[str, ...]:
    """Names of all GPUs, the user's and the shipped ones."""
    return data.stems(HARDWARE, (".toml",), data_dir)


def load_gpu(name: str, data_dir: str | os.PathLike[str] | None = None) -> Gpu:
    """The GPU of `hardware/<name>.toml`; a file in the user's data folder replaces the shipped one.

    Raises SpecError for an unknown name (with the nearest), a malformed file, or a relative that does
    not exist.
    """
    file = _gpu_file(name, data_dir)
    return _assembled(file, _relatives(file, data_dir))


def inheritance_gaps(name: str, data_dir: str | os.PathLike[str] | None = None) -> list[str]:
    """What `hardware/<name>.toml` says it borrows and its relatives do not have, one line each.

    A gap is no error while loading, since a relative may be calibrated later.
    """
    file = _gpu_file(name, data_dir)
    own = _own_kernels((file, *_relatives(file, data_dir)))
    return [
        f"kernels.{set_name}.{gap}"
        for set_name, borrowed in file.borrowed.items()
        for gap in missing(borrowed, lambda gpu, kernels: own[gpu].get(kernels, KernelSet()))
    ]


def _relatives(file: _GpuFile, data_dir: str | os.PathLike[str] | None) -> tuple[_GpuFile, ...]:
    names = dict.fromkeys(
        reference.gpu for borrowed in file.borrowed.values() for _, _, reference in borrowed.references
    )
    try:
        relatives = tuple(_gpu_file(name, data_dir) for name in names)
    except SpecError as error:
        raise SpecError(f"{file.gpu.path}: kernels: inherit: {error}") from error
    _refuse_chains(file, relatives)
    return relatives


def _refuse_chains(file: _GpuFile, relatives: tuple[_GpuFile, ...]) -> None:
    by_name = {relative.gpu.name: relative for relative in (*relatives, file)}
    for set_name, borrowed in file.borrowed.items():
        for section, _, reference in borrowed.references:
            relative = by_name[reference.gpu]
            again = relative.borrowed.get(reference.set_name)
            held = relative.gpu.kernels.get(reference.set_name, KernelSet())
            if again is not None and is_chained(section, reference, held, again):
                raise SpecError(
                    f"{file.gpu.path}: kernels.{set_name}.inherit.{section}: {reference} is itself "
                    "inherited; name the GPU and set that were measured"
                )


def _own_kernels(files: tuple[_GpuFile, ...]) -> dict[str, dict[str, KernelSet]]:
    return {file.gpu.name: file.gpu.kernels for file in files}


@lru_cache(maxsize=128)
def _assembled(file: _GpuFile, relatives: tuple[_GpuFile, ...]) -> Gpu:
    own = _own_kernels((file, *relatives))
    alike = {other.gpu.name for other in relatives if other.gpu.architecture == file.gpu.architecture}
    kernels = dict(file.gpu.kernels)
    for set_name, borrowed in file.borrowed.items():
        kernels[set_name] = completed(
            kernels[set_name],
            borrowed,
            lambda gpu, name: own[gpu].get(name, KernelSet()),
            alike.__contains__,
        )
    present = {name: held for name, held in kernels.items() if held != KernelSet()}
    return dataclasses.replace(file.gpu, kernels=present)


def _gpu_file(name: str, data_dir: str | os.PathLike[str] | None) -> _GpuFile:
    path = data.find(HARDWARE, f"{name}.toml", data_dir)
    if path is None:
        raise SpecError(unknown_name("GPU", name, gpu_names(data_dir)))
    return _parsed(file_state(path))


@lru_cache(maxsize=128)
def _parsed(state: FileState) -> _GpuFile:
    return _parse(state.path, read_toml(state.path, "a hardware file"))


def _parse(path: Path, content: dict[str, object]) -> _GpuFile:
    """Check the content of a hardware file, key by key. Raises SpecError naming file and key."""
    table = Table(str(path), content)
    schema = table.raw("schema", f"schema = {SCHEMA}")
    if schema != SCHEMA or isinstance(schema, bool):
        table.fail("schema", f"given {schema!r}; this version reads schema {SCHEMA}")
    name = table.text("name", what="the name of the file without .toml")
    if name != path.stem:
        table.fail("name", f"given {name!r}; it must be the file's own name, {path.stem!r}")
    numbers = {
        key: table.number(key, low, high, unit, whole=key in _WHOLE)
        for key, (low, high, unit) in _RANGES.items()
    }
    peaks = _peaks(table, "peak_flops_per_s")
    paper = _peaks(table, "paper_peak_flops_per_s") if "paper_peak_flops_per_s" in table else {}
    title = table.text("title", what="the product's name")
    architecture = table.text("architecture", pattern="[a-z]+", what="one lower-case word, such as ampere")
    kernels, borrowed = _kernels(table, name) if "kernels" in table else ({}, {})
    table.finish()
    every = {
        **numbers,
        **{f"peak_flops_per_s.{dtype}": peak for dtype, peak in peaks.items()},
        **{f"paper_peak_flops_per_s.{dtype}": peak for dtype, peak in paper.items()},
    }
    gpu = Gpu(
        name=name,
        title=title,
        architecture=architecture,
        sms=int(numbers["sms"].value),
        l2_bytes=float(numbers["l2_bytes"].value),
        memory_bytes=float(numbers["memory_bytes"].value),
        bandwidth_bytes_per_s=float(numbers["bandwidth_bytes_per_s"].value),
        link_bandwidth_bytes_per_s=float(numbers["link_bandwidth_bytes_per_s"].value),
        peak_flops_per_s={dtype: float(peak.value) for dtype, peak in peaks.items()},
        paper_peak_flops_per_s={dtype: float(peak.value) for dtype, peak in paper.items()},
        sources={key: number.source for key, number in every.items()},
        notes={key: number.note for key, number in every.items() if number.note},
        kernels=kernels,
        path=str(path),
    )
    return _GpuFile(gpu, borrowed)


def _peaks(table: Table, key: str) -> dict[str, Sourced]:
    entries = table.table(key)
    if not tuple(entries):
        table.fail(key, f"empty; give the dense peak of at least one of {', '.join(BYTES_PER_ELEMENT)}")
    for dtype in entries:
        if dtype not in BYTES_PER_ELEMENT:
            entries.fail(dtype, f"unknown dtype; allowed: {', '.join(BYTES_PER_ELEMENT)}")
    return {dtype: entries.number(dtype, *_PEAK) for dtype in entries}


def _kernels(table: Table, gpu: str) -> tuple[dict[str, KernelSet], dict[str, Inheritance]]:
    entries = table.table("kernels")
    kernels: dict[str, KernelSet] = {}
    borrowed: dict[str, Inheritance] = {}
    for set_name in entries:
        given = entries.raw(set_name, "a kernel set")
        key = entries.dotted(set_name)
        if not isinstance(given, dict):
            entries.fail(set_name, "a table of fitted parameters is needed")
        if (bad := first_not_finite(given, key)) is not None:
            raise SpecError(f"{table.where}: {bad}: nan or infinity; a finite number is needed")
        if "inherit" in given:
            borrowed[set_name] = inheritance(entries.table(set_name).table("inherit"), gpu, set_name)
        fitted = {section: value for section, value in given.items() if section != "inherit"}
        try:
            kernels[set_name] = msgspec.convert(fitted, KernelSet, strict=True)
        except msgspec.ValidationError as error:
            raise conversion_error(table.where, error, key) from error
        _check_fits(table.where, key, kernels[set_name])
    return kernels, borrowed


def _check_fits(where: str, key: str, kernels: KernelSet) -> None:
    """A fit says where it comes from, and its bands are positive ratios that enclose something."""
    for place, kernel in fitted_kernels(kernels).items():
        fit = kernel.fit
        if not fit.source.strip() or fit.rows < 1 or fit.fit_error < 0.0 or fit.heldout_error < 0.0:
            raise SpecError(
                f"{where}: {key}.{place}.fit: a source, at least one row and errors of 0 or more are needed; "
                "calibrate again"
            )
        if any(not 0.0 < band.low <= band.high for band in fit.residuals):
            raise SpecError(
                f"{where}: {key}.{place}.fit.residuals: allowed: 0 < low <= high (measured / predicted); "
                "calibrate again"
            )
