"""Writes a fitted kernel or the fitted watts into a hardware TOML, and leaves everything else as it is."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from medusa_sim.errors import SpecError
from medusa_sim.reading import SPEC_BYTES, read_text
from medusa_sim.specs.costs import PowerFit
from medusa_sim.specs.kernels import Kernel
from medusa_sim.writing import write_text

if TYPE_CHECKING:
    from tomlkit.items import Array, InlineTable, Table

_SIGNIFICANT_DIGITS = 6


def write_kernel(path: Path, kernel_set: str, section: str, key: str, kernel: Kernel) -> None:
    """One kernel, as `write_tables` puts several."""
    write_tables(path, kernel_set, [(section, key, kernel)])


def write_tables(path: Path, kernel_set: str, kernels: Sequence[tuple[str, str, Kernel]]) -> None:
    """Put every kernel at `[kernels.<kernel_set>.<section>.<key>]` of the hardware TOML at `path`.

    The section `unfused` is one kernel, without a key (give "").
    Comments, order and every other table are kept; floats keep six significant digits. The file is
    replaced in one step, so a reader sees the old or the new one. Raises SpecError where the file is
    missing or is no TOML, OutputError where it cannot be written.
    """
    _write(
        path,
        [
            ([name for name in ("kernels", kernel_set, section, key) if name], msgspec.to_builtins(kernel))
            for section, key, kernel in kernels
        ],
    )


def write_power(path: Path, fit: PowerFit) -> None:
    """Put `fit` at `[power.fit]` of the hardware TOML at `path`, as `write_kernel` does; same errors."""
    _write(path, [(["power", "fit"], msgspec.to_builtins(fit))])


def _write(path: Path, entries: Sequence[tuple[list[str], dict[str, object]]]) -> None:
    import tomlkit
    from tomlkit.exceptions import TOMLKitError

    text = read_text(path, SPEC_BYTES, "a hardware file")
    try:
        document = tomlkit.parse(text)
    except TOMLKitError as error:
        raise SpecError(f"{path}: cannot be read as a hardware file ({error}); give a TOML") from error
    for (*parents, last), fields in entries:
        table: Any = document  # tomlkit types an entry as Item or Container, which no caller can index
        for name in parents:
            if name not in table:
                table[name] = tomlkit.table(is_super_table=True)
            table = table[name]
        table[last] = _table(fields)
    write_text(path, tomlkit.dumps(document))


def _table(fields: dict[str, object]) -> Table:
    """Numbers and lists first, `fit` as a sub-table after them; empty texts and None are left out."""
    import tomlkit

    table = tomlkit.table()
    for name, value in fields.items():
        if isinstance(value, dict):
            continue
        if value is not None and value != "":
            table.add(name, _item(value))
    for name, value in fields.items():
        if isinstance(value, dict):
            table.add(name, _table(value))
    return table


def _item(value: object) -> object:
    if isinstance(value, float):
        return float(f"{value:.{_SIGNIFICANT_DIGITS}g}")
    if isinstance(value, list | tuple):
        return _array(list(value))
    return value


def _array(values: list[object]) -> Array:
    """One line for numbers; one line per entry for tables."""
    import tomlkit

    array = tomlkit.array()
    for value in values:
        array.append(_inline(value) if isinstance(value, dict) else _item(value))
    return array.multiline(any(isinstance(value, dict) for value in values))


def _inline(fields: dict[str, object]) -> InlineTable:
    import tomlkit

    table = tomlkit.inline_table()
    for name, value in fields.items():
        table.add(name, _item(value))
    return table
