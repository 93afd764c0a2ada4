"""Times of operators that no single kernel gives: verification in a window, modules of sparse attention."""

from __future__ import annotations

from dataclasses import replace
from typing import Protocol

import numpy as np

from medusa_sim.arrays import as_float
from medusa_sim.gpus.kernels import StreamKernel
from medusa_sim.latency.choice import Asked, Choice, choose
from medusa_sim.latency.model import LatencyModel
from medusa_sim.latency.operator_time import OperatorTime, Source, replaced_where
from medusa_sim.latency.stream import stream_time
from medusa_sim.operators.attention import Attention
from medusa_sim.operators.kinds import SPARSE
from medusa_sim.operators.operator import GENERATION, VERIFY, Operator
from medusa_sim.operators.sparse import Sparse
from medusa_sim.operators.window import WindowAttention

REPLAYED = ("dsa", "dsa_no_indexer")
"""Modules of which rows of some libraries hold the host's launches and those of others a graph."""
_GRAPH_SHARE = 0.6
"""Of the shortest rows of such a module, what published steps leave: 48 of 76 to 79 us a layer (vLLM)."""


class KernelTimes(LatencyModel, Protocol):
    """What these laws ask of the model of one GPU (`latency.calibrated`)."""

    @property
    def cold(self) -> bool:
        """Whether operands come from HBM."""
        ...

    def chosen_time(self, operator: Operator) -> OperatorTime:
        """Time by the one kernel that is chosen for it."""
        ...

    def choice(self, operator: Operator) -> Choice:
        """That kernel."""
        ...


def window_time(model: KernelTimes, operator: WindowAttention) -> OperatorTime:
    """Attention in a window."""
    return verify_in_window(model, operator) if operator.phase == VERIFY else model.chosen_time(operator)


def verify_in_window(model: KernelTimes, operator: WindowAttention) -> OperatorTime:
    """Several queries in a window, of which there are no rows: one's time, growing as attention does."""
    keys = np.minimum(as_float(operator.prefix) + 1.0, as_float(operator.window))
    one = replace(operator, phase=GENERATION, q_len=1, prefix=as_float(operator.prefix))
    plain = Attention(
        name=operator.name,
        kind="decode_attention",
        batch=operator.batch,
        q_len=1,
        kv_len=keys,
        heads=operator.heads,
        kv_heads=operator.kv_heads,
        head_dim=operator.head_dim,
        dtype=operator.dtype,
        kv_dtype=operator.kv_dtype,
    )
    several = replace(plain, kind="verify_attention", q_len=operator.q_len, kv_len=operator.kv_len)
    base, grown = model.time(one), model.time(several)
    growth = np.maximum(grown.time_us / model.time(plain).time_us, 1.0)
    below = np.hypot(*(np.log(time.time_us / time.low_us) for time in (base, grown)))
    above = np.hypot(*(np.log(time.high_us / time.time_us) for time in (base, grown)))
    time_us = base.time_us * growth
    return OperatorTime(
        time_us=time_us,
        low_us=time_us * np.exp(-below),
        high_us=time_us * np.exp(above),
        bound=np.broadcast_to(grown.bound, time_us.shape),
        source=np.maximum(base.source, grown.source) + np.zeros(time_us.shape, dtype=np.int8),
        place=base.place,
        together=max(base.together, grown.together),
    )


def sparse_time(model: KernelTimes, operator: Sparse) -> OperatorTime:
    """A module of sparse attention; of several queries what an engine takes, never less than of one."""
    time = model.chosen_time(operator)
    if not model.cold:
        return time
    if operator.phase != VERIFY:
        return _replayed(model, operator, time) if operator.kind in REPLAYED else time
    apart = model.time(operator.one_by_one())  # which an engine may choose where it is shorter
    time = replaced_where(time, apart, apart.time_us < time.time_us)
    plain = model.time(replace(operator, phase=GENERATION, q_len=1))
    return replaced_where(time, plain, plain.time_us > time.time_us)


def _replayed(model: KernelTimes, operator: Sparse, time: OperatorTime) -> OperatorTime:
    """A module as a graph replays it: never slower than another library's rows of that format on this GPU.

    Rows of DeepSeek's sparse attention hold gaps between some 60 launches: at one request vLLM's are 1.9
    (B200) to 2.5 times (H100) SGLang's, whose kernels are alike, and so many microseconds more at all
    others. Published steps through vLLM leave less than either: the band reaches down to that, and half
    of the way up to the library's own rows.
    """
    gpu, chosen, shortest = model.gpu, model.choice(operator), time
    for name in gpu.kernels:
        asked = Asked(set_name=name, library=name, in_step=True)
        if name == chosen.set_name or chosen.form not in SPARSE.table(gpu.kernels[name]):
            continue
        other = choose(gpu, operator, asked)
        if other.set_name == name and isinstance(other.kernel, StreamKernel):
            found = stream_time(gpu, other.kernel, operator)
            shortest = replaced_where(shortest, found, found.time_us < shortest.time_us)
    if shortest is time:
        return time
    is_other = shortest.time_us < time.time_us
    bounded = replace(
        shortest,
        low_us=np.minimum(shortest.low_us, _GRAPH_SHARE * shortest.time_us),
        high_us=np.maximum(shortest.high_us, np.sqrt(shortest.time_us * time.time_us)),
        source=np.maximum(shortest.source, np.int8(Source.BORROWED)),
    )
    return replaced_where(time, bounded, is_other)
