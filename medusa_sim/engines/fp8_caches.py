"""What grouped attention costs with an fp8 cache, beside its kernels in 16 bits: `fp8_caches.toml`.

The kernels of plain attention were measured with K and V in 16 bits. Half the bytes take half the time where
a kernel waits for memory alone, but new keys and values, and in FlashAttention-3 queries too, are quantised
first, and eight bits are read at a lower rate. So a short context loses by such a cache and a long one gains.
"""

from __future__ import annotations

from math import inf
from pathlib import Path

import msgspec

from medusa_sim.reading.documents import read_toml
from medusa_sim.reading.strict import convert


class Fp8Cache(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """What an fp8 cache costs some engines on GPUs of some architectures."""

    engines: tuple[str, ...]
    generations: tuple[str, ...]
    widest: float = inf
    """Largest width of a head."""
    launch_us: float
    """What a layer's attention takes longer at any length."""
    byte_ratio: float = 1.0
    """Time of reading a byte, in units of that in 16 bits."""
    source: str
    """Where that was measured."""


class _File(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    caches: tuple[Fp8Cache, ...]


def _read() -> tuple[Fp8Cache, ...]:
    path = Path(__file__).with_suffix(".toml")
    return convert(read_toml(path), _File, path).caches


FP8_CACHES = _read()


def fp8_cache_of(engine: str, architecture: str, head_dim: float) -> Fp8Cache | None:
    """What such a cache costs there; None: nothing that was measured."""
    return next(
        (
            cache
            for cache in FP8_CACHES
            if engine in cache.engines and architecture in cache.generations and head_dim <= cache.widest
        ),
        None,
    )
