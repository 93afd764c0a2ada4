"""Linear attention, whose memory is a state a head and request.

Gated delta rule (GDN; arXiv 2412.06464), Kimi delta attention (KDA, a decay per key channel; arXiv
2510.26692) and Mamba-2 (arXiv 2405.21060) differ in what updates the state, hardly in what is moved. With n
heads of key width d_k and value width d_v, b requests, q new tokens, states in fp32:

    state of a request         n d_k d_v                                                               (B1)
    one token, FLOPs           7 n d_k d_v  (Mamba-2 5)     state read and written                     (B2)
    verification               state read once, and written for each of the q tokens                   (B3)
    prefill, in chunks of C    n (6 d_k d_v + C (6 d_k + 4 d_v) + C^2 / 3) FLOPs a token               (B4)
                               Mamba-2, of n_k groups: 2 C (n_k d_k + n d_v) + 4 n d_k d_v
    convolution                2 width K_c FLOPs a token                                               (B5)
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal, Self

import numpy as np

from medusa_sim.arrays import FloatArray, as_float
from medusa_sim.models.state_rules import RULES
from medusa_sim.operators.operator import CONTEXT, GENERATION, VERIFY, Numbers, Size, Words
from medusa_sim.operators.row_schema import RowSchema
from medusa_sim.operators.stream import Stream
from medusa_sim.units import BYTES_PER_ELEMENT, Format

RecurrentKind = Literal["gdn", "kda", "mamba2"]
CHUNK = {"gdn": 64, "kda": 64, "mamba2": 128}
"""Tokens that a kernel of prefill computes together, Mamba-2's by the `chunk_size` of its configs."""
STATE, CONVOLUTION = "state", "conv"
_FLOPS_PER_ENTRY = {"gdn": 7.0, "kda": 7.0, "mamba2": 5.0}
_CHANNELS_PER_SM = 512.0
_TOKENS_PER_BLOCK = 512.0
"""Of a request, in a block of a convolution."""
_TOKENS_IN_TURN = 8.0
"""Of a request, that a block of a convolution takes one after another; a library's wide loads are as long."""
_TOKENS_COPIED = 1024.0
"""Tokens in which copies are counted (`_copies`)."""


