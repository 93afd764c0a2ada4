"""What draft-model methods draft in a step: chains, trees of branching factors, independent drafts, beams."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal, get_args

import numpy as np

from medusa_sim.errors import DataError, shown
from medusa_sim.lab.block_efficiency.contexts import ContextModel

DraftMethod = Literal["SD", "SpecTr", "RSD-C", "RSD-S"]
METHODS: tuple[DraftMethod, ...] = get_args(DraftMethod)
LENGTH_MAX = 64
"""Levels of a shape."""
WIDTH_MAX = 32
"""Independent drafts of SpecTr, beams of RSD-S."""


@dataclass(frozen=True)
class DraftShape:
    """What is drafted in one step, as in the RSD paper's appendix C.3.

    `branches`: branching factor by level (SD: all 1). `width`: number of independent drafts (SpecTr)
    or beam width (RSD-S), 1 otherwise.
    """

    method: DraftMethod
    branches: tuple[int, ...]
    width: int = 1

    @property
    def length(self) -> int:
        """Draft length: levels of the tree, and draft model calls per step."""
        return len(self.branches)

    @property
    def as_chain(self) -> DraftShape:
        """Shapes of one path are chains, whatever drafts them."""
        return DraftShape("SD", self.branches) if self.children == 1 else self

    @property
    def children(self) -> int:
        """Most children of one context that the shape can use."""
        return max(*self.branches, self.width)

    @property
    def candidates(self) -> int:
        """Most tokens that one verification step carries, root included."""
        if self.method in ("SpecTr", "RSD-S"):
            return 1 + self.width * self.length
        return 1 + int(sum(np.cumprod(self.branches)))


def parsed_shape(method: str, spec: str) -> DraftShape:
    """The shape written as `4` (SD), `2-2-1` (RSD-C) or `5x4` (SpecTr, RSD-S: width x length).

    Raises:
        DataError: an unknown method, or a spec that is not of its form or too large.
    """
    if method not in METHODS:
        raise DataError(f"decoder {shown(method)} is unknown (known: {', '.join(METHODS)})")
    text = spec.strip()
    form = {"SD": r"\d{1,6}", "RSD-C": r"\d{1,6}(-\d{1,6})*"}.get(method, r"\d{1,6}x\d{1,6}")
    if not re.fullmatch(form, text):
        example = {"SD": "4", "RSD-C": "2-2-1"}.get(method, "5x4")
        raise DataError(f"spec {shown(spec)} of {method} is not of the form {example!r}")
    numbers = [int(part) for part in re.split(r"[-x]", text)]
    if method == "SD":
        shape = DraftShape("SD", (1,) * min(numbers[0], LENGTH_MAX + 1))
    elif method == "RSD-C":
        shape = DraftShape("RSD-C", tuple(numbers))
    else:
        shape = DraftShape(
            "SpecTr" if method == "SpecTr" else "RSD-S", (1,) * min(numbers[1], LENGTH_MAX + 1), numbers[0]
        )
    widest = WIDTH_MAX if method in ("SpecTr", "RSD-S") else ContextModel().vocabulary
    if min(numbers) < 1 or shape.length > LENGTH_MAX or shape.children > widest:
        raise DataError(
            f"spec {shown(spec)} of {method}: lengths 1..{LENGTH_MAX} and widths 1..{widest} are allowed"
        )
    return shape
