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

from medusa_sim.gpus.fitted import Count, Fit, Norm, Rate, Ratio, Share, Size
from medusa_sim.gpus.fitted_attention import AttentionKernel, LatentKernel
from medusa_sim.gpus.fitted_experts import ExpertKernel
from medusa_sim.gpus.fitted_links import CollectiveKernel, DispatchKernel
from medusa_sim.reading.strict import Us

_OF_PRODUCTS = (
    "peak_fraction", "load_ratio", "tile_k", "step_norm", "activation_ratio", "wave_rounding", "contention",
)  # fmt: skip
SERIAL = "serial_"
"""Sections of devices that overlap nothing begin so; nobody borrows them."""
TRANSFER_ERROR_STREAMED = {
    "recurrent": (0.06, 0.23),
    "window": (0.05, 0.27),
    "sparse": (0.02, 0.31),
    "hyper": (0.05, 0.21),
}
"""Added width of a borrowed StreamKernel's band (as `inheritance.TRANSFER_ERROR`): from a GPU of the same
architecture, and from another; `widen` of a file does not apply.
Source: `python benchmarks/kernels.py transfer mixers`, for 80 % of the rows of B200 and GB200 with each
other's kernels, and of B200 and RTX PRO 6000 with an H100's and an L40S's, on average over operators and
pairs: 77 to 90 % of an operator inside (KDA 64 %), and 50 to 100 %. Sparse modules on the same chip need
nothing more; what is borrowed is never surer than its lender.
"""


