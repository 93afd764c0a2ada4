"""A lender's kernel on another card: what of its rates memory decides, and what multiprocessors do.

Rates are stored in units of a datasheet's bandwidth and peak. Few of them scale with these: with F the FLOPs
that a multiprocessor's Tensor Cores do in a clock, B the bytes that memory brings it in one, f and a the
fraction and ratio of the lender l,

    peak_fraction = 1 / (1 + (1 / f - 1) F / F_l)    where F < F_l                                        (I2)
    load_ratio    = a B_l / B                                  where a > 2                                (I3)

Beside its Tensor Cores a multiprocessor does in a clock what its relative does: reading shared memory, the
softmax, the epilogue. These are the clocks that a lender's kernel takes beyond its arithmetic, and on a card
that computes slower they are fewer beside it: of an H20's peak more is reached than of an H100's. Tiles come
through L2, at a rate in bytes a clock that faster memory behind it leaves alone: fits to an H100 and to an
H200 give 17.2 and 17.1 TB/s. Kernels that unpack weights of 4 bits load at 1.2 to 2 times the bandwidth of
memory, whatever it is (an A100, an H100): that is memory itself. Both hold among cards of one architecture.
Kernels of another differ by more, and what is stored is taken as it is.

Sources: `python benchmarks/kernels.py transfer linear` and `transfer formats`. Linear layers of one card on
another of its architecture err by 8.4 % in the mean over pairs with both, by 9.3 without; in formats with
scales of blocks by 8.1 (13.1); an A100's on an A40 by 7.8 (11.1). Experts in blocks of fp8 of an H100 on an
H200, and the reverse, err by 5.6 and 4.0 % (9.3, 9.4). Nothing was measured on an H20.
"""

from __future__ import annotations

from typing import NamedTuple, TypeVar, cast

import msgspec
import numpy as np

from medusa_sim.specs.fitted import AttentionKernel, AttentionPath, ExpertKernel, LatentKernel
from medusa_sim.specs.kernels import GemmKernel, Kernel, StreamKernel, chosen_by_time

OTHER_VENDOR = "cdna"
"""Architecture of cards that no library here runs on: neither its clusters nor its rules for tiles."""
KernelT = TypeVar("KernelT", bound=Kernel)

_FASTEST_HZ = 2.7e9
"""An SM's FLOPs in a clock are the power of two that puts its clock between half of this and this."""
_FROM_MEMORY = 2.0
"""Times memory's bandwidth up to which tiles load at its rate."""
_ASKED_BYTES_PER_S = 20e9
_MEMORY_RATIO = 1.6
"""Beside memory of more bytes per second and multiprocessor than that, what a kernel takes beyond so many
times its bytes at the datasheet's bandwidth is bound by multiprocessors, whatever class it was fitted to.

Chunked prefill of attention takes 0.96 to 1.02 of an H100's time on an H200, whose memory is 1.43 times as
fast. Sources: aiconfigurator-core 0.12, `python benchmarks/kernels.py transfer mixers` (H100 to B200).
"""


def flops_per_clock(flops_per_s: float) -> float:
    """Of one multiprocessor's Tensor Cores, of its peak: a power of two, told from what clocks there are."""
    return float(2.0 ** np.ceil(np.log2(flops_per_s / _FASTEST_HZ)))


class Chip(NamedTuple):
    """What a card's multiprocessors are given."""

    architecture: str
    bytes_per_s: float
    """That memory brings one of them."""
    flops_per_s: float
    """Of one of them, in 16 bits."""

    @property
    def flops_per_clock(self) -> float:
        """Of its Tensor Cores."""
        return flops_per_clock(self.flops_per_s)

    @property
    def bytes_per_clock(self) -> float:
        """That memory brings it."""
        return self.bytes_per_s * self.flops_per_clock / self.flops_per_s


def carried(kernel: KernelT, lender: Chip, borrower: Chip) -> KernelT:
    """A lender's kernel on another card.

    Rules for tiles and clusters are those of a library that another vendor's cards do not run: theirs take
    the fastest.
    """
    return cast("KernelT", _carried(kernel, lender, borrower))


