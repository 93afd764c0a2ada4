"""Grouped-query attention that sees the last `window` keys: generation, prefill and verification.

A query at position p of the sequence attends to min(p, window) keys; a sequence of q new tokens behind a
prefix reads min(prefix + q, window + q - 1) cached rows once for all its queries.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import ClassVar, Literal, Self

import numpy as np

from medusa_sim.arrays import FloatArray, as_float
from medusa_sim.operators.operator import Numbers, Size, Words
from medusa_sim.operators.recurrent import GENERATION, VERIFY
from medusa_sim.operators.stream import Stream
from medusa_sim.specs.formats import Format, format_of
from medusa_sim.units import BYTES_PER_ELEMENT

_TILE = 64.0
_HEAD_DIMS = (64, 128, 192, 256)
"""Widths of a head for which libraries have a kernel each."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WindowAttention(Stream):
    """Attention of `batch` sequences with `q_len` new tokens each behind `prefix` cached ones.

    kv_dtype: of the cache (None: `dtype`). phase: `generation`, `context` (prefill, causal) or `verify`.
    """

    FAMILY = "window"
    COLUMNS = ("batch", "q_len", "prefix", "heads", "kv_heads", "head_dim", "window")
    AXES = ("batch", "q_len", "prefix")
    LABELS = ("phase",)
    NUMBERS = ("batch", "q_len", "heads", "kv_heads", "head_dim", "window")
    OPTIONAL: ClassVar[Mapping[str, float]] = {"prefix": 0.0}
    WORDS: ClassVar[Mapping[str, str]] = {"phase": GENERATION, "kv_cache_dtype": "", "head_dim": ""}
    SPLITS = ("phase", "kv_cache_dtype", "head_dim")
    BLANK_DTYPE = "bf16"
    NEEDLESS = frozenset({"masked"})

    kind: Literal["window_attention"] = "window_attention"
    batch: Size = field()
    q_len: Size
    prefix: Size
    heads: Size
    kv_heads: Size
    head_dim: Size
    window: Size
    kv_dtype: str | None = None
    phase: str = GENERATION

    @classmethod
    def of_rows(cls, kind: str, form: Format, numbers: Numbers, words: Words) -> Self:
        """Rows of a table that share phase and dtype of the cache."""
        del kind
        phase, cache, _ = (str(words[name][0]) for name in cls.SPLITS)
        kv_dtype = format_of(cache).dtype if cache else None
        return cls(name="window_attention", dtype=form.dtype, kv_dtype=kv_dtype, phase=phase, **numbers)  # type: ignore[arg-type]  # sizes alone

    @property
    def stored_dtype(self) -> str:
        """Of K and V."""
        return self.kv_dtype or self.dtype

    @property
    def unpacks(self) -> bool:
        """Never told apart: kernels are fitted for each dtype of the cache."""
        return False

    @property
    def form(self) -> str:
        """Key of its kernels: phase, arithmetic and dtype of the cache, width of a head."""
        return _form(self.phase, self.dtype, self.stored_dtype, self._head_dim)

    @property
    def forms(self) -> tuple[str, ...]:
        """Keys of kernels that may serve, best first: one token's for verification, other caches, 16 bits."""
        phases = (self.phase, GENERATION) if self.phase == VERIFY else (self.phase,)
        pairs = ((self.dtype, self.stored_dtype), (self.dtype, self.dtype), ("bf16", self.stored_dtype),
                 ("bf16", "bf16"))  # fmt: skip
        widths = sorted(_HEAD_DIMS, key=lambda width: abs(np.log2(width / self._head_dim)))
        every = (_form(phase, *pair, width) for phase in phases for pair in pairs
                 for width in (self._head_dim, *widths))  # fmt: skip
        return tuple(dict.fromkeys(every))

    @property
    def _head_dim(self) -> int:
        return int(np.max(as_float(self.head_dim)))

    @property
    def size(self) -> FloatArray:
        """The queries of all sequences, batch x q_len."""
        return as_float(self.batch) * as_float(self.q_len)

    @property
    def kv_len(self) -> FloatArray:
        """Cached rows that a sequence reads, its new tokens included."""
        whole, seen = as_float(self.prefix) + as_float(self.q_len), as_float(self.window)
        kept: FloatArray = np.minimum(whole, seen + as_float(self.q_len) - 1.0)
        return kept

    @property
    def pairs(self) -> FloatArray:
        """(query, key) pairs of one head of one sequence: sum over its queries of min(position, window)."""
        return _below(as_float(self.prefix) + as_float(self.q_len), as_float(self.window)) - _below(
            as_float(self.prefix), as_float(self.window)
        )

    @property
    def kv_bytes(self) -> FloatArray:
        """K and V, read once for all queries of a sequence."""
        row = BYTES_PER_ELEMENT[self.stored_dtype] * as_float(self.kv_heads) * as_float(self.head_dim)
        return 2.0 * row * as_float(self.batch) * self.kv_len

    @property
    def loads(self) -> Mapping[str, FloatArray]:
        """K and V, queries and outputs."""
        rows = self.size * as_float(self.heads) * as_float(self.head_dim)
        return {"kv": self.kv_bytes, "rows": 2.0 * BYTES_PER_ELEMENT[self.dtype] * rows}

    @property
    def work(self) -> Mapping[str, FloatArray]:
        """Both products, and what is computed for each head with whole tiles of keys."""
        per_pair = 4.0 * as_float(self.batch) * as_float(self.heads) * as_float(self.head_dim)
        whole, before = (as_float(self.prefix) + as_float(self.q_len), as_float(self.prefix))
        every = 0.5 * (whole * (whole + 1.0) - before * (before + 1.0))
        return {"pairs": per_pair * self.pairs, "masked": per_pair * (every - self.pairs)}

    def steps(self, sms: int) -> Mapping[str, FloatArray]:
        """Blocks over the multiprocessors, by K/V head and by query head, alone and for each tile of keys."""
        total = as_float(self.prefix) + as_float(self.q_len)
        tiles = np.ceil(as_float(self.q_len) / _TILE) * as_float(self.batch)
        seen = np.ceil(np.minimum(self.kv_len, as_float(self.window) + _TILE) / _TILE)
        rows = as_float(self.q_len) * as_float(self.heads) / as_float(self.kv_heads)
        groups, heads = tiles * as_float(self.kv_heads) / sms, tiles * as_float(self.heads) / sms
        return {
            "groups": groups,
            "group_tiles": groups * seen,
            "heads": heads,
            "packed": np.ceil(rows / (2.0 * _TILE)) * as_float(self.batch) * as_float(self.kv_heads) / sms,
            "head_tiles": heads * seen,
            "chain": seen * np.ones_like(groups),
            "crossing": (total > as_float(self.window)) * np.ones_like(groups),
            "whole": np.log2(1.0 + total / as_float(self.window)) * np.ones_like(groups),
        }


def _form(phase: str, dtype: str, cache: str, head_dim: int) -> str:
    return f"{phase}_{dtype}" + (f"_{cache}" if cache != dtype else "") + f"_{head_dim}"


def _below(length: FloatArray, window: FloatArray) -> FloatArray:
    """Sum of min(p, window) over the positions p = 1 .. length."""
    inside = np.minimum(length, window)
    total: FloatArray = inside * (inside + 1.0) / 2.0 + window * np.maximum(length - window, 0.0)
    return total
