"""Answers kept between runs and sessions, as many as some bytes hold; the least lately used go first."""

from __future__ import annotations

import functools
import sys
import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterable
from dataclasses import dataclass
from typing import Any, ParamSpec, TypeVar

import numpy as np

P = ParamSpec("P")
T = TypeVar("T")

KEPT_BYTES = 192_000_000
"""Bytes of all answers together: the page's own and those of the example cards, some 160 MB."""
LONG_BYTES = 256_000_000
"""Bytes of answers that take seconds, some 20 MB each."""
_SMALL_SHARE = 1e-3
"""Share of all bytes: what takes less stays, since dropping it makes no room."""
_ASKED_EVERY_S = 0.25
_SHARED = ("Gpu", "KernelSet", "Model", "Runtime")
"""What many answers refer to: counted for none."""


@dataclass
class _Entry:
    """An answer, and its bytes as they were last counted: an answer grows when a page asks more of it."""

    answer: Any
    size: Callable[[Any], int]
    bytes: int = 0

    def count(self) -> None:
        """Count its bytes."""
        self.bytes = self.size(self.answer)


class AnswerCache:
    """Results of functions by their arguments, shared between sessions and never changed.

    The last that is larger than all may be together stays beside them: a page asks for it several times.
    version: of what results are computed from besides the arguments.
    """

    def __init__(self, most_bytes: int = KEPT_BYTES, version: Callable[[], Hashable] = lambda: None) -> None:
        self._most, self._version = most_bytes, version
        self._entries: OrderedDict[Hashable, _Entry] = OrderedDict()
        self._lock = threading.Lock()
        self._making: dict[Hashable, threading.Lock] = {}

    def __call__(self, function: Callable[P, T]) -> Callable[P, T]:
        """The function with its results kept; sessions that ask the same at once wait for one answer."""

        @functools.wraps(function)
        def wrapped(*args: P.args, **kwargs: P.kwargs) -> T:
            key = (function.__qualname__, args, tuple(kwargs.items()))
            return self.once(key, lambda: function(*args, **kwargs))

        return wrapped

    def once(
        self,
        key: Hashable,
        make: Callable[[], T],
        waiting: Callable[[], object] = lambda: None,
        *,
        size: Callable[[T], int] | None = None,
    ) -> T:
        """What `make` gives, kept under a key; waiting: called while another session makes it.

        size: its bytes, where it is mostly made of what is kept, too (None: all that it holds is counted).
        """
        key = (key, self._version())
        with self._lock:
            making = self._making.setdefault(key, threading.Lock())
        while not making.acquire(timeout=_ASKED_EVERY_S):
            waiting()
        try:
            with self._lock:
                if key in self._entries:
                    self._entries.move_to_end(key)
                    known: T = self._entries[key].answer
                    return known
            try:
                answer = make()
            finally:
                with self._lock:
                    self._making.pop(key, None)
            self._keep(key, _Entry(answer, array_bytes if size is None else size))
            return answer
        finally:
            making.release()

    @property
    def held_bytes(self) -> int:
        """Bytes of all results that fit, each as it was when the next one came."""
        return sum(entry.bytes for entry in self._entries.values() if entry.bytes <= self._most)

    def _keep(self, key: Hashable, entry: _Entry) -> None:
        """Add an entry, and drop what has no room beside it."""
        with self._lock:
            last = next(reversed(self._entries.values()), entry)
        last.count()  # pages have asked more of it since
        entry.count()
        with self._lock:
            self._entries[key] = entry
            for larger in [key for key, each in self._entries.items() if each.bytes > self._most][:-1]:
                del self._entries[larger]
            while self.held_bytes > self._most:
                del self._entries[self._dropped_next()]

    def _dropped_next(self) -> Hashable:
        """The oldest result that makes room; the oldest of all where none does but the newest."""
        *earlier, _ = ((key, each.bytes) for key, each in self._entries.items() if each.bytes <= self._most)
        large = (key for key, bytes_ in earlier if bytes_ > _SMALL_SHARE * self._most)
        return next(large, earlier[0][0])


def array_bytes(value: object) -> int:
    """Bytes of the arrays and other objects that a value holds; what answers share is left out."""
    seen: set[int] = set()
    total, left = 0, [value]
    while left:
        each = left.pop()
        if id(each) in seen or type(each).__name__ in _SHARED:
            continue
        seen.add(id(each))
        if isinstance(each, np.ndarray):
            if each.base is None:
                total += each.nbytes
            else:
                left.append(each.base)
        else:
            total += sys.getsizeof(each)
            left.extend(_parts(each))
    return total


def _parts(value: object) -> Iterable[object]:
    if isinstance(value, dict):
        return value.values()
    if isinstance(value, list | tuple | set | frozenset):
        return value
    if not type(value).__module__.startswith("medusa_sim"):
        return ()
    slots = [name for kind in type(value).__mro__ for name in getattr(kind, "__slots__", ())]
    slotted = [getattr(value, name) for name in slots if name != "__dict__" and hasattr(value, name)]
    return [*slotted, *getattr(value, "__dict__", {}).values()]
