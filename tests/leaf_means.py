"""Numbers of a document by where they stand: the mean over the entries of a list, and how many there are."""

from collections.abc import Iterator
from typing import Any

import pytest


def leaf_means(told: Any) -> dict[str, list[float]]:
    """schedule.speedup -> [mean, how many]; words, marks and what is not known are left out."""
    found: dict[str, list[float]] = {}
    for place, value in _leaves(told):
        found.setdefault(place, []).append(value)
    return {place: [sum(values) / len(values), len(values)] for place, values in found.items()}


def moved(told: Any, expected: dict[str, list[float]]) -> dict[str, tuple[object, object]]:
    """place -> (found, expected) where they differ by more than 1e-6, or one of them is not there."""
    found = leaf_means(told)
    return {
        place: (found.get(place), expected.get(place))
        for place in found.keys() | expected.keys()
        if found.get(place) != pytest.approx(expected.get(place), rel=1e-6)
    }


def _leaves(told: Any, place: str = "") -> Iterator[tuple[str, float]]:
    if isinstance(told, dict):
        for name, value in told.items():
            yield from _leaves(value, f"{place}.{name}" if place else name)
    elif isinstance(told, list):
        for value in told:
            yield from _leaves(value, place)
    elif isinstance(told, int | float) and not isinstance(told, bool):
        yield place, told
