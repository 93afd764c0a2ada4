"""Errors of what ships beside what was measured: means of every column that `validate` tells."""

from collections.abc import Iterable, Mapping
from pathlib import Path

import numpy as np
import pytest
from asking import document
from tables import table

from medusa_sim.data import find

SCORES = table("validated")


def found_file(word: str) -> str:
    """A word of a command; the path where it names a file or folder that ships."""
    path = find(str(Path(word).parent), Path(word).name) if word.startswith("profiles/") else None
    return word if path is None else str(path)


def means(rows: Iterable[Mapping[str, object]]) -> dict[str, float]:
    columns: dict[str, list[float]] = {}
    for row in rows:
        for name, value in row.items():
            if isinstance(value, int | float) and not isinstance(value, bool):
                columns.setdefault(name, []).append(value)
    return {name: float(np.mean(values)) for name, values in columns.items()}


@pytest.mark.parametrize("command", SCORES)
def test_shipped_rows_are_as_far_off_as_ever(command):
    told = document("validate", *map(found_file, command.split(" ")))
    for part, expected in SCORES[command].items():
        rows = told[part]
        found = means(rows if isinstance(rows, list) else rows.values())
        assert found == pytest.approx(expected, rel=1e-6, abs=1e-12), part
