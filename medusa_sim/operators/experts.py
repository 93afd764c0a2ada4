"""A mixture-of-experts layer as one fused kernel.

Weights are read once for every *distinct* expert that the tokens wake (`hit`), however many tokens wake it:
at decode widths the time follows the number of distinct experts, not that of tokens.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np

from medusa_sim.arrays import FloatArray, as_float
from medusa_sim.operators.operator import Fault, Numbers, Operator, Size, TextArray, Words
from medusa_sim.operators.row_schema import RowSchema
from medusa_sim.units import BYTES_PER_ELEMENT, Format

_HALF_BYTES = 2.0
"""Bytes of an activation that enters or leaves the layer (16 bits)."""
_FOUR_BITS_UNPACKED = ("int4", "mxfp4", "nvfp4_wo")
"""Formats of four-bit weights that are unpacked for 16-bit arithmetic."""
PADDED_TILES = (16, 64, 128)
"""Rows of a tile for which a table may record how many rows whole tiles hold."""
ALIGNED = 16.0
"""Triton loads whole vectors where a stride is known to be a multiple of this many elements."""
_OVERLAP_FREE = "balanced"
"""A benchmark's routing in which tokens share an expert only once every expert has one."""
_YES = ("True", "true", "1", "1.0")
_NEARLY_ALL = 1.0 - 1e-12
_TINY = 1e-12


