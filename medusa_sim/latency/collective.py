"""Calibrated time of collectives between the GPUs of a node.

A library changes its algorithm and protocol with the size of the message: one-shot for the smallest, then
two-shot or rings with ever larger packets. Each is a regime, and its time is linear. With n ranks, a message
of B bytes, w the bytes that a rank must send (`sent_bytes`: those of `Collective.link_bytes`; B (n - 1) where
one-shot, at most in_switch B (1 + 1 / n) where the switch adds up) and L the link's datasheet bandwidth in
one direction (`CollectiveRegime` has the other names):

    served   = B <= bytes_max (n / 2)^growth                               the first regime that serves B (C2)
               beyond 8 ranks a later one where that is faster
    time     = start_us + rank_us (n - 2) + (copy_passes B + link_passes w) / L                          (C3)
               of a step at most that of the next size that was measured, and of larger ones             (C4)
               of a step near an end E linear in B, from that of E / 2^0.5 to that of 2^0.5 E            (C6)
               beyond the most ranks that were measured, what these take times the growth on another GPU (C5)
               of a step whose engine asks for one shot up to B1, at least min(B, B1) in one shot        (C7)
    time     = 0 where n = 1                                               nobody to talk to

copy_passes is what does not depend on the number of ranks, such as bringing a rank's own part into place.
Steps of a ring take their time one after another, so the start grows with n; the share (n - 1) / n that
crosses the link hardly does. With time measured at two numbers of ranks this tells the ones between.

An engine may add up in one shot up to some rows of a step, however wide they are (`Engine.one_shot_rows`):
such messages go on along the line of the last one-shot regime (C7), but over PCIe, where NCCL adds up. Steps
of TensorRT-LLM show that line up to 2 MiB among eight H200 (128 requests of Llama-3.1-70B). With one row more
it turns to two shots, which by rows of its kernel are faster there. No step shows that: time stays level
until a larger message takes as long in two shots, and the band reaches down to the library's own choice.

In numbers: an all-reduce of 64 tokens of width 4,096 in bf16, 512 KiB, among eight H100s in SGLang. One-shot
ends at 185 KB there, 524 KB (8 / 2)^-0.75. The next regime starts in 2.5 + 6 x 0.9 = 7.8 us and sends w =
0.92 MB at 450 / 1.46 GB/s in 3.0 us: 10.8 us.

Where between two measured sizes a library changes nobody measured: E is half way, and a step's time rises
over it, as it does on average over where the end may lie (C6). It leapt by 2.8 on an A100 at 4 MB.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import lru_cache
from itertools import pairwise
from typing import NamedTuple, cast

import numpy as np

from medusa_sim.arrays import BoolArray, FloatArray, as_float
from medusa_sim.gpus.fitted_links import FEWEST_RANKS, CollectiveKernel, CollectiveRegime
from medusa_sim.gpus.gpu import Gpu, load_gpu
from medusa_sim.latency.bands import KernelParts, calibrated_time
from medusa_sim.latency.operator_time import Bound, OperatorTime
from medusa_sim.operators.collective import Collective, CollectiveKind
from medusa_sim.units import US_PER_S

_ENDS_KNOWN_TO = 8.0
"""Ranks up to which rows say where a library changes its algorithm."""
UNKNOWN_RANKS_WIDEN = 1.5
"""Of the band among more ranks than a kernel was measured with, where other GPUs tell; an assumption.

Eight ranks of an L40S over PCIe lie between 0.7 (SGLang 0.5.12) and several times what the RTX PRO 6000's
growth says of them: on their board the links are shared.
"""
_GRID = 2.0 ** np.arange(8.0, 34.0, 0.125)
"""Bytes of the messages at which a kernel's growth with ranks is read off."""
_NEXT_SIZE = np.sqrt(2.0)
"""Times the end of a regime, the size that is sure not to lie beyond the next one that was measured."""


class _Times(NamedTuple):
    """Microseconds of messages: of their start alone, and of the whole."""

    start_us: FloatArray
    time_us: FloatArray

    def where(self, is_other: BoolArray, other: _Times) -> _Times:
        """The other's where `is_other` holds."""
        return _Times(*(np.where(is_other, theirs, own) for own, theirs in zip(self, other, strict=True)))


def collective_time(
    gpu: Gpu, kernel: CollectiveKernel, operator: Collective, *, cold: bool = True
) -> OperatorTime:
    """Time of one collective for every message and number of ranks that `operator` holds (C2 to C7).

    cold: of a step, whose message is never dearer than a larger one; rows were measured as regimes are.
    low and high are the 80 % band of held-out residuals for the range of the message; low of messages
    beyond those that an engine sends in one shot is that of the library's own choice.
    """
    time = _banded_time(gpu, kernel, operator, cold=cold)
    if not cold or not operator.one_shot_bytes:
        return time
    unasked = _banded_time(gpu, kernel, replace(operator, one_shot_bytes=0.0), cold=cold)
    is_beyond = operator.size > operator.one_shot_bytes
    return replace(time, low_us=np.where(is_beyond, np.minimum(time.low_us, unasked.low_us), time.low_us))


