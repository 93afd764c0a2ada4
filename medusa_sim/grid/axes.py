"""The axes of a grid of configurations."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from medusa_sim.arrays import IntArray
from medusa_sim.errors import UsageError

LARGEST = 10**12
"""On any axis: products of the three are counted in 64 bits."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Grid:
    """Axes of a sweep: whole numbers from 1, each axis in the order in which rows come out."""

    batch: IntArray
    seq_len: IntArray
    candidates: IntArray

    @classmethod
    def of(cls, batch: Sequence[int], seq_len: Sequence[int], candidates: Sequence[int]) -> Grid:
        """A grid of three lists. Raises UsageError for an empty axis or a value below 1."""
        axes = {"batch": batch, "seq_len": seq_len, "candidates": candidates}
        for name, values in axes.items():
            if len(values) == 0:
                raise UsageError(f"{name} is empty: give at least one whole number from 1")
            if min(values) < 1:
                raise UsageError(f"{name} {min(values)}: whole numbers from 1 are allowed")
            if max(values) > LARGEST:
                raise UsageError(f"{name} {max(values)}: whole numbers from 1 to {LARGEST:g} are allowed")
        return cls(**{name: np.asarray(values, dtype=np.int64) for name, values in axes.items()})

    @property
    def rows(self) -> int:
        """Configurations for one GPU and one model."""
        return self.batch.size * self.seq_len.size * self.candidates.size