def chunk_flops(
    kind: RecurrentKind, *, heads: Size, key_heads: Size, key_dim: Size, value_dim: Size
) -> FloatArray:
    """FLOPs of one token of a prompt that is computed in whole chunks (B4); sizes as of `Recurrent`.

    The delta rule in the form of the WY representation (arXiv 2412.06464). Mamba-2 has products of C and B
    within a chunk, of those with x, and two with the state (arXiv 2405.21060).
    """
    chunk, n, keys, values = CHUNK[kind], as_float(heads), as_float(key_dim), as_float(value_dim)
    if kind == "mamba2":
        return 2.0 * chunk * (as_float(key_heads) * keys + n * values) + 4.0 * n * keys * values
    return n * (6.0 * keys * values + chunk * (6.0 * keys + 4.0 * values) + chunk**2 / 3.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Recurrent(Stream):
    """The convolution or the recurrence of a layer of linear attention: `batch` requests, `q_len` tokens."""

    FAMILY = "recurrent"
    COLUMNS = ("batch", "q_len", "heads", "key_heads", "key_dim", "value_dim", "conv_width")
    AXES = ("batch", "q_len")
    LABELS = ("part", "phase", "state_dtype")
    ROWS = RowSchema(
        words={"part": STATE, "phase": GENERATION, "engine": ""},
        splits=("part", "phase", "engine"),
        blank_dtype="bf16",
    )
    NEEDLESS = frozenset({"chunks", "several"})

    kind: RecurrentKind
    batch: Size
    q_len: Size
    heads: Size
    """Heads of values on this GPU."""
    key_heads: Size = field()
    """Heads of keys (groups of Mamba-2)."""
    key_dim: Size = 128
    """Width of a key (Mamba-2: of the state)."""
    value_dim: Size = 128
    """Width of a value (Mamba-2: of a head)."""
    conv_width: Size = 4
    part: str = STATE
    """`state` or `conv`."""
    phase: str = GENERATION
    """`generation` of one token, `context` (prefill in chunks), or `verify`: q_len tokens whose states are
    kept one by one."""
    state_dtype: str = "fp32"
    """Of the states."""

    @classmethod
    def row_fields(cls, kind: str, form: Format, numbers: Numbers, words: Words) -> dict[str, Any]:
        """The dtype of the states that an engine keeps."""
        del form, numbers
        engine = str(words["engine"][0])
        served = RULES[engine].gated_delta if kind == "gdn" and engine in RULES else ""
        return {"state_dtype": served or "fp32"}

    @property
    def form(self) -> str:
        """Key of its kernels: kind, part and phase."""
        return f"{self.kind}_{self.part}_{self.phase}"

    @property
    def forms(self) -> tuple[str, ...]:
        """Keys of kernels that may serve, best first, then another linear attention's."""
        kinds = dict.fromkeys((self.kind, "gdn", "kda"))
        return tuple(f"{kind}_{self.part}_{self.phase}" for kind in kinds)

    @property
    def width(self) -> FloatArray:
        """Channels of the convolution: queries, keys and values."""
        keys = as_float(self.key_heads) * as_float(self.key_dim)
        return 2.0 * keys + as_float(self.heads) * as_float(self.value_dim)

    @property
    def state_bytes(self) -> FloatArray:
        """Bytes of the states of all requests (B1), of the convolution its windows."""
        if self.part == CONVOLUTION:
            window = self.width * (as_float(self.conv_width) - 1.0)
            return BYTES_PER_ELEMENT[self.dtype] * as_float(self.batch) * window
        entries = as_float(self.heads) * as_float(self.key_dim) * as_float(self.value_dim)
        return BYTES_PER_ELEMENT[self.state_dtype] * as_float(self.batch) * entries

    @property
    def of_one_token(self) -> Self | None:
        """The kernel of a plain step, where this is one of a verification step; else None."""
        return replace(self, phase=GENERATION) if self.phase == VERIFY else None

    @property
    def loads(self) -> Mapping[str, FloatArray]:
        """States (B2, B3), and what enters and leaves."""
        element = BYTES_PER_ELEMENT[self.dtype] * self.size
        if self.part == CONVOLUTION:
            kept = as_float(self.q_len) if self.phase == VERIFY else 1.0
            values = 2.0 * element * as_float(self.heads) * as_float(self.value_dim)
            keys = 2.0 * element * self.width - values
            loads = {"state": self.state_bytes * (1.0 + kept), "keys": keys, "values": values}
            if self._copies:  # prompts of several requests are brought together
                loads["several"] = (keys + values) * (1.0 - 1.0 / as_float(self.batch))
            return loads
        values = as_float(self.heads) * as_float(self.value_dim)
        loads = {"tokens": element * (self.width + values), "state": 2.0 * self.state_bytes}
        if self.phase == VERIFY:
            loads |= {"state": self.state_bytes, "kept": self.state_bytes * as_float(self.q_len)}
        if self.phase == CONTEXT:  # kernels of several launches leave a state a chunk between them
            loads["chunks"] = self.state_bytes * self._chunks
        return loads

    @property
    def work(self) -> Mapping[str, FloatArray]:
        """FLOPs (B2, B4, B5); chunks are computed whole."""
        if self.part == CONVOLUTION:
            return {"taps": 2.0 * self.size * self.width * as_float(self.conv_width)}
        if self.phase != CONTEXT:
            heads, keys, values = (as_float(size) for size in (self.heads, self.key_dim, self.value_dim))
            return {"state": _FLOPS_PER_ENTRY[self.kind] * self.size * heads * keys * values}
        token = chunk_flops(
            self.kind,
            heads=self.heads,
            key_heads=self.key_heads,
            key_dim=self.key_dim,
            value_dim=self.value_dim,
        )
        return {"chunks": as_float(self.batch) * self._chunks * CHUNK[self.kind] * token}

    @property
    def flops(self) -> FloatArray:
        """Floating-point operations of the tokens that are there."""
        (work,) = self.work.values()
        if self.part == STATE and self.phase == CONTEXT:
            return work * as_float(self.q_len) / (self._chunks * CHUNK[self.kind])
        return work

    def steps(self, sms: int) -> Mapping[str, FloatArray]:
        """Chunks of a head one after another, in waves of heads, and the rows of a chunk within; blocks of a
        convolution.
        """
        batch, heads = as_float(self.batch), as_float(self.heads)
        if self.part == CONVOLUTION:
            values = as_float(self.heads) * as_float(self.value_dim)
            blocks = batch * np.ceil(as_float(self.q_len) / _TOKENS_PER_BLOCK) / (_CHANNELS_PER_SM * sms)
            waves = batch * self.width / (_CHANNELS_PER_SM * sms)
            steps = {
                "tokens": as_float(self.q_len) * np.ceil(waves),
                "keys": blocks * (self.width - values),
                "values": blocks * values,
                **({"requests": batch, "each": self.size / _TOKENS_COPIED} if self._copies else {}),
            }
            if self.phase == CONTEXT:
                q_len = as_float(self.q_len) + np.zeros_like(waves)
                steps |= {
                    "within": np.minimum(q_len, _TOKENS_IN_TURN),
                    "behind": np.asarray(q_len > _TOKENS_IN_TURN, dtype=np.float64),
                    "ragged": waves * (q_len % _TOKENS_IN_TURN > 0.0),
                    "channels": self.size * self.width / (_TOKENS_PER_BLOCK * _CHANNELS_PER_SM * sms),
                }
            return steps | self._several
        if self.phase == CONTEXT:
            spread = batch * heads / sms
            # of the delta rule, whose kernels stand in for a scan of Mamba-2 that nobody timed
            within = np.minimum(as_float(self.q_len), CHUNK["gdn"])
            return {
                "chain": self._chunks * np.ceil(spread),
                "chunks": self._chunks * spread,
                "rows": within * np.ones_like(spread),
                "row_waves": within * spread,
            }
        return {"tokens": as_float(self.q_len) * np.ones_like(batch * heads)} | self._several

    @property
    def _several(self) -> dict[str, FloatArray]:
        """A lone request finds what it needs sooner (KDA's rows of few tokens)."""
        if self.kind != "kda" or self.phase == CONTEXT:
            return {}
        batch = as_float(self.batch) + np.zeros_like(self.size * as_float(self.heads))
        return {"several": np.asarray(batch > 1.0, dtype=np.float64)}

    @property
    def _copies(self) -> bool:
        """Three launches, for queries, keys and values, that copy them first."""
        return self.kind == "kda" and self.phase == CONTEXT and self.part == CONVOLUTION

    @property
    def _chunks(self) -> FloatArray:
        chunks: FloatArray = np.ceil(as_float(self.q_len) / CHUNK[self.kind])
        return chunks
