"""A property that is computed once and may be the object itself.

The cached property of functools would let such an object hold itself: it would live until the garbage
collector runs, which may be long after its last use where arrays are few and large.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Generic, TypeVar, overload

T = TypeVar("T")


class cached_or_self(Generic[T]):  # noqa: N801  # named as functools.cached_property is
    """Decorates the method that computes the property; None is kept where it returns its own object."""

    def __init__(self, compute: Callable[[T], T]) -> None:
        self._compute = compute
        self.__doc__ = compute.__doc__

    def __set_name__(self, owner: type, name: str) -> None:
        self._key = f"{name} or None"

    @overload
    def __get__(self, instance: None, owner: type) -> cached_or_self[T]: ...

    @overload
    def __get__(self, instance: T, owner: type) -> T: ...

    def __get__(self, instance: T | None, owner: type) -> T | cached_or_self[T]:
        if instance is None:
            return self
        kept = vars(instance)
        if self._key not in kept:
            value = self._compute(instance)
            kept[self._key] = None if value is instance else value
        value = kept[self._key]
        return instance if value is None else value
