"""Fitted kernel parameters of one GPU and one kernel library, as stored in `hardware/<gpu>.toml`.

Efficiencies are dimensionless fractions of the datasheet's bandwidth and peak, so that a GPU that
was never measured can borrow those of a relative. `medusa_sim.latency` turns them into times,
`medusa_sim.lab.calibrate` fits them.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Annotated, TypeAlias

import msgspec
from msgspec import Meta

from medusa_sim.specs.fitted import (
    AttentionKernel,
    CollectiveKernel,
    Count,
    DispatchKernel,
    ExpertKernel,
    Fit,
    LatentKernel,
    Norm,
    Rate,
    Ratio,
    Share,
    Size,
)
from medusa_sim.specs.strict import Us


class GemmTile(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """An output tile that the library can choose: m rows (tokens) by n columns (output features).

    `selection_penalty` scales the tile's time when the library chooses, not the time itself: above 1 where
    the library takes the tile less often than its time deserves. The tile is used for m_min <= m <= m_max
    and n_min <= n <= n_max only (a maximum of 0 is open): libraries that fix the tile by shape.
    cluster: thread blocks along m that are launched together, so that m is padded to tile times cluster.
    loads_padding: whether rows beyond m are loaded too, at the kernel's `padding_ratio`. pace, pace_alone,
    pace_half: factors on the tile's time beyond what its sizes explain: where tiles take several waves; where
    all fit one and their last row is more than half full; where all fit one and it is not.
    """

    m: Size
    n: Size
    selection_penalty: Rate = 1.0
    cluster: Size = 1
    loads_padding: bool = False
    pace: Rate = 1.0
    pace_alone: Rate = 1.0
    pace_half: Rate = 1.0
    m_min: Size = 1
    m_max: Count = 0
    n_min: Size = 1
    n_max: Count = 0


class GemmKernel(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Linear layers (see `medusa_sim.latency.gemm`, whose equations use these names).

    ramp_us: start and drain of a kernel. bandwidth_fraction, peak_fraction: share of the datasheet's
    bandwidth and peak that a kernel sustains. load_ratio: rate at which all SMs together load tiles
    (through L2), in units of the datasheet's bandwidth. tile_k: k elements that filling and draining
    one tile's pipeline costs. memory_norm, step_norm: exponents of the smooth maximum of memory and
    tile time, and of arithmetic and loads within a tile (1 adds, infinity overlaps perfectly).
    split_us: the second kernel of a split k loop; splits: the splits of k that the library can choose;
    split_penalty: as a tile's, for every split above 1.
    l2_ratio: rate at which L2 serves the tile loads of the whole chip, in units of the datasheet's bandwidth
    (0: never what bounds).

    wave_rounding: 1 where thread blocks run in whole waves, 0 where the last wave is shared out perfectly
    (persistent blocks, stream-k). throttle, throttle_us: by how much lower clocks under sustained load
    lengthen a tile, and the work (us of arithmetic at the peak) at which half of that is reached.
    contention: share of a tile's time that it owes to the other SMs, so that it is shorter on an empty chip.
    quantise_ratio: rate at which 16-bit activations are brought to the operand dtype in a pass before the
    product; padding_ratio: rate at which rows beyond m are loaded; both in units of the datasheet's
    bandwidth, 0 where that does not happen. resident_share: share of L2 in which activations must fit, or
    they are read again for every column of tiles (0: the library's order of tiles avoids it).
    vector_rows, vector_ramp_us: up to so many rows go through a kernel of vector products with this ramp.
    unpack_rows: rows of a tile whose arithmetic takes as long as unpacking its weights to 16 bits (0: they
    are not unpacked).
    fewest_waves: whether the library takes the tile that needs the fewest waves instead of the fastest.
    hot_share, hot_ratio: rows whose weights are smaller than this share of L2 were measured with weights in
    L2, read at this rate; only predictions of such rows (`cold=False`) use it. hot_copies: copies of the
    weights that the benchmark took turns with, at most as many as fill L2 (0: it repeated one).
    """

    ramp_us: Us
    bandwidth_fraction: Share
    peak_fraction: Share
    load_ratio: Rate
    tile_k: Ratio
    memory_norm: Norm
    step_norm: Norm
    split_us: Us
    splits: Annotated[tuple[Size, ...], Meta(min_length=1)]
    tiles: Annotated[tuple[GemmTile, ...], Meta(min_length=1)]
    fit: Fit
    split_penalty: Rate = 1.0
    l2_ratio: Ratio = 0.0
    drain_k: Ratio = 0.0
    wave_rounding: Ratio = 1.0
    contention: Ratio = 0.0
    throttle: Ratio = 0.0
    throttle_us: Us = 1000.0
    quantise_ratio: Ratio = 0.0
    padding_ratio: Ratio = 0.0
    resident_share: Ratio = 0.0
    hot_share: Ratio = 0.0
    hot_ratio: Ratio = 0.0
    hot_copies: Count = 0
    vector_rows: Count = 0
    unpack_rows: Ratio = 0.0
    vector_ramp_us: Us = 0.0
    fewest_waves: bool = False


