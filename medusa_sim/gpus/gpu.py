"""A GPU as its datasheet describes it, with the kernel parameters fitted to it.

One GPU a file, `hardware/<name>.toml`. Datasheet numbers carry their source; `[kernels.<set>]` holds
fitted parameters (`medusa_sim.gpus.kernels`), written by `medusa-sim calibrate`.
"""

from __future__ import annotations

import dataclasses
import os
import re
from dataclasses import dataclass, field
from functools import cache, lru_cache
from pathlib import Path
from typing import Annotated, Any, TypeAlias

import msgspec
import numpy as np
from msgspec import Meta

from medusa_sim.arrays import BoolArray, FloatArray
from medusa_sim.data import shipped_dir
from medusa_sim.errors import SpecError, check_kind, shown
from medusa_sim.gpus.carried import Chip
from medusa_sim.gpus.gpu_names import LOCAL_HARDWARE, device_names, gpu_name, gpu_path, unknown_gpu
from medusa_sim.gpus.inheritance import (
    Inheritance,
    InheritFile,
    inherit_kernels,
    inheritance,
)
from medusa_sim.gpus.kernels import KernelSet
from medusa_sim.gpus.local import LocalDevice
from medusa_sim.gpus.power import Power, PowerToml, scaled
from medusa_sim.outside.limits import SPEC_BYTES
from medusa_sim.reading.documents import toml_of
from medusa_sim.reading.files import FileState, file_state, read_text
from medusa_sim.reading.strict import Schema, Sourced, Text, check_dtypes, convert
from medusa_sim.units import BYTES_PER_ELEMENT, HALVES, SAME_TENSOR_CORES

WIDE = "wide"
"""Kernel set of the collectives of more GPUs than the link joins."""

# Wide enough for any chip, narrow enough to refuse a number in the wrong unit (GB, TFLOP/s).
_Peaks: TypeAlias = dict[str, Sourced[Annotated[float, Meta(ge=1e9, le=1e18, description="FLOP/s, dense")]]]

_Link: TypeAlias = Sourced[Annotated[float, Meta(ge=1e8, le=1e14, description="bytes/s, one direction")]]
FASTEST_PCIE = 6.4e10
"""Bytes/s of one direction, PCIe 5.0 x16."""
_NUMBERS = (
    "sms", "l2_bytes", "memory_bytes", "bandwidth_bytes_per_s", "link_bandwidth_bytes_per_s", "linked_gpus",
    "wide_link_bandwidth_bytes_per_s",
)  # fmt: skip
"""Numbers of a file that are numbers of a `Gpu`."""
_WHAT = "a hardware file"
_MISSPELT = 0.85
"""Letters in common (`difflib`) that make an architecture another's, misspelt."""
_KERNELS = re.compile(r"^\[kernels\b", re.MULTILINE)
_OTHERS = re.compile(r"\n\s*\[+(?!kernels\b)")
"""Headings of tables of kernels, and of all others."""


class _KernelSetFile(KernelSet, frozen=True, forbid_unknown_fields=True, kw_only=True):
    inherit: InheritFile | None = None


