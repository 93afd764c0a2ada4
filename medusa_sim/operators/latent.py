"""Multi-head latent attention (MLA): all heads share one cached vector a token.

DeepSeek-V2 (arXiv 2405.04434, section 2.1) compresses K and V of all heads into a latent of `latent_dim`
values and one rotary key of `rope_dim`. Decoding *absorbs* the up-projections of K and V into the queries and
the output, so that every query row of every head walks over the same cached rows of latent_dim + rope_dim
values; prefill expands K and V of each head. DeepSeek-V3 (arXiv 2412.19437) has the same sizes: 512, 64, 128
(a head's part without rotation) and 128 (a head's value).
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any, Literal, Self

from medusa_sim.arrays import FloatArray, as_float
from medusa_sim.operators.attention import attended_pairs
from medusa_sim.operators.gemm import Gemm
from medusa_sim.operators.operator import Fault, Numbers, Operator, Size, TextArray, Words, named_format
from medusa_sim.operators.row_schema import RowSchema
from medusa_sim.units import BYTES_PER_ELEMENT, Format, format_of

LatentKind = Literal["mla_decode", "mla_prefill"]
KERNEL_SCOPE = "kernel"
"""Scope of rows that time only the attention kernel; other scopes include the projections around it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LatentAttention(Operator):
    """Latent attention of `batch` sequences, each with `q_len` queries over `kv_len` cached tokens.

    `mla_decode` is absorbed: also a verification step, with q_len candidates; the latent is read once per
    sequence, for all its heads and candidates. `mla_prefill` is causal and works on expanded K and V.
    """

    FAMILY = "latent"
    STORED = "kv_dtype"
    FITTED_BY_STORED = True
    COLUMNS = ("batch", "q_len", "kv_len", "heads")
    AXES = ("batch", "q_len", "kv_len")
    LABELS = (
        "scope", "gemm_dtype", "latent_dim", "rope_dim", "nope_dim", "v_dim", "hidden", "q_rank",
    )  # fmt: skip
    ROWS = RowSchema(
        words={"scope": KERNEL_SCOPE, "kv_dtype": "", "gemm_dtype": ""},
        splits=("scope", "kv_dtype", "gemm_dtype"),
    )

    kind: LatentKind
    batch: Size
    q_len: Size
    kv_len: Size
    """Cached tokens, the `q_len` new ones included."""
    heads: Size
    """Heads on this GPU."""
    latent_dim: int = 512
    rope_dim: int = 64
    nope_dim: int = 128
    v_dim: int = 128
    kv_dtype: str | None = None
    """Dtype of the cache; None: `dtype`."""
    scope: str = KERNEL_SCOPE
    """`kernel`, or a module's name: then the projections around the kernel are part of it."""
    gemm_dtype: str | None = None
    """Format of the projections' weights."""
    hidden: int = 7168
    """Width of the model."""
    q_rank: int = 1536
    """Width of compressed queries."""

    @classmethod
    def row_fields(cls, kind: str, form: Format, numbers: Numbers, words: Words) -> dict[str, Any]:
        """Formats of cache and projections; rows have DeepSeek-V3's sizes."""
        del kind, form, numbers
        cache, weights = (named_format(words[name]) for name in ("kv_dtype", "gemm_dtype"))
        return {"kv_dtype": cache and cache.dtype, "gemm_dtype": weights and weights.key}

    @classmethod
    def faults(cls, kinds: TextArray, numbers: Numbers) -> Iterator[Fault]:
        """A kv_len that leaves out the new tokens."""
        del kinds
        short = as_float(numbers["kv_len"]) < as_float(numbers["q_len"])
        yield Fault(short, "kv_len", "at least q_len (kv_len includes the q_len new tokens)", "q_len")

    @property
    def is_absorbed(self) -> bool:
        """Whether queries attend to the latent vectors themselves."""
        return self.kind == "mla_decode"

    @property
    def is_causal(self) -> bool:
        """Whether the upper triangle of new tokens is skipped; a verification step masks it instead."""
        return not self.is_absorbed

    @property
    def form(self) -> str:
        """Key of its kernels: phase, dtype, dtype of the cache, and scope and projections of a module."""
        words = [self.kind.removeprefix("mla_"), self.dtype]
        words += [self.stored_dtype] if self.stored_dtype != self.dtype else []
        words += [] if self.scope == KERNEL_SCOPE else [self.scope, self.gemm_dtype or self.dtype]
        return "_".join(words)

    @property
    def forms(self) -> tuple[str, ...]:
        """Keys of kernels that may serve, best first: its own, other projections, a plain cache, 16 bits."""
        dtypes = dict.fromkeys((self.dtype, "bf16", "fp16"))
        caches = dict.fromkeys((self.stored_dtype, self.dtype, "bf16"))
        scopes = dict.fromkeys((self.scope, "module")) if self.scope != KERNEL_SCOPE else (self.scope,)
        weights = dict.fromkeys((self.gemm_dtype or self.dtype, "bf16", "fp8_block", "nvfp4"))
        forms = [self.form]
        for scope, cache, dtype in itertools.product(scopes, caches, dtypes):
            for gemm_dtype in weights if scope != KERNEL_SCOPE else (None,):
                kv_dtype = None if cache == self.dtype else cache
                other = replace(self, dtype=dtype, kv_dtype=kv_dtype, scope=scope, gemm_dtype=gemm_dtype)
                forms.append(other.form)
        return tuple(dict.fromkeys(forms))

    @property
    def kv_heads(self) -> Size:
        """Heads of K and V: one when absorbed, else as many as query heads."""
        return 1 if self.is_absorbed else self.heads

    @property
    def qk_dim(self) -> int:
        """Length of the first product: latent + rope when absorbed, else nope + rope."""
        return (self.latent_dim if self.is_absorbed else self.nope_dim) + self.rope_dim

    @property
    def out_dim(self) -> int:
        """Width of the second product's rows: the latent when absorbed, else a head's value."""
        return self.latent_dim if self.is_absorbed else self.v_dim

    @property
    def head_dim(self) -> float:
        """Mean of both products' lengths: 4 head_dim FLOPs for each (query row, key)."""
        return (self.qk_dim + self.out_dim) / 2.0

    @property
    def attended_pairs(self) -> FloatArray:
        """(query, key) pairs of one head of one sequence; causal prefill skips half of the new corner."""
        return attended_pairs(self.q_len, self.kv_len, causal=self.is_causal)

    @property
    def flops(self) -> FloatArray:
        """2 b h pairs (qk_dim + out_dim), and the FLOPs of a module's projections."""
        rows = as_float(self.batch) * as_float(self.heads) * self.attended_pairs
        products = 2.0 * rows * (self.qk_dim + self.out_dim)
        for projection in self.projections:
            products = products + projection.flops
        return products

    @property
    def kv_bytes(self) -> FloatArray:
        """Bytes of the cached rows, read once for all heads and queries of a sequence.

        Absorbed: b s (latent_dim + rope_dim), whatever the number of heads; V is a part of K. Not absorbed:
        b h s (qk_dim + v_dim), expanded.
        """
        keys = BYTES_PER_ELEMENT[self.stored_dtype] * as_float(self.batch) * as_float(self.kv_len)
        if self.is_absorbed:
            return keys * self.qk_dim
        return keys * as_float(self.heads) * (self.qk_dim + self.v_dim)

    @property
    def activation_bytes(self) -> FloatArray:
        """Bytes of queries and outputs: b h q (qk_dim + out_dim)."""
        rows = self.size * as_float(self.heads)
        return BYTES_PER_ELEMENT[self.dtype] * rows * (self.qk_dim + self.out_dim)

    @property
    def bytes(self) -> FloatArray:
        """Bytes that must cross the memory bus, those of a module's projections included."""
        moved = self.kv_bytes + self.activation_bytes
        for projection in self.projections:
            moved = moved + projection.bytes
        return moved

    @property
    def kernel_alone(self) -> Self:
        """The attention kernel of a module, without its projections."""
        return replace(self, scope=KERNEL_SCOPE, gemm_dtype=None)

    @property
    def projections(self) -> tuple[Gemm, ...]:
        """The linear layers of a module, none for the kernel alone.

        Down for queries and latent together, up for the queries, up for K and V (absorbed: each head's part
        of it, one before and one behind the kernel), and the output.
        """
        if self.scope == KERNEL_SCOPE:
            return ()
        heads = as_float(self.heads)
        inside: dict[str, tuple[Size, Size]] = {
            "k_absorb": (heads * self.latent_dim, self.nope_dim),
            "v_absorb": (heads * self.v_dim, self.latent_dim),
        }
        if not self.is_absorbed:
            inside = {"kv_b_proj": (heads * (self.nope_dim + self.v_dim), self.latent_dim)}
        layers: dict[str, tuple[Size, Size]] = {
            "qkv_a_proj": (self.q_rank + self.latent_dim + self.rope_dim, self.hidden),
            "q_b_proj": (heads * (self.nope_dim + self.rope_dim), self.q_rank),
            **inside,
            "o_proj": (self.hidden, heads * self.v_dim),
        }
        form = format_of(self.gemm_dtype or self.dtype)
        return tuple(
            Gemm(name=name, dtype=form.dtype, weight_dtype=form.weight_dtype, m=self.size, n=n, k=k)
            for name, (n, k) in layers.items()
        )
