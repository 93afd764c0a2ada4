"""Kernel parameters that a GPU borrows from a relative, because nobody measured it.

    [kernels.torch.inherit]
    reason = "same GA100 chip"           # required
    gemm = "a100-80gb-pcie"              # "gpu", "gpu:set" or "gpu:set:entry"
    attention = "a100-80gb-pcie"
    elementwise = "a100-80gb-pcie"
    widen = 1.5                          # optional: stretches bands borrowed from another GPU further
    slower = 1.2                         # optional: kernels take this many times as long here

A section takes one reference for every entry, or a table by entry:
`gemm = { bf16 = "h100-sxm:sglang:bf16" }`, and so do `moe`, `mla`, `collective` and `dispatch`; `unfused` is
a single kernel and takes "gpu" or "gpu:set".
"gpu" alone means the set of the same name; an entry may be renamed (fp16 from a measured bf16).
What the GPU has of its own always wins, so a later calibration simply replaces what was borrowed.
Only parameters that were fitted on the named GPU itself are borrowed, never borrowed ones again.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Annotated, TypeAlias

import msgspec
from msgspec import Meta

from medusa_sim.errors import SpecError, shown
from medusa_sim.gpus.carried import Chip, carried
from medusa_sim.gpus.fitted import Fit, Residual
from medusa_sim.gpus.kernels import (
    SECTIONS,
    SERIAL,
    TRANSFER_ERROR_STREAMED,
    Kernel,
    KernelSet,
)
from medusa_sim.reading.strict import Text
from medusa_sim.units import HALVES, SCALED

BORROWED = tuple(section for section in SECTIONS if not section.startswith(SERIAL))
"""Sections that a GPU may borrow."""
UNFUSED = "unfused"
"""The one section that is a single kernel, not a table of kernels."""
MAX_WIDEN = 10.0
EVERY_ENTRY = "*"

# What a borrowed kernel adds to the half-width of its band, in quadrature, in the logarithm: found with the
# parameters of each measured GPU on the rows of every other, so that 80 % of these lie inside the band
# (`python benchmarks/kernels.py transfer linear` prints them beside what it finds).
TRANSFER_ERROR_ALIKE = 0.1
"""From a GPU of the same architecture; attention there errs by less (0.03)."""
TRANSFER_ERROR = 0.24
"""From another architecture. Linear layers stand for elementwise kernels, whose rows were taken differently
from GPU to GPU.
"""
TRANSFER_ERROR_ATTENTION = 0.67
"""Of fused attention from another architecture."""
TRANSFER_ERROR_SCALED_ALIKE = 0.05
"""Of linear layers in a format with scales of blocks, from the same architecture."""
TRANSFER_ERROR_SCALED = 0.63
"""Of these from another architecture."""
TRANSFER_ERROR_LIBRARY = 0.33
"""What these add where the kernel is another library's, on the same GPU too, and tiles that another library's
rows never ran: on one GPU linear layers of 16 bits in two libraries ask for 0.2, fp8 in two for 0.24 to 0.6.
"""
TOGETHER_ALIKE, TOGETHER = 0.13, 0.38
"""Share of a borrowed kernel's band that is common to all kernels of its kind in a step.

Bands are those of single rows, at all sizes and from any GPU; whole steps by another GPU's kernels err by
less. With these parts 80 % bands hold 80 % of plain steps on average over pairs of GPUs, of the same
architecture and of another one (kinds in quadrature). Source: `python benchmarks/gpus_left_out.py`.
"""
GRACE = frozenset({"gb200", "gb300"})
"""GPUs whose host is on their board; the others' are x86 servers."""
TRANSFER_ERROR_HOST = (0.1, 0.57)
"""The same for rows bounded by a host that launches one by one: a host of the same kind, and of another,
whatever the GPU (H100 to B200, B200 to GB200; the same source).
"""


class Reference(msgspec.Struct, frozen=True, kw_only=True):
    """Where an entry is borrowed from: GPU, kernel set, and the entry there (`*`: the whole section)."""

    gpu: str
    set_name: str
    entry: str

    def __str__(self) -> str:
        tail = "" if self.entry == EVERY_ENTRY else f":{self.entry}"
        return f"{self.gpu}:{self.set_name}{tail}"