class _GpuToml(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """`hardware/<name>.toml` as it stands there."""

    schema: Schema
    name: Text
    title: Text
    architecture: Annotated[str, Meta(pattern="^[a-z]+$", description="one lower-case word, such as ampere")]
    sms: Sourced[Annotated[int, Meta(ge=1, le=10_000, description="streaming multiprocessors")]]
    l2_bytes: Sourced[Annotated[float, Meta(ge=1e5, le=1e11, description="bytes")]]
    memory_bytes: Sourced[Annotated[float, Meta(ge=1e8, le=1e14, description="bytes")]]
    bandwidth_bytes_per_s: Sourced[Annotated[float, Meta(ge=1e9, le=1e15, description="bytes/s")]]
    link_bandwidth_bytes_per_s: _Link | None = None
    linked_gpus: Sourced[Annotated[int, Meta(ge=2, le=1_024, description="GPUs")]] | None = None
    wide_link_bandwidth_bytes_per_s: _Link | None = None
    peak_flops_per_s: _Peaks
    paper_peak_flops_per_s: _Peaks = {}
    power: PowerToml | None = None
    local: LocalDevice | None = None
    step_kernels: Sourced[dict[str, str]] | None = None
    kernels: dict[str, _KernelSetFile] = {}


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Gpu:
    """One GPU. SI units; peaks are dense and per dtype; a missing dtype is an error, never scaled.

    Loads of unchanged files return the same object, so a Gpu can be a cache key.
    """

    name: str
    title: str
    architecture: str
    sms: int
    l2_bytes: float
    memory_bytes: float
    bandwidth_bytes_per_s: float
    peak_flops_per_s: dict[str, float]
    link_bandwidth_bytes_per_s: float = 0.0
    """To another GPU, one direction; 0 where there is no link."""
    linked_gpus: int = 0
    """How many GPUs that link joins; 0: all of a node."""
    wide_link_bandwidth_bytes_per_s: float = 0.0
    """What more GPUs than that share, with the collectives of the kernel set WIDE."""
    paper_peak_flops_per_s: dict[str, float] = field(default_factory=dict)
    """Peaks that a paper used where they differ, only for reproducing it."""
    sources: dict[str, str] = field(default_factory=dict)
    """By dotted key (`peak_flops_per_s.fp16`), the document of each number."""
    notes: dict[str, str] = field(default_factory=dict)
    """By dotted key, how it was read."""
    kernels: dict[str, KernelSet] = field(default_factory=dict)
    """Fitted parameters by set (`torch`, `sglang`, `paper`), those borrowed from relatives included."""
    step_kernels: dict[str, str] = field(default_factory=dict)
    """Kernel set of whole steps by dtype, where another than the runtime's meets engines better. Rows of
    single operators keep the runtime's."""
    power: Power | None = None
    """Limit and parameters of its watts; None where the file gives none."""
    local: LocalDevice | None = None
    """Numbers for local engines; None where the file has none."""
    path: str = ""

    @property
    def chip(self) -> Chip:
        """Resources of its multiprocessors, by which kernels are borrowed."""
        peaks = self.peak_flops_per_s
        peak = next((peaks[dtype] for dtype in HALVES if dtype in peaks), max(peaks.values()))
        return Chip(self.architecture, self.bandwidth_bytes_per_s / self.sms, peak / self.sms)

    def lacks(self, dtype: str) -> bool:
        """Whether the datasheet gives no peak for a dtype."""
        return SAME_TENSOR_CORES.get(dtype, dtype) not in self.peak_flops_per_s

    def peak(self, dtype: str) -> float:
        """Dense peak of a dtype in FLOP/s. Raises SpecError where the datasheet gives none."""
        try:
            return self.peak_flops_per_s[SAME_TENSOR_CORES.get(dtype, dtype)]
        except KeyError:
            listed = ", ".join(self.peak_flops_per_s)
            raise SpecError(
                f"{self.name} has no dense peak for dtype {dtype!r} (it has: {listed}); "
                "choose one of these or another GPU, no peak is scaled from another dtype's"
            ) from None

    def exceeds_link(self, ranks: FloatArray) -> BoolArray:
        """Whether the link joins fewer GPUs than these."""
        return np.asarray((self.linked_gpus > 0) & (ranks > self.linked_gpus))

    def is_over_pcie(self, ranks: FloatArray) -> BoolArray:
        """Whether a group of `ranks` has no faster link than PCIe."""
        return np.asarray(self.link_to(ranks) <= FASTEST_PCIE)

    def link_to(self, ranks: FloatArray) -> FloatArray:
        """Bytes/s of one direction between GPUs of a group of `ranks`."""
        wide = self.wide_link_bandwidth_bytes_per_s
        return np.where(self.exceeds_link(ranks), wide, self.link_bandwidth_bytes_per_s)

    def kernel_set(self, name: str) -> KernelSet:
        """Fitted parameters of a kernel set. Raises SpecError naming the sets that exist."""
        try:
            return self.kernels[name]
        except KeyError:
            if not self.kernels and Path(self.path).parent.name == Path(LOCAL_HARDWARE).name:
                raise SpecError(
                    f"{self.name} runs local engines alone: kernels of servers were measured neither on it "
                    "nor on a relative; choose --runtime llama.cpp-cuda, -rocm, -vulkan, -metal, -cpu or mlx"
                ) from None
            sets = ", ".join(self.kernels) or "none"
            dtypes = sorted({dtype for kernels in self.kernels.values() for dtype in kernels.linear})
            other = f"choose one of them with --kernels, or --dtype {' or '.join(dtypes)}, " if dtypes else ""
            raise SpecError(
                f"{self.name} has no kernel set {name!r} (it has: {sets}); {other}calibrate it with "
                f"`medusa-sim calibrate rows --gpu {self.name} --kernels {name}` or use --latency roofline"
            ) from None


@dataclass(frozen=True, slots=True, eq=False)
class _GpuFile:
    """A parsed file before anything is borrowed."""

    gpu: Gpu
    borrowed: dict[str, Inheritance]
    power: PowerToml | None


def load_gpu(name: str, data_dir: str | os.PathLike[str] | None = None) -> Gpu:
    """The GPU of `hardware/<name>.toml`; a file in the user's data folder replaces the shipped one.

    Raises SpecError for an unknown name (with the nearest), a malformed file, or a relative that does
    not exist.
    """
    check_kind("gpu", name, "a name", (str,))
    file = _gpu_file(name, data_dir)
    return _assembled(file, _relatives(file, data_dir))


def _relatives(file: _GpuFile, data_dir: str | os.PathLike[str] | None) -> tuple[_GpuFile, ...]:
    """The files of those that lend kernels, and the datasheet of the one that lends its watts alone."""
    lenders = dict.fromkeys(
        reference.gpu for borrowed in file.borrowed.values() for _, _, reference in borrowed.references
    )
    try:
        relatives = [_gpu_file(name, data_dir) for name in lenders]
        if file.power is not None and (lender := file.power.inherit) is not None and lender not in lenders:
            relatives.append(_datasheet(_state_of(lender, data_dir)))
    except SpecError as error:
        raise SpecError(f"{file.gpu.path}: inherit: {error}") from error
    return tuple(relatives)


@lru_cache(maxsize=128)
def _assembled(file: _GpuFile, relatives: tuple[_GpuFile, ...]) -> Gpu:
    fitted = {each.gpu.name: each.gpu.kernels for each in (file, *relatives)}
    chips = {each.gpu.name: each.gpu.chip for each in (file, *relatives)}
    kernels = dict(file.gpu.kernels)
    for set_name, borrowed in file.borrowed.items():
        try:
            kernels[set_name] = inherit_kernels(borrowed, fitted, chips)
        except SpecError as error:
            raise SpecError(f"{file.gpu.path}: {error}") from error
    present = {name: held for name, held in kernels.items() if held != KernelSet()}
    return dataclasses.replace(file.gpu, kernels=present, power=_power(file, relatives))


def _power(file: _GpuFile, relatives: tuple[_GpuFile, ...]) -> Power | None:
    """Its parameters its own, or scaled from the lender's, which must have a fit of its own."""
    given, gpu = file.power, file.gpu
    if given is None:
        return None
    limit_watts = given.limit_watts.value
    if given.fit is not None:
        return Power(limit_watts=limit_watts, fit=given.fit)
    lender = next((other for other in relatives if other.gpu.name == given.inherit), file)
    if lender.power is None or lender.power.fit is None:
        raise SpecError(f"{gpu.path}: power: inherit: {given.inherit} has no [power.fit] of its own")
    fit = lender.power.fit
    dtype = next(name for name in (fit.dtype, *gpu.peak_flops_per_s) if name in gpu.peak_flops_per_s)
    fit = scaled(
        fit,
        dtype,
        limit=limit_watts / lender.power.limit_watts.value,
        peak=gpu.peak(dtype) / lender.gpu.peak(fit.dtype),
        bandwidth=gpu.bandwidth_bytes_per_s / lender.gpu.bandwidth_bytes_per_s,
    )
    return Power(limit_watts=limit_watts, fit=fit, lender=lender.gpu.name)


def architecture_of(name: str, data_dir: str | os.PathLike[str] | None = None) -> str:
    """`Gpu.architecture` of a GPU, without reading its kernels. Raises SpecError as `load_gpu` does."""
    return _datasheet(_state_of(name, data_dir)).gpu.architecture


def _gpu_file(name: str, data_dir: str | os.PathLike[str] | None) -> _GpuFile:
    return _parsed(_state_of(name, data_dir))


def _state_of(name: str, data_dir: str | os.PathLike[str] | None) -> FileState:
    path = gpu_path(name, data_dir) or gpu_path(gpu_name(name, data_dir), data_dir)
    if path is None:
        raise SpecError(unknown_gpu(name, data_dir))
    return file_state(path)


@lru_cache(maxsize=128)
def _parsed(state: FileState) -> _GpuFile:
    file = _parse(state.path, toml_of(_text(state), state.path, _WHAT))
    if not state.path.is_relative_to(shipped_dir()):
        _refuse_misspelt(file.gpu)
    return file


def _refuse_misspelt(gpu: Gpu) -> None:
    """Refuse an architecture that is nearly a shipped GPU's: kernels are borrowed by its name."""
    from difflib import get_close_matches

    known = _shipped_architectures()
    near = get_close_matches(gpu.architecture, known, n=1, cutoff=_MISSPELT)
    if near and gpu.architecture not in known:
        raise SpecError(
            f"{gpu.path}: architecture: given {shown(gpu.architecture)}; did you mean {near[0]!r}? "
            "A new architecture needs a name unlike that"
        )


@cache
def _shipped_architectures() -> frozenset[str]:
    return frozenset(architecture_of(name, shipped_dir()) for name in device_names(shipped_dir()))


@lru_cache(maxsize=128)
def _datasheet(state: FileState) -> _GpuFile:
    """A file up to its kernels, which are most of it; whole where other tables follow them."""
    text = _text(state)
    kernels = _KERNELS.search(text)
    if kernels is None or _OTHERS.search(text, kernels.start()):
        return _parsed(state)
    return _parse(state.path, toml_of(text[: kernels.start()], state.path, _WHAT))


def _text(state: FileState) -> str:
    return read_text(state.path, SPEC_BYTES, _WHAT)


def _parse(path: Path, content: dict[str, object]) -> _GpuFile:
    """Check the content of a hardware file, key by key. Raises SpecError naming file and key."""
    file = convert(content, _GpuToml, path)
    if file.name != path.stem:
        raise SpecError(
            f"{path}: name: given {shown(file.name)}; it must be the file's own name, {path.stem!r}"
        )
    if not file.peak_flops_per_s:
        raise SpecError(
            f"{path}: peak_flops_per_s: empty; give the dense peak of at least one of "
            f"{', '.join(BYTES_PER_ELEMENT)}"
        )
    for key in ("peak_flops_per_s", "paper_peak_flops_per_s"):
        check_dtypes(getattr(file, key), path, key)
    if (file.linked_gpus is None) != (file.wide_link_bandwidth_bytes_per_s is None):
        raise SpecError(f"{path}: linked_gpus and wide_link_bandwidth_bytes_per_s: give both or neither")
    numbers: dict[str, Sourced[Any]] = {
        name: value for name in _NUMBERS if (value := getattr(file, name)) is not None
    }
    values = {name: number.value for name, number in numbers.items()}
    if file.power is not None:
        numbers["power.limit_watts"] = file.power.limit_watts
    if file.local is not None:
        for name in ("vector_ops_per_s", "bandwidth_share", "board_watts", "gpu_memory_share"):
            if (number := getattr(file.local, name)) is not None:
                numbers[f"local.{name}"] = number
    for table in ("peak_flops_per_s", "paper_peak_flops_per_s"):
        peaks: dict[str, Sourced[float]] = getattr(file, table)
        numbers |= {f"{table}.{dtype}": peak for dtype, peak in peaks.items()}
        values[table] = {dtype: peak.value for dtype, peak in peaks.items()}
    gpu = Gpu(
        name=file.name,
        title=file.title,
        architecture=file.architecture,
        **values,
        sources={key: number.source for key, number in numbers.items()},
        notes={key: number.note for key, number in numbers.items() if number.note},
        kernels={
            name: KernelSet(**{section: getattr(held, section) for section in KernelSet.__struct_fields__})
            for name, held in file.kernels.items()
        },
        step_kernels={} if file.step_kernels is None else file.step_kernels.value,
        local=file.local,
        path=str(path),
    )
    borrowed = {
        name: inheritance(held.inherit, str(path), file.name, name)
        for name, held in file.kernels.items()
        if held.inherit is not None
    }
    return _GpuFile(gpu, borrowed, file.power)