class GemmTile(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """An output tile that the library can choose: m rows (tokens) by n columns (output features)."""

    m: Size
    n: Size
    selection_penalty: Rate = 1.0
    """Scales the tile's time when the library chooses, not the time itself: above 1 where it takes the tile
    less often than its time deserves."""
    cluster: Size = 1
    """Thread blocks along m that are launched together, so that m is padded to tile times cluster."""
    loads_padding: bool = False
    """Whether rows beyond m are loaded too, at the kernel's `padding_ratio`."""
    pace: Rate = 1.0
    """Factor on the tile's time beyond what its sizes explain, where tiles take several waves."""
    pace_alone: Rate = 1.0
    """The same where all fit one wave and their last row is more than half full."""
    pace_half: Rate = 1.0
    """The same where it is not."""
    m_min: Size = 1
    """It is used from this m ..."""
    m_max: Count = 0
    """... to this m (0: any), and the same in n: for libraries that fix the tile by shape."""
    n_min: Size = 1
    n_max: Count = 0


class GemmKernel(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Linear layers (`medusa_sim.latency.gemm`, whose equations use these names).

    A fraction is a share of the datasheet's bandwidth or peak, a ratio a rate in units of its bandwidth.
    """

    ramp_us: Us
    """Start and drain of a kernel."""
    bandwidth_fraction: Share
    """Bandwidth that a kernel sustains."""
    peak_fraction: Share
    """Peak that a kernel sustains."""
    load_ratio: Rate
    """Rate at which all SMs together load tiles, through L2."""
    tile_k: Ratio
    """k elements that filling and draining one tile's pipeline costs."""
    memory_norm: Norm
    """Exponent of the smooth maximum of memory and tiles (1 adds, infinity overlaps perfectly)."""
    step_norm: Norm
    """Exponent of the smooth maximum of arithmetic and loads in a tile."""
    split_us: Us
    """The second kernel of a split k loop."""
    splits: Annotated[tuple[Size, ...], Meta(min_length=1)]
    """Splits of k that the library can choose."""
    tiles: Annotated[tuple[GemmTile, ...], Meta(min_length=1)]
    fit: Fit
    split_penalty: Rate = 1.0
    """Like a tile's `selection_penalty`, for every split above 1."""
    l2_ratio: Ratio = 0.0
    """Rate at which L2 serves the tile loads of the whole chip; 0: never what bounds."""
    drain_k: Ratio = 0.0
    """k elements that filling and draining takes where nothing hides it."""
    wave_rounding: Ratio = 1.0
    """1: thread blocks run in whole waves; 0: the last wave is shared out perfectly (persistent blocks,
    stream-k)."""
    contention: Ratio = 0.0
    """Share of a tile's time that it owes to the other SMs, so that it is shorter on an empty chip."""
    throttle: Ratio = 0.0
    """By how much lower clocks under sustained load lengthen a tile."""
    throttle_us: Us = 1000.0
    """Arithmetic at the peak, us, at which half of that is reached."""
    quantise_ratio: Ratio = 0.0
    """Rate of a pass before the product that brings 16-bit activations to the operand dtype; 0: there is
    none."""
    padding_ratio: Ratio = 0.0
    """Rate at which rows beyond m are loaded; 0: they are not."""
    resident_share: Ratio = 0.0
    """Share of L2 in which activations must fit, or they are read again for every column of tiles; 0: the
    order of tiles avoids it."""
    hot_share: Ratio = 0.0
    """Rows whose weights are smaller than this share of L2 were measured with weights in L2; only predictions
    of such rows (`cold=False`) use it."""
    hot_ratio: Ratio = 0.0
    """Rate at which these were read."""
    hot_copies: Count = 0
    """Copies of the weights that the benchmark took turns with, at most as many as fill L2; 0: it repeated
    one."""
    vector_rows: Count = 0
    """Rows of activations up to which a kernel of vector products serves."""
    unpack_rows: Ratio = 0.0
    """Rows of a tile whose arithmetic takes as long as unpacking its weights to 16 bits; 0: they are not
    unpacked."""
    vector_ramp_us: Us = 0.0
    """Start and drain of the kernel of vector products."""
    fewest_waves: bool = False
    """Whether the library takes the tile that needs the fewest waves instead of the fastest."""


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


@lru_cache(maxsize=64)
def tiled_by(kernel: GemmKernel, tiles: tuple[GemmTile, ...]) -> GemmKernel:
    """The kernel with another library's tiles."""
    return msgspec.structs.replace(kernel, tiles=tiles)


@lru_cache(maxsize=16)
def multiplying_as(kernel: ExpertKernel, other: ExpertKernel) -> ExpertKernel:
    """Experts with the products of another kernel: their rates, tiles' costs and what lies between them.

    Launches, and how weights that few tokens wake are read, stay.
    """
    rates = {name: getattr(other, name) for name in _OF_PRODUCTS}
    return msgspec.structs.replace(kernel, **rates)


def _with_tiles(kernel: GemmKernel, **changed: int) -> GemmKernel:
    tiles = tuple(msgspec.structs.replace(tile, **changed) for tile in kernel.tiles)
    return msgspec.structs.replace(kernel, tiles=tiles)


class SerialLine(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Rates of one of a CPU library's kernels.

    Fractions of the device's bandwidth and peak may exceed 1: a kernel that packs weights reads them from a
    cache as well.
    """

    bandwidth_fraction: Share
    peak_fraction: Share
    m_max: Count = 0
    """The largest m that it serves; 0: any. Attention takes the faster of its two instead."""


class SerialGemm(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Linear layers on a device that overlaps nothing (S1, `medusa_sim.latency.serial`)."""

    ramp_us: Us
    activation_ratio: Rate
    """Rate of reading activations and writing results, in units of the device's bandwidth."""
    ranges: Annotated[tuple[SerialLine, ...], Meta(min_length=1)]
    """By ascending m_max, the last open."""
    fit: Fit


class SerialAttention(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Fused attention on a device that overlaps nothing (S2, `medusa_sim.latency.serial`)."""

    ramp_us: Us
    head_us: Us
    """Fixed time of each head of each sequence."""
    query_us: Us
    """The same of each of its queries."""
    few: SerialLine
    """The library's kernel for few queries."""
    many: SerialLine
    """Its kernel for many."""
    cached_bytes: Annotated[float, Meta(ge=0.0, le=1e15)] = 0.0
    """K and V of at most so many bytes are read from a cache ..."""
    cached_ratio: Rate = 1.0
    """... so many times as fast."""
    fit: Fit


class UnfusedKernel(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """QK^T or PV as a batch of small GEMMs (P2 to P5, `medusa_sim.latency.unfused`)."""

    ramp_us: Us
    """Time of launching a tiled product; rows timed one by one from the host hold launch and
    synchronisation too."""
    vector_ramp_us: Us
    """The same of the vector product of one query row."""
    bandwidth_fraction: Share
    """Share of the datasheet's bandwidth that is sustained."""
    peak_fraction: Share
    """Share of its peak."""
    l2_ratio: Ratio
    """Rate of reading operands that are still in L2, in units of the datasheet's bandwidth."""
    norm: Norm
    """Exponent of the smooth maximum of memory and arithmetic."""
    row_tiles: Annotated[tuple[Size, ...], Meta(min_length=1)]
    """Query rows that a tile can hold."""
    repeated: bool
    """Whether the fitted rows repeat one operator, so that operands stay in L2 between repetitions."""
    fit: Fit


class ElementwiseKernel(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Norms, rope, activation, residual, embedding (E1 to E4, `medusa_sim.latency.elementwise`)."""

    ramp_us: Us
    """Start and drain of the launch; of all launches, where the library takes several."""
    row_ratio: Rate
    """Rate at which one block streams its row, as a multiple of an SM's fair share of the datasheet's
    bandwidth."""
    rows_per_sm: Size
    """Rows in work on an SM at once."""
    sharing: Ratio
    """How much slower each is for every further one."""
    bandwidth_fraction: Share
    """Share of the datasheet's bandwidth."""
    l2_ratio: Ratio
    """Rate of reading from L2, in units of that."""
    l2_fill: Rate
    """Footprint over L2 size at which half is still in L2."""
    l2_sharpness: Rate
    """How suddenly that falls."""
    serial_rows: Count = 0
    """Rows up to which they are gathered one after another (embedding look-up)."""
    serial_row_us: Us = 0.0
    """Time of each of these."""
    fit: Fit


class StreamKernel(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A kernel or module by its classes of bytes, FLOPs and steps (see `medusa_sim.latency.stream`)."""

    ramp_us: Us
    """Start and drain of all its launches."""
    host_us: Us = 0.0
    """Time of the host to launch them one by one, parallel to the device; 0 of rows that replay a graph."""
    host_share: Ratio = 0.0
    """Share of the device's time that the host waits for before it launches the rest."""
    graph_tokens: int = 0
    """New tokens up to which rows replay a graph, if larger ones do not: `host_us` is of those alone."""
    loads: dict[str, Ratio]
    """Microseconds of each class of bytes, in units of what they take at the datasheet's bandwidth."""
    work: dict[str, Ratio]
    """Microseconds of each class of FLOPs, in units of what they take at the datasheet's peak."""
    steps: dict[str, Us]
    """Microseconds of each class of steps that run one after another."""
    norm: Norm
    """Exponent of the smooth maximum of the three (1 adds)."""
    l2_ratio: Rate = 1.0
    """Rate of what rows measured alone found in L2, in units of that from memory."""
    l2_fill: Rate = 1.0
    """Footprint over L2 at which half is still found there."""
    l2_sharpness: Rate = 6.0
    """How suddenly."""
    name: str = ""
    """Name of the kernel in its library, as rows give it; empty: any."""
    fallback: bool = False
    """Whether rows are of what the library does for lack of a kernel on this GPU, tens of times slower: only
    rows that name it are priced with it, never a step."""
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

    Kernels are keyed by numeric format (`units`) or by the operator's own `form`. Where a library has several
    for one, `<format>` is the one that it takes by itself and `<format>@<name>` another
    (`latency.choice.choose`).
    """

    gemm: dict[str, GemmKernel] = {}
    """Linear layers by format."""
    attention: dict[str, AttentionKernel] = {}
    """Fused attention by operator kind (`decode_attention`, ...)."""
    elementwise: dict[str, ElementwiseKernel] = {}
    """Row passes by operator kind (`rms_norm`, `rope`, ...)."""
    unfused: UnfusedKernel | None = None
    """Both products, QK^T and PV."""
    serial_gemm: dict[str, SerialGemm] = {}
    """Linear layers of a device that overlaps nothing, preferred where a set has both."""
    serial_attention: dict[str, SerialAttention] = {}
    """Attention of such a device, preferred too."""
    moe: dict[str, ExpertKernel] = {}
    """Fused layers of experts by format."""
    mla: dict[str, LatentKernel] = {}
    """Latent attention by phase and dtypes (`LatentAttention.form`)."""
    collective: dict[str, CollectiveKernel] = {}
    """Collectives (`Collective.form`), with `-<version>` where a release has another algorithm."""
    dispatch: dict[str, DispatchKernel] = {}
    """Dispatch and combination of tokens (`Dispatch.form`)."""
    recurrent: dict[str, StreamKernel] = {}
    """States and convolutions (`Recurrent.form`)."""
    window: dict[str, StreamKernel] = {}
    """Attention in a window (`WindowAttention.form`)."""
    sparse: dict[str, StreamKernel] = {}
    """Modules of sparse attention (`Sparse.form`)."""
    hyper: dict[str, StreamKernel] = {}
    """Hyper-connections by part (`HyperConnection.form`)."""

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