_Named: TypeAlias = str | dict[str, str] | None


class InheritFile(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """`[kernels.<set>.inherit]` as a file has it, with a key for each section of BORROWED."""

    reason: Text
    widen: Annotated[float, Meta(ge=1.0, le=MAX_WIDEN)] = 1.0
    slower: Annotated[float, Meta(gt=0.0, le=MAX_WIDEN)] = 1.0
    gemm: _Named = None
    attention: _Named = None
    elementwise: _Named = None
    unfused: str | None = None
    moe: _Named = None
    mla: _Named = None
    collective: _Named = None
    dispatch: _Named = None
    recurrent: _Named = None
    window: _Named = None
    sparse: _Named = None
    hyper: _Named = None


class Inheritance(msgspec.Struct, frozen=True, kw_only=True):
    """Kernels that `set_name` of `gpu` borrows: (section, entry, reference). given: as its file says it."""

    gpu: str
    set_name: str
    given: InheritFile
    references: tuple[tuple[str, str, Reference], ...]


def inheritance(given: InheritFile, where: str, gpu: str, set_name: str) -> Inheritance:
    """Kernels that a file's `[kernels.<set>.inherit]` borrows. Raises SpecError naming file and key."""
    references: list[tuple[str, str, Reference]] = []
    key = f"{where}: kernels.{set_name}.inherit"
    for section in BORROWED:
        named = getattr(given, section)
        if isinstance(named, str):
            reference = _reference(f"{key}.{section}", named, section, set_name, gpu)
            if reference.entry != EVERY_ENTRY:
                raise SpecError(f'{key}.{section}: given {named!r}; a whole section takes "gpu" or "gpu:set"')
            references.append((section, EVERY_ENTRY, reference))
        for entry, text in (named or {}).items() if isinstance(named, dict) else ():
            reference = _reference(f"{key}.{section}.{entry}", text, entry, set_name, gpu)
            if reference.entry == EVERY_ENTRY:
                reference = msgspec.structs.replace(reference, entry=entry)
            references.append((section, entry, reference))
    if not references:
        raise SpecError(f"{key}: nothing is inherited; give at least one of {', '.join(BORROWED)}")
    return Inheritance(gpu=gpu, set_name=set_name, given=given, references=tuple(references))


def _reference(where: str, given: str, key: str, set_name: str, gpu: str) -> Reference:
    parts = given.split(":")
    if not 1 <= len(parts) <= 3 or not all(parts):
        raise SpecError(f'{where}: given {shown(given)}; allowed: "gpu", "gpu:set" or "gpu:set:entry"')
    padded = [*parts, *["", ""]]
    reference = Reference(gpu=padded[0], set_name=padded[1] or set_name, entry=padded[2] or EVERY_ENTRY)
    if reference.gpu == gpu and reference.set_name == set_name and reference.entry in (EVERY_ENTRY, key):
        raise SpecError(
            f"{where}: given {given!r}: a set cannot inherit from itself; name another GPU or set"
        )
    return reference


def inherit_kernels(
    borrowed: Inheritance, fitted: Mapping[str, Mapping[str, KernelSet]], chips: Mapping[str, Chip]
) -> KernelSet:
    """The GPU's own kernels, with entries that it lacks taken from `borrowed`.

    Each borrowed kernel says so: `Fit.inherited_from` is the reference, `Fit.source` gains the reason, and a
    band from another GPU is stretched about its centre (in the logarithm): by `widen`, and at least by what
    kernels were measured to err on other GPUs. fitted: by GPU and set, the kernels fitted on that GPU itself.
    chips: of every GPU that is named. Raises SpecError for a reference that finds nothing.
    """
    own, own_chip = fitted[borrowed.gpu][borrowed.set_name], chips[borrowed.gpu]
    merged = {section: dict(own.table(section)) for section in BORROWED}
    for section, entry, reference in borrowed.references:
        held, chip = fitted[reference.gpu].get(reference.set_name, KernelSet()), chips[reference.gpu]
        lent = held.table(section)
        if reference.entry not in (*lent, *([EVERY_ENTRY] if lent else [])):
            raise SpecError(
                f"kernels.{borrowed.set_name}.inherit.{section}: {reference} was not fitted there, or is "
                "itself inherited; name the GPU and set that were measured"
            )
        pairs = [(name, name) for name in lent] if entry == EVERY_ENTRY else [(entry, reference.entry)]
        for mine, theirs in pairs:
            if mine not in merged[section]:
                kernel = carried(lent[theirs], chip, own_chip, theirs)
                is_alike = chip.architecture == own_chip.architecture
                fit = _borrowed_fit(kernel.fit, reference, borrowed, (section, mine), is_alike=is_alike)
                merged[section][mine] = msgspec.structs.replace(kernel, fit=fit)
    tables: dict[str, object] = {**merged, UNFUSED: merged[UNFUSED].get(UNFUSED)}
    return msgspec.structs.replace(own, **tables)


def fitted_kernels(held: KernelSet) -> dict[str, Kernel]:
    """Every kernel of a set by its dotted place: `gemm.fp16`, `attention.decode_attention`, `unfused`."""
    return {
        section if section == UNFUSED else f"{section}.{entry}": kernel
        for section in SECTIONS
        for entry, kernel in held.table(section).items()
    }


def _borrowed_fit(
    fit: Fit,
    reference: Reference,
    borrowed: Inheritance,
    place: tuple[str, str],
    *,
    is_alike: bool,
) -> Fit:
    """place: section and entry that the kernel has in the set that borrows it."""
    section, entry = place
    residuals = fit.residuals
    is_far, is_scaled = reference.gpu != borrowed.gpu, section == "gemm" and entry in SCALED
    is_other = _is_other_format(entry, reference.entry)
    if is_far or is_scaled or is_other:
        error = transfer_error(section, is_far=is_far, is_alike=is_alike, is_scaled=is_scaled)
        if is_scaled and reference.set_name != borrowed.set_name:
            error = math.hypot(error, TRANSFER_ERROR_LIBRARY)
        if is_other:
            error = math.hypot(error, TRANSFER_ERROR)
        widen = borrowed.given.widen if is_far and section not in TRANSFER_ERROR_STREAMED else 1.0
        residuals = tuple(widen_band(residual, widen, error) for residual in residuals)
    return msgspec.structs.replace(
        fit,
        source=f"inherited from {reference} ({borrowed.given.reason}): {fit.source}",
        inherited_from=str(reference),
        residuals=residuals,
        slower=borrowed.given.slower if is_far else 1.0,
        together=fit.together if not is_far else TOGETHER_ALIKE if is_alike else TOGETHER,
    )


def _is_other_format(entry: str, lent: str) -> bool:
    """Whether a kernel stands in for one of another numeric format; 16-bit formats run alike."""
    formats = {name.partition("@")[0] for name in (entry, lent)} - {EVERY_ENTRY}
    return len(formats) > 1 and not formats <= set(HALVES)


def transfer_error(section: str, *, is_far: bool, is_alike: bool, is_scaled: bool) -> float:
    """Error of a section's kernels on another GPU beyond their band; 0 on their own."""
    if not is_far:
        return 0.0
    if section in TRANSFER_ERROR_STREAMED:
        return TRANSFER_ERROR_STREAMED[section][not is_alike]
    if is_scaled:
        return TRANSFER_ERROR_SCALED_ALIKE if is_alike else TRANSFER_ERROR_SCALED
    if is_alike:
        return TRANSFER_ERROR_ALIKE
    return TRANSFER_ERROR_ATTENTION if section == "attention" else TRANSFER_ERROR


def widen_band(residual: Residual, factor: float, error: float) -> Residual:
    """The band about its own centre, `factor` times as wide and at least with `error` added in quadrature.

    Widths are those of the logarithm.
    """
    centre = math.sqrt(residual.low * residual.high)
    half = math.log(residual.high / residual.low) / 2.0
    wide = math.exp(max(half * factor, math.hypot(half, error)))
    return Residual(size_max=residual.size_max, low=centre / wide, high=centre * wide)
