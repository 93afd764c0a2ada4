"""Numbers that stand where a caller or a file gives none."""

import dataclasses
import importlib
import inspect
import math
import pkgutil
from collections.abc import Iterator
from typing import Any

import msgspec


def numbers_left_out(room: str) -> dict[str, float]:
    """By record and field of a room, finite numbers besides 0 that stand where none is given."""
    package = importlib.import_module(f"medusa_sim.{room}")
    named = pkgutil.walk_packages(getattr(package, "__path__", []), f"{package.__name__}.")
    modules = [package, *(importlib.import_module(each.name) for each in named)]
    return {
        f"{name}.{field}": value
        for module in modules
        for name, record in inspect.getmembers(module, inspect.isclass)
        if record.__module__ == module.__name__
        for field, value in _defaults(record)
        if field in inspect.get_annotations(record)
        and isinstance(value, int | float)
        and not isinstance(value, bool)
        and math.isfinite(value)
        and value != 0
    }


def _defaults(record: type[Any]) -> Iterator[tuple[str, object]]:
    """Fields of a record with their defaults; of a class that is none, nothing."""
    if dataclasses.is_dataclass(record):
        yield from ((field.name, field.default) for field in dataclasses.fields(record))
    elif issubclass(record, msgspec.Struct):
        yield from ((field.name, field.default) for field in msgspec.structs.fields(record))
    else:
        yield from getattr(record, "_field_defaults", {}).items()
