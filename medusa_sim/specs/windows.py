"""Attention that looks back only so far in some or all layers."""

from __future__ import annotations

from typing import Annotated

import msgspec
import numpy as np
from msgspec import Meta

from medusa_sim.arrays import FloatArray


class Windows(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """`layers` of a model attend to the last `size` tokens alone, the others to all.

    chunked: to those of the same chunk of `size` tokens (Llama 4), of which a query meets half in the mean.
    """

    size: Annotated[int, Meta(ge=1, le=100_000_000)]
    layers: Annotated[int, Meta(ge=1, le=1_000)]
    chunked: bool = False

    def keys(self, kv_len: FloatArray, q_len: FloatArray) -> FloatArray:
        """Keys that a step of q_len queries reads in a windowed layer; kv_len holds the new tokens.

        Each query sees itself and the size - 1 tokens before it (Beltagy et al. 2020, Longformer, arXiv
        2004.05150, section 3.1, in its causal form), so that q_len of them in a row see size + q_len - 1.
        """
        reach = 0.5 * self.size if self.chunked else self.size - 1.0
        return np.where(kv_len > self.size, np.minimum(kv_len, reach + q_len), kv_len)

    def cached(self, tokens: FloatArray) -> FloatArray:
        """Tokens that a windowed layer keeps of each sequence."""
        return np.minimum(tokens, float(self.size))
