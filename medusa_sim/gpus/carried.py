"""A lender's kernel on another GPU: which rates follow the memory and which the multiprocessors.

Rates are stored as shares of a datasheet's peak and multiples of its bandwidth. Per multiprocessor and
clock let F be the FLOPs of its Tensor Cores and B the bytes that memory brings it; f and a are the stored
share and multiple, and l marks the lender's numbers. Between GPUs of one architecture
((I1) of docs/method-kernels.md is the margin of their bands)

    peak_fraction = 1 / (1 + (1 / f - 1) F / F_l)    where F < F_l, else f                                (I2)
    load_ratio    = a B_l / B                             unless experts unpack weights of 4 bits         (I3)

(I2): besides its arithmetic a kernel spends clocks on shared memory, softmax and epilogue. A GPU whose
Tensor Cores are slower spends as many, which is a smaller part of its time: an H20 reaches more of its peak
than an H100. (I3): tiles come through L2, which brings as many bytes a clock whatever the memory below it:
fits to an H100 and an H200 give 17.2 and 17.1 TB/s. Kernels of experts that unpack weights of 4 bits to 16
load at 1.2 to 2 times memory's bandwidth on an A100 and on an H100, and are taken to follow memory: a
stays. That is of tiles with a few rows, which bring weights. Where rows are many, unpacking them and the rows
themselves are what is loaded, and no faster memory helps: with M x N the widest tile, b_x and b_w bytes of
activations and weights,

    peak_fraction <= 2 M N a B_l / ((M b_x + N b_w) F)    where B > B_l                                   (I4)

so that this tile takes as many clocks as the lender's. Of shipped kernels it binds for one, vLLM's of mxfp4
on an H100, which was fitted at its whole peak: it reaches 0.67 of an H200's and of an H100 NVL's.

Where these laws do not apply:

- Another architecture: rates stay as they are stored, since kernels differ by more than these laws say.
- Streams (recurrent layers, chunked prefill), whatever the architecture: what takes more than 1.6 times its
  bytes at the datasheet's bandwidth is bound by multiprocessors, and faster memory shortens the rest alone.
- Another vendor's GPUs: tiles are chosen by time, not by a library's rule.

Sources: `python benchmarks/kernels.py transfer linear`, `formats` and `mixers`. Linear layers of one GPU
on another of its architecture err by 8.4 % on average over pairs in both directions, by 9.3 without these
laws; in formats with scales of blocks by 8.1 (13.1); an A100's on an A40 by 7.8 (11.1). Experts in blocks
of fp8 of an H100 on an H200, and the reverse, err by 5.6 and 4.0 % (9.3, 9.4). Nothing was measured on an
H20, and no kernel that unpacks 4 bits on two GPUs whose bytes in a clock differ.
"""

from __future__ import annotations

from typing import NamedTuple, TypeVar, cast

import msgspec
import numpy as np

from medusa_sim.gpus.fitted_attention import AttentionKernel, AttentionPath, LatentKernel
from medusa_sim.gpus.fitted_experts import ExpertKernel
from medusa_sim.gpus.kernels import GemmKernel, Kernel, StreamKernel, chosen_by_time
from medusa_sim.units import BYTES_PER_ELEMENT, FORMATS, HALVES

OTHER_VENDOR = "cdna"
"""Architecture of GPUs that no library here runs on: neither its clusters nor its rules for tiles."""
KernelT = TypeVar("KernelT", bound=Kernel)

_FASTEST_HZ = 2.7e9
"""An SM's FLOPs in a clock are the power of two that puts its clock between half of this and this."""
_FAST_BYTES_PER_S = 20e9
"""Of memory, for each multiprocessor: on lenders above this, streams may be bound by multiprocessors."""
_STREAM_RATIO = 1.6
"""Times a stream's bytes at the datasheet's bandwidth that memory explains; multiprocessors take the rest.

Chunked prefill of attention takes 0.96 to 1.02 of an H100's time on an H200, whose memory is 1.43 times as
fast. Sources: aiconfigurator-core 0.12, `python benchmarks/kernels.py transfer mixers` (H100 to B200).
"""


