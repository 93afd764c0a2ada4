"""Hyper-connections (DeepSeek-V4's mHC): `streams` residual streams, mixed before and after each block.

Before a block (`pre`) a kernel reads all streams, multiplies them with a matrix of streams (2 + streams)
columns in fp32, makes the product doubly stochastic in a few rounds of Sinkhorn, and writes one stream.
Behind the block (`post`) it reads the streams and the block's output and writes the streams. With t tokens of
width h and elements of e bytes:

    bytes  = t h (streams + 1) e before,  t h (2 streams + 1) e after                                  (J1)
    FLOPs  = 2 t (streams h) streams (2 + streams) before,  2 t h streams (streams + 1) after          (J2)
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

import numpy as np

from medusa_sim.arrays import FloatArray, as_float
from medusa_sim.operators.operator import Size
from medusa_sim.operators.row_schema import RowSchema
from medusa_sim.operators.stream import Stream
from medusa_sim.units import BYTES_PER_ELEMENT

BEFORE, AFTER = "pre", "post"
CONNECTION_WIDTHS = {BEFORE: (0.5, 0.5), AFTER: (1.0, 0.5)}
"""Widths h that a kernel both reads and writes for a token: (for each stream, beyond); half of (J1)."""
_TILE = 64.0
"""Tokens of a thread block on Tensor Cores; libraries use these for more tokens than this."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HyperConnection(Stream):
    """Mixing `streams` residual streams of `tokens` tokens at `sites` places, before or after the blocks."""

    FAMILY = "hyper_connections"
    COLUMNS = ("tokens", "hidden", "streams", "sites")
    AXES = ("tokens",)
    SIZE = AXES
    LABELS = ("part",)
    ROWS = RowSchema(
        numbers=("tokens", "hidden"),
        optional={"streams": 4.0, "sites": 1.0},
        words={"part": BEFORE},
        splits=("part",),
        blank_dtype="bf16",
    )

    kind: Literal["hyper_connections"] = "hyper_connections"
    tokens: Size = field()
    hidden: Size
    streams: Size = 4
    sites: Size = 1
    part: str = BEFORE

    @property
    def form(self) -> str:
        """Key of its kernels: `pre` or `post`."""
        return self.part

    @property
    def forms(self) -> tuple[str, ...]:
        """Keys of kernels that may serve."""
        return (self.part,)

    @property
    def loads(self) -> Mapping[str, FloatArray]:
        """Streams read and written (J1)."""
        streams = as_float(self.streams)
        passed = (streams if self.part == BEFORE else 2.0 * streams) + 1.0
        moved = passed * self.size * as_float(self.hidden) * as_float(self.sites)
        return {"streams": BYTES_PER_ELEMENT[self.dtype] * moved}

    @property
    def work(self) -> Mapping[str, FloatArray]:
        """The products (J2)."""
        streams = as_float(self.streams)
        columns = streams * (2.0 + streams) if self.part == BEFORE else streams + 1.0
        return {"mix": 2.0 * self.size * as_float(self.sites) * streams * as_float(self.hidden) * columns}

    def steps(self, sms: int) -> Mapping[str, FloatArray]:
        """Waves of tokens over the multiprocessors; before a block also the tokens that share the matrix."""
        steps = {"waves": np.ceil(self.size / sms), "tiles": np.ceil(self.size / (_TILE * sms))}
        if self.part == BEFORE:  # each token's thread block reads the whole matrix from L2
            steps |= {"few": np.minimum(self.size, _TILE), "busy": np.minimum(self.size, float(sms))}
        return steps
