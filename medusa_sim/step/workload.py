"""What one step processes.

One set of formulas serves the three phases of the Medusa paper's Table 5: prefill (`query_tokens = seq_len`),
decode (`query_tokens = 1`) and verification, the paper's parallel decoding (`query_tokens = candidates`, root
included). `network.py` makes kernels of a model and a workload.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np

from medusa_sim.arrays import FloatArray, as_float
from medusa_sim.models.parallel import Parallel
from medusa_sim.operators.operator import Size
from medusa_sim.step.expert_union import CHAIN, Overlap

_SIZES = ("batch", "seq_len", "query_tokens", "padded_rows", "graph_tokens")
Phase = Literal["prefill", "decode", "verify"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """What one step processes: `query_tokens` new tokens in each of `batch` sequences. Sizes broadcast."""

    phase: Phase
    batch: Size
    seq_len: Size
    """Committed tokens before the step (the papers' s); in prefill the prompt itself."""
    query_tokens: Size
    padded_rows: Size | None = None
    """Rows of the linear layers where an engine runs them at a captured size."""
    graph_tokens: Size | None = None
    """Tokens of a sequence that an engine's graphs are captured for; None: all sequences have these."""
    overlap: Overlap = CHAIN
    """How far the new tokens of a sequence share experts."""

    @property
    def tokens(self) -> Size:
        """New tokens: m = batch x query_tokens."""
        rows: Size = np.asarray(self.batch) * np.asarray(self.query_tokens)
        return rows

    @property
    def rows(self) -> Size:
        """Rows of every linear layer: the tokens, with those that fill a captured size."""
        return self.tokens if self.padded_rows is None else self.padded_rows

    @property
    def kv_len(self) -> Size:
        """Keys that a fused kernel attends to, the new tokens included."""
        if self.phase == "prefill":
            return self.seq_len
        keys: Size = np.asarray(self.seq_len) + np.asarray(self.query_tokens)
        return keys

    def mapped(self, change: Callable[[FloatArray], FloatArray]) -> Workload:
        """With every size replaced by what `change` makes of it."""
        sizes = {name: getattr(self, name) for name in _SIZES}
        taken = {name: change(np.asarray(size)) for name, size in sizes.items() if size is not None}
        return replace(self, **taken)  # type: ignore[arg-type]  # fields that hold a Size

    def on_one_gpu(self, parallel: Parallel) -> Workload:
        """The sequences whose attention one GPU computes: all, but for data-parallel attention."""
        if not parallel.dp_attention:
            return self
        own_rows = None if self.padded_rows is None else of_fullest(self.padded_rows, parallel.schedulers)
        return replace(self, batch=of_fullest(self.batch, parallel.schedulers), padded_rows=own_rows)


def of_fullest(count: Size, schedulers: int) -> FloatArray:
    """Of so many requests, or rows, those of the scheduler that has most, for which the others wait."""
    return np.asarray(np.ceil(np.asarray(count, dtype=np.float64) / schedulers))


def prefill(batch: Size, tokens: Size, cached: Size = 0) -> Workload:
    """All `tokens` of a prompt at once, behind a prefix of `cached` tokens that is not read again."""
    ends = as_float(tokens) + cached if np.any(cached) else tokens
    return Workload(phase="prefill", batch=batch, seq_len=ends, query_tokens=tokens)


def decode(batch: Size, seq_len: Size) -> Workload:
    """One new token for each sequence."""
    return Workload(phase="decode", batch=batch, seq_len=seq_len, query_tokens=1)


def verify(batch: Size, seq_len: Size, candidates: Size) -> Workload:
    """`candidates` tree nodes (root included) for each sequence; 1 is plain decoding."""
    return Workload(phase="verify", batch=batch, seq_len=seq_len, query_tokens=candidates)