def _carried(kernel: Kernel, lender: Chip, borrower: Chip) -> Kernel:
    if isinstance(kernel, GemmKernel) and borrower.architecture == OTHER_VENDOR:
        return chosen_by_time(kernel)
    if isinstance(kernel, StreamKernel):
        kernel = _streamed(kernel, borrower.bytes_per_s / lender.bytes_per_s, lender)
    if lender.architecture != borrower.architecture:
        return kernel
    slower = max(lender.flops_per_clock / borrower.flops_per_clock, 1.0)
    if isinstance(kernel, GemmKernel | ExpertKernel):
        return _tiled(kernel, slower, borrower.bytes_per_clock / lender.bytes_per_clock)
    return kernel if slower == 1.0 else _computing(kernel, slower)


def _fraction(fraction: float, slower: float) -> float:
    """(I2); a fraction beyond 1 counts padded rows and says nothing of clocks."""
    return 1.0 / (1.0 + (1.0 / fraction - 1.0) / slower) if fraction < 1.0 else fraction


def _tiled(kernel: GemmKernel | ExpertKernel, slower: float, faster: float) -> GemmKernel | ExpertKernel:
    """Products in tiles, beside so much slower Tensor Cores and so much faster memory in a clock."""
    if isinstance(kernel, ExpertKernel) and slower > 1.0:
        kernel = _by_time(kernel)
    share = _fraction(kernel.peak_fraction, slower)
    if isinstance(kernel, GemmKernel) and slower > 1.0:
        kernel = _paced(kernel, share, slower)
    rate = kernel.load_ratio / (faster if kernel.load_ratio > _FROM_MEMORY else 1.0)
    return msgspec.structs.replace(kernel, peak_fraction=share, load_ratio=rate)


def _paced(kernel: GemmKernel, share: float, slower: float) -> GemmKernel:
    """What a tile takes beyond its sizes are clocks beside its arithmetic too (I2). share: of all tiles."""

    def pace(of_tile: float) -> float:
        own = kernel.peak_fraction / of_tile
        return share / _fraction(own, slower) if own < 1.0 else of_tile

    names = ("pace", "pace_alone", "pace_half")
    tiles = tuple(
        msgspec.structs.replace(tile, **{name: pace(getattr(tile, name)) for name in names})
        for tile in kernel.tiles
    )
    return msgspec.structs.replace(kernel, tiles=tiles)


def _computing(kernel: Kernel, slower: float) -> Kernel:
    """What is told by shares of the peak alone, on Tensor Cores so many times as slow in a clock."""
    if isinstance(kernel, StreamKernel):  # its coefficients are one over a fraction
        work = {
            each: 1.0 / _fraction(1.0 / ratio, slower) if ratio else 0.0
            for each, ratio in kernel.work.items()
        }
        return msgspec.structs.replace(kernel, work=work)
    if not isinstance(kernel, AttentionKernel | LatentKernel):
        return kernel
    narrow = None if kernel.narrow is None else _path(kernel.narrow, slower)
    changed = msgspec.structs.replace(kernel, wide=_path(kernel.wide, slower), narrow=narrow)
    if isinstance(changed, LatentKernel) and changed.projections is not None:
        share = _fraction(changed.projections.peak_fraction, slower)
        projections = msgspec.structs.replace(changed.projections, peak_fraction=share)
        return msgspec.structs.replace(changed, projections=projections)
    return changed


def _by_time(kernel: ExpertKernel) -> ExpertKernel:
    """Tiles chosen by time: a rule is that of a lender's arithmetic, and libraries tune theirs to such cards.

    vLLM and SGLang ship configurations for an H20; by an H100's rule 70 requests took twice as long as 64.
    """
    limits = ("tokens_max", "tokens_per_expert_max", "rows_per_expert_max")
    free = [msgspec.structs.replace(tile, **dict.fromkeys(limits, 0)) for tile in kernel.default_tiles]
    return msgspec.structs.replace(kernel, tiles=(*kernel.tiles, *free), default_tiles=())


def _path(path: AttentionPath, slower: float) -> AttentionPath:
    names = ("whole_fraction", "split_fraction")
    return msgspec.structs.replace(path, **{name: _fraction(getattr(path, name), slower) for name in names})


def _streamed(kernel: StreamKernel, pace: float, lender: Chip) -> StreamKernel:
    """Where memory is faster for each multiprocessor, what these bounded keeps its time."""
    if pace <= 1.0 or lender.bytes_per_s <= _ASKED_BYTES_PER_S:
        return kernel
    loads = {
        each: ratio + max(ratio - _MEMORY_RATIO, 0.0) * (pace - 1.0) for each, ratio in kernel.loads.items()
    }
    return msgspec.structs.replace(kernel, loads=loads)
