"""Attention products, fused or not, their FLOPs and the bytes they must move.

Table 5 of the Medusa paper in three phases with one set of formulas: prefill (`q_len = seq_len`), decode
(`q_len = 1`) and parallel decode (`q_len = candidates`).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal, get_args

import numpy as np

from medusa_sim.arrays import FloatArray, as_float
from medusa_sim.operators.operator import Fault, Numbers, Operator, Size, TextArray, Words, named_format
from medusa_sim.operators.row_schema import RowSchema
from medusa_sim.units import BYTES_PER_ELEMENT, Format

AttentionKind = Literal["qk", "pv", "decode_attention", "verify_attention", "prefill_attention"]
ATTENTION_KINDS: tuple[str, ...] = get_args(AttentionKind)
UNFUSED_KINDS: tuple[str, ...] = ("qk", "pv")


def attended_pairs(q_len: Size, kv_len: Size, *, causal: bool) -> FloatArray:
    """(query, key) pairs of one head: q s, without the upper triangle of the q x q corner where causal."""
    queries, keys = as_float(q_len), as_float(kv_len)
    return queries * (keys - (queries - 1.0) / 2.0) if causal else queries * keys


@dataclass(frozen=True, slots=True, kw_only=True)
class Attention(Operator):
    """An attention product of `batch` sequences, each with `q_len` queries over `kv_len` keys.

    `qk` and `pv` are the unfused products of Table 5 (kv_len = s there). The fused kinds do both
    products and the softmax in one kernel, and their `kv_len` includes the `q_len` new tokens.
    K and V are read once per sequence and `kv_heads`, however many queries attend to them.
    """

    FAMILY = "attention"
    STORED = "kv_dtype"
    COLUMNS = ("batch", "q_len", "kv_len", "heads", "kv_heads", "head_dim")
    AXES = ("batch", "q_len", "kv_len")
    ROWS = RowSchema(
        words={"kv_dtype": ""},
        splits=("kv_dtype",),
    )

    kind: AttentionKind
    batch: Size
    q_len: Size
    kv_len: Size
    heads: Size
    kv_heads: Size
    head_dim: Size
    kv_dtype: str | None = None

    @classmethod
    def row_fields(cls, kind: str, form: Format, numbers: Numbers, words: Words) -> dict[str, Any]:
        """The cache's dtype, where it differs."""
        del kind, numbers
        cache = named_format(words["kv_dtype"])
        return {"kv_dtype": None if cache is None or cache.dtype == form.dtype else cache.dtype}

    @classmethod
    def faults(cls, kinds: TextArray, numbers: Numbers) -> Iterator[Fault]:
        """Heads that K/V heads do not divide; a fused kernel's kv_len without its own new tokens."""
        uneven = numbers["heads"] % numbers["kv_heads"] != 0
        yield Fault(uneven, "kv_heads", "a divisor of heads", "heads")
        fused = ~np.isin(kinds, UNFUSED_KINDS)
        short = fused & (numbers["kv_len"] < numbers["q_len"])
        yield Fault(short, "kv_len", "at least q_len (kv_len includes the q_len new tokens)", "q_len")
        many = (kinds == "decode_attention") & (numbers["q_len"] != 1.0)
        yield Fault(many, "q_len", "1 for decode_attention (else verify_attention)")

    @property
    def is_fused(self) -> bool:
        """Whether one kernel does both products."""
        return self.kind not in UNFUSED_KINDS

    @property
    def is_causal(self) -> bool:
        """Whether the upper triangle of new tokens is skipped; a verification step masks it instead."""
        return self.kind == "prefill_attention"

    @property
    def attended_pairs(self) -> FloatArray:
        """(query, key) pairs of one head of one sequence.

        q s, except that causal prefill with a prefix skips the upper triangle of the q x q corner.
        A verification step computes the whole q x q corner and masks it (tree mask).
        """
        return attended_pairs(self.q_len, self.kv_len, causal=self.is_causal)

    @property
    def flops(self) -> FloatArray:
        """2 b n q s d for one product (Table 5); twice that for a fused kernel."""
        width = as_float(self.head_dim) * (4.0 if self.is_fused else 2.0)
        return width * as_float(self.batch) * as_float(self.heads) * self.attended_pairs

    @property
    def kv_bytes(self) -> FloatArray:
        """Bytes of K or V (unfused) or of both (fused), read once per sequence for all its queries."""
        element = BYTES_PER_ELEMENT[self.stored_dtype]
        width = as_float(self.head_dim) * (2.0 * element if self.is_fused else element)
        return width * as_float(self.batch) * as_float(self.kv_heads) * as_float(self.kv_len)

    @property
    def activation_bytes(self) -> FloatArray:
        """Bytes of queries, scores and outputs.

        Unfused (Table 5): b n q d for queries or outputs, b n s q for the scores. Fused: queries and
        outputs; the scores stay on chip.
        """
        element = BYTES_PER_ELEMENT[self.dtype]
        rows = element * as_float(self.batch) * as_float(self.heads) * as_float(self.q_len)
        if self.is_fused:
            return 2.0 * rows * as_float(self.head_dim)
        return rows * (as_float(self.head_dim) + as_float(self.kv_len))

    @property
    def bytes(self) -> FloatArray:
        """Bytes that must cross the memory bus. For `qk`/`pv`: b n (s q + (s + q) d) (Table 5)."""
        return self.kv_bytes + self.activation_bytes