def flops_per_clock(flops_per_s: float) -> float:
    """FLOPs a clock of one multiprocessor from its peak: the power of two that gives a plausible clock."""
    return float(2.0 ** np.ceil(np.log2(flops_per_s / _FASTEST_HZ)))


class Chip(NamedTuple):
    """Rates of one multiprocessor of a GPU."""

    architecture: str
    bytes_per_s: float
    """Memory bandwidth for each multiprocessor."""
    flops_per_s: float
    """Peak of one multiprocessor in 16 bits."""

    @property
    def flops_per_clock(self) -> float:
        """FLOPs a clock of its Tensor Cores."""
        return flops_per_clock(self.flops_per_s)

    @property
    def bytes_per_clock(self) -> float:
        """Bytes a clock that memory brings it."""
        return self.bytes_per_s * self.flops_per_clock / self.flops_per_s


def carried(kernel: KernelT, lender: Chip, borrower: Chip, entry: str) -> KernelT:
    """A lender's kernel on the borrower's GPU, by the laws and rules above.

    entry: the kernel's key in its section (`int4`, `mxfp4@name`), which starts with its format.
    """
    return cast("KernelT", _carried(kernel, lender, borrower, entry))


def _carried(kernel: Kernel, lender: Chip, borrower: Chip, entry: str) -> Kernel:
    # rules
    if isinstance(kernel, GemmKernel) and borrower.architecture == OTHER_VENDOR:
        return chosen_by_time(kernel)
    if isinstance(kernel, StreamKernel):
        kernel = _streamed(kernel, lender, borrower)
    if lender.architecture != borrower.architecture:
        return kernel
    # laws
    slowdown = max(lender.flops_per_clock / borrower.flops_per_clock, 1.0)
    bytes_ratio = borrower.bytes_per_clock / lender.bytes_per_clock
    if isinstance(kernel, ExpertKernel) and _unpacks_four_bits(entry):
        if bytes_ratio > 1.0:
            kernel = _unpacking(kernel, lender, borrower, entry)
        return _tiled(kernel, slowdown, bytes_ratio=1.0)
    if isinstance(kernel, GemmKernel | ExpertKernel):
        return _tiled(kernel, slowdown, bytes_ratio)
    return kernel if slowdown == 1.0 else _computing(kernel, slowdown)


def _fraction(fraction: float, slowdown: float) -> float:
    """(I2); a fraction beyond 1 counts padded rows and says nothing of clocks."""
    return 1.0 / (1.0 + (1.0 / fraction - 1.0) / slowdown) if fraction < 1.0 else fraction


def _unpacks_four_bits(entry: str) -> bool:
    """Whether a kernel of that name unpacks weights of 4 bits or fewer to 16."""
    form = FORMATS.get(entry.partition("@")[0])
    return form is not None and form.dtype in HALVES and BYTES_PER_ELEMENT[form.weight_dtype] < 1.0


def _tiled(
    kernel: GemmKernel | ExpertKernel, slowdown: float, bytes_ratio: float
) -> GemmKernel | ExpertKernel:
    """Products in tiles. slowdown: F_l / F of (I2), 1 or more; bytes_ratio: B / B_l of (I3), or 1."""
    if isinstance(kernel, ExpertKernel) and slowdown > 1.0:
        kernel = _by_time(kernel)
    share = _fraction(kernel.peak_fraction, slowdown)
    if isinstance(kernel, GemmKernel) and slowdown > 1.0:
        kernel = _paced(kernel, share, slowdown)
    return msgspec.structs.replace(kernel, peak_fraction=share, load_ratio=kernel.load_ratio / bytes_ratio)