def _banded_time(gpu: Gpu, kernel: CollectiveKernel, operator: Collective, *, cold: bool) -> OperatorTime:
    """Time with the kernel's band, wider among more ranks than it was measured with."""
    ranks = as_float(operator.ranks)
    if kernel.ranks_of:
        few = operator.with_columns(ranks=np.minimum(ranks, kernel.most_ranks))
        found = _times(gpu, kernel, few, cold=cold)
        growth = _growth(kernel, found.time_us, ranks)
        start_us, time_us = (growth * part_us for part_us in found)
    else:
        start_us, time_us = _times(gpu, kernel, operator, cold=cold)
    parts = KernelParts(time_us, start_us, time_us - start_us, np.zeros(start_us.shape))
    time = calibrated_time(gpu, [(kernel.fit, operator)], parts, work=Bound.LATENCY)
    if kernel.knows_ranks and not kernel.ranks_of:
        return time
    widen = np.where(ranks > kernel.most_ranks, UNKNOWN_RANKS_WIDEN, 1.0)
    return replace(time, low_us=time.low_us / widen, high_us=time.high_us * widen)


def _times(gpu: Gpu, kernel: CollectiveKernel, operator: Collective, *, cold: bool) -> _Times:
    """Of a step without leaps between regimes (C6)."""
    start_us, time_us = _by_regime(gpu, kernel, operator, cold=cold)
    message, ranks = np.broadcast_arrays(as_float(operator.message_bytes), as_float(operator.ranks))
    for low, high in _spans(kernel, ranks) if cold else ():
        inside = (low < message) & (message < high)
        if not inside.any():
            continue
        low_us, high_us = (
            _by_regime(gpu, kernel, operator.with_columns(message_bytes=end), cold=True).time_us
            for end in (low, high)
        )
        share = (message - low) / np.where(inside, high - low, 1.0)
        time_us = np.where(inside, low_us + (high_us - low_us) * share, time_us)
    return _Times(np.minimum(start_us, time_us), time_us)


def _spans(kernel: CollectiveKernel, ranks: FloatArray) -> Iterator[tuple[FloatArray, FloatArray]]:
    """(from, to) of messages around the end of each regime but the last, apart; empty beyond 8 ranks."""
    ends = [largest_message(regime, ranks) for regime in kernel.regimes[:-1]]
    bounds = [np.zeros(ranks.shape), *ends, np.full(ranks.shape, np.inf)]
    for before, end, after in zip(bounds, ends, bounds[2:], strict=False):
        low = np.minimum(np.maximum(end / _NEXT_SIZE, before * _NEXT_SIZE), end)
        high = np.maximum(np.minimum(end * _NEXT_SIZE, after / _NEXT_SIZE), end)
        yield low, np.where(ranks <= _ENDS_KNOWN_TO, high, low)


def _by_regime(gpu: Gpu, kernel: CollectiveKernel, operator: Collective, *, cold: bool) -> _Times:
    """By the regime that serves the message (C2 to C4, C7); nothing of one rank."""
    message, ranks = np.broadcast_arrays(as_float(operator.message_bytes), as_float(operator.ranks))
    lines = (_line(gpu, kernel, regime, operator) for regime in kernel.regimes)
    start_us, time_us = (
        np.stack([np.broadcast_to(us, message.shape) for us in part]) for part in zip(*lines, strict=True)
    )
    ends = np.stack([largest_message(regime, ranks) for regime in kernel.regimes])
    if cold:
        levels_us = _levels_us(gpu, kernel, operator, ends)
        time_us = np.minimum(time_us, levels_us)
        is_beyond = message > ends[:-1]
        time_us[1:] = np.where(is_beyond, np.maximum(time_us[1:], levels_us[:-1]), time_us[1:])
    serves = message <= ends
    # nobody measured where a library changes among more ranks: it keeps no slower regime
    fastest = np.argmin(np.where(serves, time_us, np.inf), axis=0)
    serving = np.where(ranks <= _ENDS_KNOWN_TO, np.argmax(serves, axis=0), fastest)[None]
    served = _Times(*(np.take_along_axis(values, serving, axis=0)[0] for values in (start_us, time_us)))
    if cold:
        served = _with_asked_shots(gpu, kernel, operator, served)
    several = ranks > 1.0
    return _Times(*(np.where(several, values, 0.0) for values in served))