@lru_cache(maxsize=64)
def without_clusters(kernel: GemmKernel) -> GemmKernel:
    """The kernel with each thread block launched alone; itself where all are."""
    if all(tile.cluster == 1 for tile in kernel.tiles):
        return kernel
    return _with_tiles(kernel, cluster=1)


def chosen_by_time(kernel: GemmKernel) -> GemmKernel:
    """The kernel as of a library without clusters or rules for tiles: each alone, the fastest taken."""
    free = _with_tiles(kernel, cluster=1, m_min=1, m_max=0, n_min=1, n_max=0)
    return msgspec.structs.replace(free, fewest_waves=False)


@lru_cache(maxsize=64)
def computing_as(kernel: GemmKernel, other: GemmKernel) -> GemmKernel:
    """The kernel with the arithmetic of another one: its peak, and its clocks under load."""
    rates = {name: getattr(other, name) for name in ("peak_fraction", "throttle", "throttle_us")}
    return msgspec.structs.replace(kernel, **rates)


def _with_tiles(kernel: GemmKernel, **changed: int) -> GemmKernel:
    tiles = tuple(msgspec.structs.replace(tile, **changed) for tile in kernel.tiles)
    return msgspec.structs.replace(kernel, tiles=tiles)


class SerialLine(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Rates of one of a CPU library's kernels, as fractions of the device's bandwidth and peak.

    m_max: the largest m that it serves (0: any); attention takes the faster of its two instead. Fractions
    may exceed 1: a kernel that packs weights reads them from a cache as well.
    """

    bandwidth_fraction: Share
    peak_fraction: Share
    m_max: Count = 0


class SerialGemm(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Linear layers on a device that overlaps nothing (see `medusa_sim.latency.serial`, equation S1).

    ranges: by ascending m_max, the last open. activation_ratio: rate of reading activations and writing
    results, in units of the device's bandwidth.
    """

    ramp_us: Us
    activation_ratio: Rate
    ranges: Annotated[tuple[SerialLine, ...], Meta(min_length=1)]
    fit: Fit


class SerialAttention(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Fused attention on a device that overlaps nothing (see `medusa_sim.latency.serial`, equation S2).

    few, many: the library's kernels for few and for many queries. head_us, query_us: fixed time of each
    head of each sequence, and of each of its queries. cached_bytes, cached_ratio: K and V of at most so many
    bytes are read so many times as fast.
    """

    ramp_us: Us
    head_us: Us
    query_us: Us
    few: SerialLine
    many: SerialLine
    cached_bytes: Annotated[float, Meta(ge=0.0, le=1e15)] = 0.0
    cached_ratio: Rate = 1.0
    fit: Fit


class UnfusedKernel(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """QK^T or PV as a batch of small GEMMs (see `medusa_sim.latency.gemm`; its equations use these names).

    ramp_us, vector_ramp_us: what every launch costs, for a tiled product and for the vector product of
    one query row; rows timed one by one from the host hold the launch and the synchronisation too.
    bandwidth_fraction, peak_fraction: share of the datasheet's bandwidth and peak that is sustained.
    l2_ratio: rate of reading operands that are still in L2, in units of the datasheet's bandwidth.
    norm: exponent of the smooth maximum of memory and arithmetic. row_tiles: query rows that a tile
    can hold. repeated: the fitted rows repeat one operator, so operands stay in L2 between repetitions.
    """

    ramp_us: Us
    vector_ramp_us: Us
    bandwidth_fraction: Share
    peak_fraction: Share
    l2_ratio: Ratio
    norm: Norm
    row_tiles: Annotated[tuple[Size, ...], Meta(min_length=1)]
    repeated: bool
    fit: Fit


class ElementwiseKernel(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Norms, rope, activation, residual, embedding (see `medusa_sim.latency.stream` for the equations).

    ramp_us: start and drain of the launch (of all launches, where the library takes several).
    row_ratio: rate at which one block streams its row, as a multiple of an SM's fair share of the
    datasheet's bandwidth. rows_per_sm: rows in work on an SM at once; sharing: how much slower each is
    for every further one. bandwidth_fraction: share of the datasheet's bandwidth. l2_ratio: rate of
    reading from L2, in units of that; l2_fill, l2_sharpness: footprint / L2 size at which half is still
    in L2, and how suddenly. serial_rows, serial_row_us: up to so many rows are gathered one after
    another (embedding look-up), each in this time.
    """

    ramp_us: Us
    row_ratio: Rate
    rows_per_sm: Size
    sharing: Ratio
    bandwidth_fraction: Share
    l2_ratio: Ratio
    l2_fill: Rate
    l2_sharpness: Rate
    serial_rows: Count = 0
    serial_row_us: Us = 0.0
    fit: Fit


class StreamKernel(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A kernel or module by what it moves, computes and waits for (see `medusa_sim.latency.stream`)."""

    ramp_us: Us
    """Start and drain of all its launches."""
    host_us: Us = 0.0
    """What the host takes to launch them one by one, beside the device; 0 of rows that replay a graph."""
    host_share: Ratio = 0.0
    """Share of the device's time that the host waits for before it launches the rest."""
    graph_tokens: int = 0
    """New tokens up to which rows replay a graph, if larger ones do not: `host_us` is of those alone."""
    loads: dict[str, Ratio]
    """Microseconds of each class of bytes, in units of what they take at the datasheet's bandwidth."""
    work: dict[str, Ratio]
    """Microseconds of each class of FLOPs, in units of what they take at the datasheet's peak."""
    steps: dict[str, Us]
    """Microseconds of each of what takes its time one after another."""
    norm: Norm
    """Exponent of the smooth maximum of the three (1 adds)."""
    l2_ratio: Rate = 1.0
    """Rate of what rows measured alone found in L2, in units of that from memory."""
    l2_fill: Rate = 1.0
    """Footprint over L2 at which half is still found there."""
    l2_sharpness: Rate = 6.0
    """How suddenly."""
    name: str = ""
    """Of the kernel in its library, by which rows ask for it; empty: any."""
    fallback: bool = False
    """Whether the library has no kernel on the card and its rows are of what it does instead, tens of times
    as long as a kernel and more: rows that name it take it, and no step does."""
    fit: Fit


Kernel: TypeAlias = (
    GemmKernel
    | AttentionKernel
    | ElementwiseKernel
    | UnfusedKernel
    | SerialGemm
    | SerialAttention
    | ExpertKernel
    | LatentKernel
    | CollectiveKernel
    | DispatchKernel
    | StreamKernel
)


class KernelSet(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """All kernels of one library on one GPU: TOML `[kernels.<set>.gemm.<dtype>]` and so on.

    gemm by dtype; attention by fused operator kind (`decode_attention`, ...); unfused: both products, QK^T
    and PV; elementwise by operator kind (`rms_norm`, `rope`, ...). serial_gemm, serial_attention: the same
    for a device that overlaps nothing, and first where both are there. moe: fused layers of experts.
    mla: latent attention by phase and dtypes (`LatentAttention.form`); collective, dispatch: by what is
    done and dtype (`Collective.form`), with `-<version>` where a release of the library has another
    algorithm.

    gemm and moe are keyed by numeric format (`units`); where a library has several kernels for one,
    `<format>` is the one that it takes by itself and `<format>@<name>` another (`latency.choice.choose`).
    """

    gemm: dict[str, GemmKernel] = {}
    attention: dict[str, AttentionKernel] = {}
    elementwise: dict[str, ElementwiseKernel] = {}
    unfused: UnfusedKernel | None = None
    serial_gemm: dict[str, SerialGemm] = {}
    serial_attention: dict[str, SerialAttention] = {}
    moe: dict[str, ExpertKernel] = {}
    mla: dict[str, LatentKernel] = {}
    collective: dict[str, CollectiveKernel] = {}
    dispatch: dict[str, DispatchKernel] = {}
    recurrent: dict[str, StreamKernel] = {}
    window: dict[str, StreamKernel] = {}
    sparse: dict[str, StreamKernel] = {}
    hyper: dict[str, StreamKernel] = {}

    def table(self, section: str) -> dict[str, Kernel]:
        """Kernels of a section by key; `unfused` is one kernel, under its own name."""
        held: dict[str, Kernel] | Kernel | None = getattr(self, section)
        if isinstance(held, dict):
            return held
        return {} if held is None else {section: held}

    @property
    def linear(self) -> dict[str, GemmKernel | SerialGemm]:
        """Linear layers by dtype, of either form."""
        return {**self.gemm, **self.serial_gemm}


SECTIONS: tuple[str, ...] = KernelSet.__struct_fields__
"""Sections of a kernel set; `operators.kinds` says which kinds of operators they serve."""
SERIAL = "serial_"
"""Sections of devices that overlap nothing begin so; nobody borrows them."""
TRANSFER_ERROR_STREAMED = {
    "recurrent": (0.06, 0.23),
    "window": (0.05, 0.27),
    "sparse": (0.02, 0.31),
    "hyper": (0.05, 0.21),
}
"""What a kernel of another GPU adds to its own band (as `inheritance.TRANSFER_ERROR`), of what is told by
what it streams: of the same architecture and of another; no file stretches them further.
Source: `python benchmarks/kernels.py transfer mixers`, for 80 % of the rows of B200 and GB200 with each
other's kernels, and of B200 and RTX PRO 6000 with an H100's and an L40S's, in the mean over operators and
pairs: 77 to 90 % of an operator inside (KDA 64 %), and 50 to 100 %. Sparse modules on the same chip need
nothing more; what is borrowed is never surer than its lender.
"""