@dataclass(frozen=True, slots=True, kw_only=True)
class Experts(Operator):
    """One fused MoE layer on one GPU: top-k of the gate, sort, both grouped GEMMs, activation, combination.

    Neither the router's GEMM nor shared experts nor communication.
    """

    FAMILY = "moe"
    STORED = "weight_dtype"
    COLUMNS = ("tokens", "hidden", "inter", "experts", "topk", "local_experts", "hit", "rows",
               "padded16", "padded64", "padded128", "gated")  # fmt: skip
    AXES = ("tokens",)
    SIZE = AXES
    ROWS = RowSchema(
        numbers=("tokens", "hidden", "inter", "topk", "experts"),
        optional={
            "tp": 1.0,
            "ep": 1.0,
            "local_experts_hit": np.nan,
            "local_rows": np.nan,
            **{f"local_rows_tile{tile}": np.nan for tile in PADDED_TILES},
        },
        words={"gated": "True", "distribution": "uniform"},
    )

    kind: Literal["moe"] = "moe"
    tokens: Size = field()
    """Tokens that enter the layer; under expert parallelism the tokens of all ranks."""
    hidden: Size
    """Width of the model."""
    inter: Size
    """Width of one expert on this GPU, after tensor parallelism."""
    experts: Size
    """Experts of the whole layer."""
    topk: Size
    """Experts that a token takes."""
    local_experts: Size
    """Experts that this GPU holds."""
    hit: Size
    """Distinct experts of this GPU that the tokens wake, an expectation (`step.expert_union.union`)."""
    rows: Size
    """(token, expert) pairs on this GPU."""
    padded16: Size = np.nan
    """Rows that whole tiles of 16 rows hold; NaN: nobody counted, `padded_rows` estimates them."""
    padded64: Size = np.nan
    """The same for tiles of 64 rows."""
    padded128: Size = np.nan
    """The same for tiles of 128 rows."""
    gated: Size = True
    """Whether an expert has a gate beside its up projection (true or 1)."""
    weight_dtype: str | None = None
    """Dtype of the stored weights; None: `dtype`."""

    @classmethod
    def row_fields(cls, kind: str, form: Format, numbers: Numbers, words: Words) -> dict[str, Any]:
        """Sizes of one GPU, from rows that give the width of an expert before it is split over `tp` GPUs.

        A blank `local_experts_hit` follows from the `distribution`: as many experts as pairs, if there are,
        where it is `balanced`, else the union of tokens that choose independently. Blank `local_rows` are an
        even share of tokens x topk.
        """
        del kind, form
        experts, pairs = numbers["experts"], numbers["tokens"] * numbers["topk"]
        missed = np.log1p(-np.minimum(numbers["topk"] / experts, _NEARLY_ALL))
        independent = experts * -np.expm1(numbers["tokens"] * missed)
        free = words["distribution"] == _OVERLAP_FREE
        union = np.where(free, np.minimum(experts, pairs), independent)
        return {
            "inter": numbers["inter"] / numbers["tp"],
            "local_experts": experts / numbers["ep"],
            "hit": _known(numbers["local_experts_hit"], union / numbers["ep"]),
            "rows": _known(numbers["local_rows"], pairs / numbers["ep"]),
            **{f"padded{tile}": numbers[f"local_rows_tile{tile}"] for tile in PADDED_TILES},
            "gated": as_float(np.isin(words["gated"], _YES)),
        }

    @classmethod
    def faults(cls, kinds: TextArray, numbers: Numbers) -> Iterator[Fault]:
        """More experts a token than there are; experts or widths that ranks cannot share evenly."""
        del kinds
        yield Fault(numbers["topk"] > numbers["experts"], "topk", "at most experts", "experts")
        yield Fault(numbers["experts"] % numbers["ep"] != 0, "ep", "a divisor of experts", "experts")
        yield Fault(numbers["inter"] % numbers["tp"] != 0, "tp", "a divisor of inter", "inter")
        local = numbers["experts"] / numbers["ep"]
        yield Fault(
            numbers["local_experts_hit"] > local, "local_experts_hit", "at most experts / ep", "experts"
        )

    @property
    def first_width(self) -> FloatArray:
        """Output width of an expert's first product: up, and the gate where it has one."""
        return as_float(self.inter) * (1.0 + as_float(self.gated))

    @property
    def flops(self) -> FloatArray:
        """2 rows (h n_1 + i h): both products of every (token, expert) pair."""
        width = self.first_width + as_float(self.inter)
        return 2.0 * as_float(self.rows) * as_float(self.hidden) * width

    @property
    def weight_bytes(self) -> FloatArray:
        """Bytes of the weights of the experts that are woken, read once: hit h (n_1 + i)."""
        width = self.first_width + as_float(self.inter)
        return BYTES_PER_ELEMENT[self.stored_dtype] * as_float(self.hit) * as_float(self.hidden) * width

    @property
    def activation_bytes(self) -> FloatArray:
        """Bytes that enter and leave the layer: 2 t h in 16 bits; what lies between may stay on chip."""
        return 2.0 * _HALF_BYTES * as_float(self.tokens) * as_float(self.hidden)

    @property
    def bytes(self) -> FloatArray:
        """Bytes that must cross the memory bus."""
        return self.weight_bytes + self.activation_bytes

    @property
    def forms(self) -> tuple[str, ...]:
        """Keys of kernels that may serve, best first; formats unpacked from four bits replace each other.

        Up to 512 tokens the kernel of another such format on the same GPU errs by 10 to 18 % on their rows,
        the kernel of 16-bit weights by 16 to 20 (`python benchmarks/kernels.py transfer formats`).
        """
        unpacked = _FOUR_BITS_UNPACKED if self.form in _FOUR_BITS_UNPACKED else ()
        return tuple(dict.fromkeys((self.form, *unpacked, *super(Experts, self).forms)))

    def padded_rows(self, tile: int) -> FloatArray:
        """Rows in whole tiles of `tile` rows; two experts never share a tile.

        Padding is interpolated in powers of two between counted tiles. Where none was counted, the rows of a
        woken expert are assumed to be geometric with mean mu = rows / hit:

            hit tile / (1 - (1 - 1 / mu)^tile)
        """
        expected = self._expected_rows(tile)
        counted = {size: as_float(getattr(self, f"padded{size}")) for size in PADDED_TILES}
        if tile in counted:
            return np.where(np.isnan(counted[tile]), expected, counted[tile])
        near = sorted(PADDED_TILES, key=lambda size: abs(np.log2(size / tile)))[:2]
        lower, upper = min(near), max(near)
        share = np.log2(tile / lower) / np.log2(upper / lower)
        ratio = {size: counted[size] / self._expected_rows(size) for size in (lower, upper)}
        rows = expected * ratio[lower] ** (1.0 - share) * ratio[upper] ** share
        rows = np.maximum(rows, as_float(self.rows))
        return np.where(np.isnan(rows), expected, rows)

    def _expected_rows(self, tile: int) -> FloatArray:
        rows = as_float(self.rows)
        hit = np.minimum(as_float(self.hit), rows)
        alone = np.minimum(hit / np.maximum(rows, _TINY), _NEARLY_ALL)
        expected: FloatArray = hit * tile / -np.expm1(tile * np.log1p(-np.maximum(alone, _TINY)))
        return expected


def _known(given: FloatArray, otherwise: FloatArray) -> FloatArray:
    known: FloatArray = np.where(np.isnan(given), otherwise, given)
    return known
