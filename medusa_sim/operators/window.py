"""Grouped-query attention that sees the last `window` keys: generation, prefill and verification.

A query at position p of the sequence attends to min(p, window) keys; a sequence of q new tokens behind a
prefix reads min(prefix + q, window + q - 1) cached rows once for all its queries.

TensorRT-LLM has two kernels for one token where it does not run those of Blackwell's data-centre GPUs
(`decoderXQAImplCommon.h`, `decoderXQAImplJIT.cpp`, `decoderMaskedMultiheadAttentionLaunch.h`). One shares K
and V among the g query heads of a K/V head and splits all s keys of the sequence, those beyond the window
included, into

    splits  = min(n, round(sqrt(8 n))), n = floor(s / 128), and at most 8 blocks a multiprocessor         (B6)

The other computes one query head at a time. It runs where g is 1 or above 32, and for 16-bit caches where
batch x K/V heads x n is less than a quarter of the number of multiprocessors. Its blocks have 1024, 512 or
256 threads, of which 1, 2 or 4 fit on a multiprocessor: wider ones where heads are few.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np

from medusa_sim.arrays import FloatArray, as_float
from medusa_sim.operators.operator import CONTEXT, GENERATION, VERIFY, Numbers, Size, Words, named_format
from medusa_sim.operators.row_schema import RowSchema
from medusa_sim.operators.stream import Stream
from medusa_sim.units import BYTES_PER_ELEMENT, Format

_TILE = 64.0
_SMALL = 16.0
"""Rows of the smallest thread block, for one sequence and K/V head."""
_WIDEST = 32.0
"""Most query heads of a K/V head in one block; more are computed one by one."""
_THREADS = 512.0
"""Most threads of a block that stores a token's keys and values (vLLM's `reshape_and_cache`)."""
_SPLIT_KEYS, _SPLIT_BLOCKS = 128.0, 8.0
"""Keys in a split, and blocks a multiprocessor that a plain step is split into (TensorRT-LLM's rows)."""
_HEAD_DIMS = (64, 128, 192, 256)
"""Head widths for which libraries have their own kernels."""
_FEW = 4.0
"""Multiprocessors for each block, at most, where K and V are shared (B6)."""
_BLOCKS = 4.0
"""Blocks of 256 threads whose registers fit on a multiprocessor."""
_WARP = 32.0
"""Keys from which every warp of a block of query heads has some."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WindowAttention(Stream):
    """Attention of `batch` sequences with `q_len` new tokens each behind `prefix` cached ones."""

    FAMILY = "window"
    STORED = "kv_dtype"
    FITTED_BY_STORED = True
    COLUMNS = ("batch", "q_len", "prefix", "heads", "kv_heads", "head_dim", "window")
    AXES = ("batch", "q_len", "prefix")
    LABELS = ("phase",)
    ROWS = RowSchema(
        numbers=("batch", "q_len", "heads", "kv_heads", "head_dim", "window"),
        optional={"prefix": 0.0},
        words={"phase": GENERATION, "kv_cache_dtype": "", "head_dim": ""},
        splits=("phase", "kv_cache_dtype", "head_dim"),
        blank_dtype="bf16",
    )
    NEEDLESS = frozenset({"masked"})
    ALTERNATIVE = frozenset({
        "split_waves", "split_groups", "split_tiles", "splits",
        "alone", "alone_waves", "alone_keys", "alone_heads", "alone_warps",
    })  # fmt: skip

    kind: Literal["window_attention"] = "window_attention"
    batch: Size = field()
    q_len: Size
    prefix: Size
    heads: Size
    kv_heads: Size
    head_dim: Size
    window: Size
    kv_dtype: str | None = None
    """Dtype of the cache; None: `dtype`."""
    phase: str = GENERATION
    """`generation`, `context` (prefill, causal) or `verify`."""

    @classmethod
    def row_fields(cls, kind: str, form: Format, numbers: Numbers, words: Words) -> dict[str, Any]:
        """The cache's dtype."""
        del kind, form, numbers
        cache = named_format(words["kv_cache_dtype"])
        return {"kv_dtype": cache and cache.dtype}

    @property
    def form(self) -> str:
        """Key of its kernels: phase, dtype, dtype of the cache, head width."""
        return _form(self.phase, self.dtype, self.stored_dtype, self._head_dim)

    @property
    def forms(self) -> tuple[str, ...]:
        """Keys of kernels that may serve, best first: plain steps for verification, other caches, 16 bits."""
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
    def _total(self) -> FloatArray:
        """Tokens of a sequence, its new ones included."""
        return as_float(self.prefix) + as_float(self.q_len)

    @property
    def _rows(self) -> FloatArray:
        """Queries of a sequence that share a K/V head."""
        return as_float(self.q_len) * as_float(self.heads) / as_float(self.kv_heads)

    @property
    def kv_len(self) -> FloatArray:
        """Cached rows that a sequence reads, its new tokens included."""
        kept: FloatArray = np.minimum(self._total, as_float(self.window) + as_float(self.q_len) - 1.0)
        return kept

    @property
    def pairs(self) -> FloatArray:
        """(query, key) pairs of one head of one sequence: sum over its queries of min(position, window)."""
        window = as_float(self.window)
        return _below(self._total, window) - _below(as_float(self.prefix), window)

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
    def footprint(self) -> Mapping[str, FloatArray]:
        """K and V, queries and outputs, in one class."""
        return {"": self.bytes}

    @property
    def work(self) -> Mapping[str, FloatArray]:
        """Both products for pairs inside the window, and for the pairs that a kernel without one masks."""
        per_pair = 4.0 * as_float(self.batch) * as_float(self.heads) * as_float(self.head_dim)
        whole, before = self._total, as_float(self.prefix)
        every = 0.5 * (whole * (whole + 1.0) - before * (before + 1.0))
        return {"pairs": per_pair * self.pairs, "masked": per_pair * (every - self.pairs)}

    def steps(self, sms: int) -> Mapping[str, FloatArray]:
        """Thread blocks a multiprocessor, by K/V head or query head, fixed and for each tile of keys."""
        total, rows = self._total, self._rows
        tiles = np.ceil(as_float(self.q_len) / _TILE) * as_float(self.batch)
        seen = np.ceil(np.minimum(self.kv_len, as_float(self.window) + _TILE) / _TILE)
        groups, heads = tiles * as_float(self.kv_heads) / sms, tiles * as_float(self.heads) / sms
        shared = as_float(self.heads) / as_float(self.kv_heads)
        sequences = as_float(self.batch) * as_float(self.kv_heads) / sms
        threads = np.minimum(as_float(self.kv_heads) * as_float(self.head_dim), _THREADS) / _THREADS
        steps = {"stored": self.size / sms * threads}
        if self.phase != CONTEXT:
            steps |= self._shared_or_alone(sms)
        return {
            **steps,
            "groups": groups,
            "group_tiles": groups * seen,
            "shared_tiles": groups * seen * (shared > 1.0),
            "heads": heads,
            "prompt_heads": heads * (as_float(self.q_len) > 1.0),
            "wide": heads * (shared > _WIDEST),
            "packed": np.ceil(rows / (2.0 * _TILE)) * sequences,
            "small": sequences * (rows <= _SMALL),
            "rows": rows * sequences / _TILE,
            "head_tiles": heads * seen,
            "chain": seen * np.ones_like(groups),
            "crossing": (total > as_float(self.window)) * np.ones_like(groups),
            "whole": np.log2(1.0 + total / as_float(self.window)) * np.ones_like(groups),
        }

    def _shared_or_alone(self, sms: int) -> dict[str, FloatArray]:
        """Waves of the kernel that runs for one token: keys shared and split (B6), or single query heads."""
        keys, rows, batch = self._total, self._rows, as_float(self.batch)
        sequences = batch * as_float(self.kv_heads)
        spans = np.floor(keys / _SPLIT_KEYS)
        shares = (rows > 1.0) & (rows <= _WIDEST)
        if self.stored_dtype == self.dtype:
            shares = shares & (_FEW * sequences * np.maximum(spans, 1.0) >= sms)
        shares = shares | (as_float(self.q_len) > 1.0)
        most = np.maximum(np.minimum(spans, np.round(np.sqrt(_SPLIT_BLOCKS * spans))), 1.0)
        splits = np.minimum(most, np.maximum(np.floor(_SPLIT_BLOCKS * sms / sequences), 1.0))
        blocks = sequences * np.ceil(rows / _WIDEST) * splits / sms
        heads = batch * as_float(self.heads)
        width = np.minimum(np.ceil(_BLOCKS * sms / heads), _BLOCKS)  # of a block, in 256 threads
        width = np.where(width == 3.0, 2.0, width)
        shared: FloatArray = as_float(shares)
        alone: FloatArray = 1.0 - shared
        waves: FloatArray = alone * np.ceil(heads * width / (_BLOCKS * sms))
        seen = np.minimum(keys, as_float(self.window))
        return {
            "split_waves": shared * np.ceil(blocks),
            "split_groups": shared * sequences / sms,
            "split_tiles": shared * sequences / sms * np.ceil(seen / _TILE),
            "splits": shared * splits,
            "alone": as_float(waves > 0.0),
            "alone_waves": waves,
            "alone_keys": waves * np.minimum(seen, _SPLIT_KEYS) / _SPLIT_KEYS,
            "alone_heads": alone * heads / sms,
            "alone_warps": alone * heads / sms * (keys >= _WARP),
        }


def _form(phase: str, dtype: str, cache: str, head_dim: int) -> str:
    return f"{phase}_{dtype}" + (f"_{cache}" if cache != dtype else "") + f"_{head_dim}"


def _below(length: FloatArray, window: FloatArray) -> FloatArray:
    """Sum of min(p, window) over the positions p = 1 .. length."""
    inside = np.minimum(length, window)
    total: FloatArray = inside * (inside + 1.0) / 2.0 + window * np.maximum(length - window, 0.0)
    return total
