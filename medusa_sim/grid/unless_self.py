"""A cached property that may be the object itself.

An object that kept itself would be a circle, and live until the garbage collector runs, which may be long
after the last use where arrays are few and large.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Generic, TypeVar, cast

Value = TypeVar("Value")
_ITSELF = object()
"""Stands for the object among the values that it keeps."""


class cached_unless_self(Generic[Value]):  # noqa: N801  # written as `cached_property` is
    """A property that is computed once; where its value is the object itself, only that fact is kept."""

    def __init__(self, compute: Callable[[Any], Value]) -> None:
        self._compute = compute
        self._name = f"_{compute.__name__}"
        self.__doc__ = compute.__doc__

    def __get__(self, instance: Any, owner: type | None = None) -> Value:
        """Its value for an object."""
        if instance is None:
            return cast("Value", self)
        kept = vars(instance)
        if self._name not in kept:
            value = self._compute(instance)
            kept[self._name] = _ITSELF if value is instance else value
        value = kept[self._name]
        return cast("Value", instance) if value is _ITSELF else cast("Value", value)