def _unpacking(kernel: ExpertKernel, lender: Chip, borrower: Chip, entry: str) -> ExpertKernel:
    """(I4), on faster memory."""
    form = FORMATS[entry.partition("@")[0]]
    widest = max(kernel.tiles, key=lambda tile: tile.rows)
    weight_bytes = BYTES_PER_ELEMENT[form.weight_dtype]
    moved = widest.rows * BYTES_PER_ELEMENT[form.dtype] + widest.columns * weight_bytes
    clocks = moved / (kernel.load_ratio * lender.bytes_per_clock)
    share = 2.0 * widest.rows * widest.columns / (clocks * borrower.flops_per_clock)
    return msgspec.structs.replace(kernel, peak_fraction=min(kernel.peak_fraction, share))


def _paced(kernel: GemmKernel, share: float, slowdown: float) -> GemmKernel:
    """The pace of each tile on slower Tensor Cores: its own share of the peak follows (I2) as well.

    share: of the peak, that the kernel's fraction becomes.
    """

    def pace(of_tile: float) -> float:
        own = kernel.peak_fraction / of_tile
        return share / _fraction(own, slowdown) if own < 1.0 else of_tile

    names = ("pace", "pace_alone", "pace_half")
    tiles = tuple(
        msgspec.structs.replace(tile, **{name: pace(getattr(tile, name)) for name in names})
        for tile in kernel.tiles
    )
    return msgspec.structs.replace(kernel, tiles=tiles)


def _computing(kernel: Kernel, slowdown: float) -> Kernel:
    """Kernels other than products in tiles: their shares of the peak by (I2)."""
    if isinstance(kernel, StreamKernel):  # its coefficients are one over a fraction
        work = {
            each: 1.0 / _fraction(1.0 / ratio, slowdown) if ratio else 0.0
            for each, ratio in kernel.work.items()
        }
        return msgspec.structs.replace(kernel, work=work)
    if not isinstance(kernel, AttentionKernel | LatentKernel):
        return kernel
    narrow = None if kernel.narrow is None else _path(kernel.narrow, slowdown)
    changed = msgspec.structs.replace(kernel, wide=_path(kernel.wide, slowdown), narrow=narrow)
    if isinstance(changed, LatentKernel) and changed.projections is not None:
        share = _fraction(changed.projections.peak_fraction, slowdown)
        projections = msgspec.structs.replace(changed.projections, peak_fraction=share)
        return msgspec.structs.replace(changed, projections=projections)
    return changed


def _by_time(kernel: ExpertKernel) -> ExpertKernel:
    """Tiles chosen by time: the lender's rule suits its own arithmetic, and libraries tune one for each GPU.

    vLLM and SGLang ship configurations for an H20; by an H100's rule 70 requests took twice as long as 64.
    """
    limits = ("tokens_max", "tokens_per_expert_max", "rows_per_expert_max")
    free = [msgspec.structs.replace(tile, **dict.fromkeys(limits, 0)) for tile in kernel.default_tiles]
    return msgspec.structs.replace(kernel, tiles=(*kernel.tiles, *free), default_tiles=())


def _path(path: AttentionPath, slowdown: float) -> AttentionPath:
    names = ("whole_fraction", "split_fraction")
    return msgspec.structs.replace(path, **{name: _fraction(getattr(path, name), slowdown) for name in names})


def _streamed(kernel: StreamKernel, lender: Chip, borrower: Chip) -> StreamKernel:
    """Where memory is faster for each multiprocessor, what multiprocessors bounded keeps its time."""
    speedup = borrower.bytes_per_s / lender.bytes_per_s
    if speedup <= 1.0 or lender.bytes_per_s <= _FAST_BYTES_PER_S:
        return kernel
    loads = {
        each: ratio + max(ratio - _STREAM_RATIO, 0.0) * (speedup - 1.0)
        for each, ratio in kernel.loads.items()
    }
    return msgspec.structs.replace(kernel, loads=loads)
