"""Measured rows of one kind of operator, as fits take, thin and group them."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Generic, TypeVar

import numpy as np

from medusa_sim.arrays import BoolArray, FloatArray, IntArray
from medusa_sim.errors import DataError
from medusa_sim.lab.measure.shapes import LEAST_ROWS
from medusa_sim.operators.kinds import KIND_OF
from medusa_sim.operators.operator import Operator

OperatorT = TypeVar("OperatorT", bound=Operator)


@dataclass(frozen=True, slots=True)
class Rows(Generic[OperatorT]):
    """Measured rows of one kind: an operator that holds one shape a row, and their times in us.

    kernel: its name in the library, where rows name one.
    """

    operator: OperatorT
    time_us: FloatArray
    kernel: str = ""

    def where(self, keep: BoolArray | IntArray) -> Rows[OperatorT]:
        """The rows for which `keep` is true (or whose numbers it holds)."""
        sizes = {name: np.asarray(size)[keep] for name, size in self.operator.sizes.items()}
        return replace(self, operator=self.operator.with_columns(**sizes), time_us=self.time_us[keep])

    def thin(self, count: int | None, *order: str) -> Rows[OperatorT]:
        """At most `count` rows (None: all), drawn evenly over the shapes.

        order: the columns that order shapes, the last first.
        """
        if count is None:
            return self
        ranks = np.lexsort([np.asarray(self.operator.sizes[name]) for name in order])
        step = max(1.0, len(ranks) / count)
        places = np.arange(0.0, len(ranks), step).astype(np.int64)
        return self.where(ranks[np.minimum(places, len(ranks) - 1)])

    def labels(self, *columns: str) -> IntArray:
        """A label for each distinct combination of sizes, counted from 0."""
        sizes = np.stack([np.asarray(self.operator.sizes[name]) for name in columns])
        return np.unique(sizes, axis=1, return_inverse=True)[1].reshape(-1).astype(np.int64)

    def first_labels(self, *choices: tuple[str, ...]) -> IntArray:
        """`labels` of the first of these columns that tell rows apart, of the last where none does."""
        labels = [self.labels(*columns) for columns in choices]
        return next((label for label in labels if label.max() > 0), labels[-1])


def heldout_groups(rows: Rows[Any]) -> IntArray:
    """What is held out together: a label per value of the first columns of the kind that tell rows apart."""
    label = rows.first_labels(*KIND_OF[rows.operator.kind].groups)
    return label if label.max() > 0 else np.arange(len(rows.time_us))


def require_rows(rows: Rows[Any], source: str) -> None:
    """Raise DataError where there are too few rows for a fit."""
    count = len(rows.time_us)
    if count < LEAST_ROWS:
        raise DataError(f"{source}: {count} rows of {rows.operator.kind}; a fit needs {LEAST_ROWS} or more")