def _with_asked_shots(gpu: Gpu, kernel: CollectiveKernel, operator: Collective, served: _Times) -> _Times:
    """Those of one shot where the engine asks for it beyond where the library takes it (C7)."""
    shots = [regime for regime in kernel.regimes if regime.one_shot]
    if not operator.one_shot_bytes or not shots:
        return served
    message, ranks = as_float(operator.message_bytes), as_float(operator.ranks)
    as_shot = operator.with_columns(message_bytes=np.minimum(message, operator.one_shot_bytes))
    shot = _line(gpu, kernel, shots[-1], as_shot)
    is_beyond = (message > largest_message(shots[-1], ranks)) & ~gpu.is_over_pcie(ranks)
    return served.where(is_beyond & (shot.time_us > served.time_us), shot)


def _growth(kernel: CollectiveKernel, most_us: FloatArray, ranks: FloatArray) -> FloatArray:
    """Times as long among more ranks as among the most that a kernel knows, by another GPU's kernel (C5).

    What takes as long among so many of its GPUs takes there among more: so a message is still never faster
    for being larger. most_us: time among the most.
    """
    growth = np.ones(np.broadcast_shapes(most_us.shape, ranks.shape))
    for count in np.unique(ranks[ranks > kernel.most_ranks]):
        known_us, more = _grown(kernel.ranks_of, kernel.most_ranks, float(count))
        of_count = np.exp(np.interp(np.log(np.maximum(most_us, known_us[0])), np.log(known_us), np.log(more)))
        growth = np.where(ranks == count, of_count, growth)
    return growth


@lru_cache(maxsize=64)
def _grown(reference: str, few: float, ranks: float) -> tuple[FloatArray, FloatArray]:
    """Rising times among few GPUs by a kernel of that place, and times as long among more."""
    name, held, key = reference.split(":")
    gpu = load_gpu(name)
    kernel = gpu.kernels[held].collective[key]
    words = key.partition("@")[0].partition("-")[0].split("_")
    of_few = Collective(name="", kind=cast("CollectiveKind", "_".join(words[:-1])), dtype=words[-1],
                        message_bytes=_GRID, ranks=few)  # fmt: skip
    few_us, more_us = (
        _times(gpu, kernel, made, cold=True).time_us for made in (of_few, of_few.with_columns(ranks=ranks))
    )
    rising = np.concatenate([[True], np.diff(np.maximum.accumulate(few_us)) > 0.0])
    return few_us[rising], np.maximum(more_us / few_us, 1.0)[rising]


def _levels_us(gpu: Gpu, kernel: CollectiveKernel, operator: Collective, ends: FloatArray) -> FloatArray:
    """(regimes, ...) what no message of a regime exceeds and none of a later one falls below.

    A regime's line is drawn on to its end, which lies between two sizes that were measured: there it may be
    above the next one's line, and a message would be faster for being larger. It is no dearer than the next
    size that was measured (C4). ends: (regimes, ...) of them, bytes.
    """
    levels_us = np.full(ends.shape, np.inf)
    for index, (regime, following) in enumerate(pairwise(kernel.regimes)):
        last, following_size = (
            operator.with_columns(message_bytes=size * ends[index]) for size in (1.0, _NEXT_SIZE)
        )
        last_us = _line(gpu, kernel, regime, last).time_us
        next_us = _line(gpu, kernel, following, following_size).time_us
        levels_us[index] = np.minimum(last_us, next_us)
    return np.minimum.accumulate(levels_us[::-1])[::-1]


def _line(gpu: Gpu, kernel: CollectiveKernel, regime: CollectiveRegime, operator: Collective) -> _Times:
    """Of a regime (C3), whether it serves the message or not."""
    # between two GPUs one shot and a ring send the same: rows of two alone tell no one shot apart
    sent = sent_bytes(operator, one_shot=regime.one_shot and kernel.knows_ranks, in_switch=regime.in_switch)
    ranks = as_float(operator.ranks)
    passed = regime.copy_passes * operator.size + regime.link_passes * sent
    start_us = regime.start_us + regime.rank_us * (ranks - FEWEST_RANKS)
    return _Times(start_us, start_us + passed / gpu.link_to(ranks) * US_PER_S)


def largest_message(regime: CollectiveRegime, ranks: FloatArray) -> FloatArray:
    """Bytes of the largest message that a regime serves (C2); infinity where it is open."""
    if regime.bytes_max == 0.0:
        return np.full(np.shape(ranks), np.inf)
    return regime.bytes_max * (ranks / FEWEST_RANKS) ** regime.growth


def sent_bytes(operator: Collective, *, one_shot: bool = False, in_switch: float = 0.0) -> FloatArray:
    """Bytes that a rank sends: to each other the whole message, or what the best algorithms must (C1).

    Where the switch adds up, a rank sends its message once and its share of the sum: B (1 + 1 / n), at
    `in_switch` times the cost of a ring's bytes; the library takes it where it is the cheaper.
    """
    message, ranks = as_float(operator.message_bytes), as_float(operator.ranks)
    if one_shot:
        return message * (ranks - 1.0)
    if in_switch > 0.0:
        return np.minimum(operator.link_bytes, in_switch * message * (1.0 + 1.0 / ranks))
    return operator.link_bytes
