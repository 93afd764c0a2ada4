"""Fitted kernels into the hardware file of a GPU, whose every other entry and comment stays as it is."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
from msgspec.structs import replace

from medusa_sim.data import shipped_dir
from medusa_sim.errors import OutputError, SpecError, UsageError
from medusa_sim.gpus.fitted_attention import LatentKernel
from medusa_sim.gpus.gpu import Gpu
from medusa_sim.gpus.kernels import Kernel, StreamKernel
from medusa_sim.outside.limits import SPEC_BYTES
from medusa_sim.reading.documents import read_toml
from medusa_sim.reading.files import named, read_text
from medusa_sim.writing import write_text

_SIGNIFICANT_DIGITS = 6
_MARKED = (StreamKernel, LatentKernel)
"""Kernels that may be a library's fallback."""
_TABLES = (dict, msgspec.Struct)
"""Values that are tables of a file."""
Placed = tuple[Sequence[str], msgspec.Struct]
"""What is written, and the tables that lead to it: (`kernels`, `torch`, `gemm`, `fp16`)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FittedKernel:
    """A kernel and its place in a hardware file; the key of `unfused` is empty."""

    section: str
    key: str
    kernel: Kernel

    def place(self, kernel_set: str) -> tuple[str, ...]:
        """Keys of the tables that lead to it."""
        return tuple(name for name in ("kernels", kernel_set, self.section, self.key) if name)


def write_fits(path: Path, fits: Iterable[Placed]) -> None:
    """Put every struct at its place in the hardware TOML at `path`, as `with_fits`.

    The file is replaced in one step, so a reader sees the old or the new one. Raises SpecError where it is
    missing or is no TOML, OutputError where it cannot be written.
    """
    write_text(path, with_fits(path, fits))


def with_fits(path: Path, fits: Iterable[Placed]) -> str:
    """The text of a hardware TOML with every struct at its place.

    Comments, order and every other table are kept; fields that have their default are left out, floats keep
    six significant digits. Raises SpecError where the file is missing or is no TOML.
    """
    import tomlkit
    from tomlkit.exceptions import TOMLKitError

    text = read_text(path, SPEC_BYTES, "a hardware file")
    try:
        document = tomlkit.parse(text)
    except TOMLKitError as error:
        raise SpecError(f"{path}: cannot be read as a hardware file ({error}); give a TOML") from error
    for (*parents, last), fit in fits:
        table: Any = document  # tomlkit types an entry as Item or Container, which no caller can index
        for name in parents:
            if name not in table:
                table[name] = tomlkit.table(is_super_table=True)
            table = table[name]
        table[last] = _item(fit)
    return tomlkit.dumps(document)


def as_marked(gpu: Gpu, kernel_set: str, fitted: FittedKernel) -> Kernel:
    """The kernel with the mark that no fit tells and a person set on the one before (`fallback`)."""
    table = gpu.kernels[kernel_set].table(fitted.section) if kernel_set in gpu.kernels else {}
    before, kernel = table.get(fitted.key), fitted.kernel
    if isinstance(kernel, _MARKED) and isinstance(before, _MARKED) and before.fallback:
        return replace(kernel, fallback=True)
    return kernel


def _item(value: Any, *, inline: bool = False) -> Any:
    """A value as a hardware file states it: tables within a table last, a line for each struct of a list."""
    import tomlkit

    if isinstance(value, float):
        return float(f"{value:.{_SIGNIFICANT_DIGITS}g}")
    if isinstance(value, list | tuple):
        array = tomlkit.array()
        for each in value:
            array.append(_item(each, inline=True))
        return array.multiline(any(isinstance(each, msgspec.Struct) for each in value))
    if not isinstance(value, _TABLES):
        return value
    table: Any = tomlkit.inline_table() if inline else tomlkit.table()
    held = value if isinstance(value, dict) else not_default(value)
    for name, each in sorted(held.items(), key=lambda field: isinstance(field[1], _TABLES)):
        table.add(name, _item(each))
    return table


def not_default(struct: msgspec.Struct) -> dict[str, Any]:
    """Fields of a struct that have not their default."""
    return {field.name: value for field in msgspec.structs.fields(struct)
            if (value := getattr(struct, field.name)) != field.default}  # fmt: skip


def check_set_name(name: str) -> None:
    """Refuse a kernel set that a TOML key or an option could not carry. Raises UsageError."""
    if not re.fullmatch(r"[a-z][a-z0-9_-]{0,40}", name):
        raise UsageError(f"kernel set {name!r}: a lower-case word is allowed (letters, digits, '-', '_')")


def check_not_there(folder: Path, gpu: Gpu, kernel_set: str, fitted: FittedKernel) -> None:
    """Refuse to replace a kernel of the user's own `folder`/<gpu>.toml. Raises OutputError."""
    place = fitted.place(kernel_set)
    own = folder / f"{gpu.name}.toml"
    held, ships = (_table_at(path, place) for path in (own, shipped_dir() / "hardware" / own.name))
    if held is not None and held != ships:
        raise OutputError(
            f"{named(own)} has [{'.'.join(place)}] already; add --overwrite to replace it, or choose another "
            "--kernels NAME"
        )


def _table_at(path: Path, place: Sequence[str]) -> Any:
    table: Any = read_toml(path) if path.exists() else None
    for name in place:
        table = table.get(name) if isinstance(table, dict) else None
    return table


def write_kernels(folder: Path, gpu: Gpu, kernel_set: str, fitted: Sequence[FittedKernel]) -> Path:
    """Write all kernels into `folder`/<gpu>.toml in one step; the path.

    The file starts as the one that the GPU was loaded from, so that the datasheet stays with it. A kernel
    that stands there as a library's fallback remains one. Raises OutputError where the folder cannot be
    written.
    """
    target = folder / f"{gpu.name}.toml"
    placed = [(each.place(kernel_set), as_marked(gpu, kernel_set, each)) for each in fitted]
    write_text(target, with_fits(Path(gpu.path), placed))
    return target
