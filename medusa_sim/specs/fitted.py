"""Fitted parameters of attention, layers of experts and communication, as stored in `hardware/<gpu>.toml`.

Beside them what every table of fitted parameters shares: ranges of its numbers, its fit and its bands. Rates
of communication are shares of the datasheet's link (`link_bandwidth_bytes_per_s`) or of a streaming
multiprocessor's even share of it. The modules of `medusa_sim.latency` have the equations.
"""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta

from medusa_sim.specs.strict import Error, Text, Us
from medusa_sim.units import SCALED

Share = Annotated[float, Meta(gt=0.0, le=1e3, description="(a share of the datasheet's rate)")]
Ratio = Annotated[float, Meta(ge=0.0, le=1e6)]
Rate = Annotated[float, Meta(gt=0.0, le=1e6)]
Count = Annotated[int, Meta(ge=0, le=1_000_000_000)]
Size = Annotated[int, Meta(ge=1, le=1_000_000)]
Norm = Annotated[float, Meta(gt=0.0, le=1e3, description="(the exponent of a norm)")]


class Residual(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """80 % band of measured / predicted on held-out shapes, for sizes up to `size_max`.

    The size is m for a GEMM, q_len x batch for attention, m for elementwise kernels.
    """

    size_max: Annotated[float, Meta(ge=0.0)]
    low: Annotated[float, Meta(gt=0.0, le=1e6)]
    high: Annotated[float, Meta(gt=0.0, le=1e6)]

    def __post_init__(self) -> None:
        """Refuse a band that encloses nothing. Raises ValueError."""
        if self.low > self.high:
            raise ValueError(f"low {self.low:g} is above high {self.high:g}; calibrate again")


class Fit(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Where a table of kernel parameters comes from and how well it does.

    `fit_error` and `heldout_error` are mean absolute percentage errors of time as fractions: on the
    rows of the fit, and with whole held-out shapes. `inherited_from` names the GPU whose
    efficiencies were borrowed, and is empty where the GPU itself was measured; `slower`: how many times
    as long a borrowed kernel takes here as those efficiencies say.
    """

    source: Text
    rows: Size
    fit_error: Error
    heldout_error: Error
    residuals: tuple[Residual, ...]
    inherited_from: str = ""
    slower: Rate = 1.0

    @property
    def lender(self) -> str:
        """Name of the GPU of `inherited_from`; empty where nothing was borrowed."""
        return self.inherited_from.partition(":")[0]

    def is_borrowed(self, gpu: str) -> bool:
        """Whether it stands in for a kernel that nobody measured on this GPU.

        Of another GPU; or of this one's other library, for a format that libraries compute each in its way.
        """
        return self.lender not in ("", gpu) or self.inherited_from.rpartition(":")[2] in SCALED


class AttentionPath(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """One code path of a fused attention kernel (see `medusa_sim.latency.attention` for the equations).

    ramp_us: start and drain of the launch. tile_rows, tile_keys: query rows and keys of one tile.
    packs_gqa: several query rows of all heads that share a K/V head fill one tile together (one query
    row per sequence always does). ctas_per_sm: blocks resident on an SM; sharing: how much slower each
    runs for every further one (0 not at all, 1 they take turns).
    cta_us, row_us: fixed time of a block, and of each query row it loads and stores.
    whole_fraction, split_fraction: share of an SM's peak at which a block works through its keys, padded
    rows included, when it has all keys or a split of them. split_above: kv_len above which keys may be
    split; split_us, split_step_us: cost of combining splits, and for every doubling of their number.
    bandwidth_fraction: share of the datasheet's bandwidth. l2_ratio: rate of reading from L2, in units of
    that; l2_fill, l2_sharpness: footprint / L2 size at which half is still read from L2, and how suddenly.
    store_passes: passes over the new K and V (writing them to the cache) that the rows include.
    append_ratio: extra walk for every new key where each block appends K and V itself, as FlashAttention-2
    does with a cache.
    """

    ramp_us: Us
    tile_rows: Size
    tile_keys: Size
    packs_gqa: bool
    ctas_per_sm: Size
    sharing: Ratio
    cta_us: Us
    row_us: Us
    whole_fraction: Share
    split_fraction: Share
    split_above: Count
    split_us: Us
    split_step_us: Us
    bandwidth_fraction: Share
    l2_ratio: Ratio
    l2_fill: Rate
    l2_sharpness: Rate
    store_passes: Ratio
    append_ratio: Ratio


class AttentionKernel(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A fused attention kernel (see `medusa_sim.latency.attention`).

    wide: the tensor-core path. narrow: where the library has another path for up to `narrow_rows` query
    rows per K/V head.
    """

    wide: AttentionPath
    narrow: AttentionPath | None = None
    narrow_rows: Count = 0
    fit: Fit


class Projections(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The linear layers around latent attention (see `medusa_sim.latency.attention` for the equations).

    launch_us: all launches together. token_us, head_us: of what stands between, for every token and for every
    head of it. bandwidth_fraction, peak_fraction: share of the datasheet's bandwidth and peak.
    """

    launch_us: Us
    token_us: Ratio
    head_us: Ratio
    bandwidth_fraction: Share
    peak_fraction: Share


class LatentKernel(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A latent attention kernel or module (see `medusa_sim.latency.attention`).

    wide, narrow, narrow_rows: as of an `AttentionKernel`, of query rows that share the latent. projections:
    of a module. name: of the kernel in its library, by which rows ask for it; empty: any. fallback: as of a
    `StreamKernel`; SGLang's rows of an fp8 cache on Hopper convert all of it first.
    """

    wide: AttentionPath
    narrow: AttentionPath | None = None
    narrow_rows: Count = 0
    projections: Projections | None = None
    fit: Fit
    name: str = ""
    fallback: bool = False


class ExpertTile(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A tile of the grouped products: rows of one expert by output columns.

    selection_penalty: scales the tile's time when the library chooses, not the time itself, as of a
    `GemmTile`.
    slower: factor on the time of both products with this tile. tokens_max, tokens_per_expert_max,
    rows_per_expert_max: largest numbers that the tile is used for (0: any), counted where a library fixes the
    tile by them (`ExpertKernel.default_tiles`); rows are (token, expert) pairs.
    """

    rows: Size
    columns: Size
    selection_penalty: Rate = 1.0
    tokens_max: Count = 0
    tokens_per_expert_max: Ratio = 0.0
    rows_per_expert_max: Ratio = 0.0
    slower: Rate = 1.0


class TunedShape(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A layer whose tiles a library has tuned: experts on the GPU, and the width of one after sharding."""

    experts: Size
    inter: Size


class ExpertKernel(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A fused layer of experts (see `medusa_sim.latency.moe`, whose equations use these names).

    name: of the kernel in its library, by which rows ask for it; empty: any. ramp_us: start and drain of all
    its launches. expert_us, token_us, pair_us: sorting tokens by expert, for each expert of the layer, each
    token and each (token, expert) pair. bandwidth_fraction, peak_fraction: share of the datasheet's bandwidth
    at which weights are read, and of its peak. activation_ratio: rate of activations, of all passes over
    them, in units of the datasheet's bandwidth. load_ratio: rate at which all SMs together load tiles, in the
    same units. tile_k: k elements that filling and draining one tile's pipeline costs. memory_norm,
    step_norm: exponents of the smooth maximum of memory and tiles, and of arithmetic and loads in a tile.
    wave_rounding, contention, throttle, throttle_us: as of `GemmKernel`; l2_ratio, l2_fill, l2_sharpness: of
    weights that rows measured alone left in L2, as of `AttentionPath`.

    tiles: what the library chooses from by time. default_tiles: where it has a rule instead, in its order,
    the first that is allowed; `tuned` shapes choose from `tiles` all the same. unaligned_ratio: by how much
    the second product is slower where the width of an expert is no multiple of 16. gates_all: whether it
    computes a gate where an expert has none.
    """

    name: str = ""
    ramp_us: Us
    expert_us: Us
    token_us: Us
    pair_us: Us
    bandwidth_fraction: Share
    peak_fraction: Share
    activation_ratio: Rate
    load_ratio: Rate
    tile_k: Ratio
    memory_norm: Norm
    step_norm: Norm
    wave_rounding: Ratio
    contention: Ratio
    throttle: Ratio
    throttle_us: Us
    l2_ratio: Ratio = 1.0
    l2_fill: Rate = 1.0
    l2_sharpness: Rate = 6.0
    unaligned_ratio: Rate = 1.0
    gates_all: bool = False
    tiles: Annotated[tuple[ExpertTile, ...], Meta(min_length=1)]
    default_tiles: tuple[ExpertTile, ...] = ()
    tuned: tuple[TunedShape, ...] = ()
    fit: Fit


FEWEST_RANKS = 2.0
"""Ranks at which a regime's range and start are stated."""


class CollectiveRegime(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """One algorithm and protocol of a library, which serves a range of message sizes.

    bytes_max: the largest message that it serves at two ranks (0: any); it grows as (ranks / 2) ^ growth.
    start_us, rank_us: time of an empty message at two ranks, and for every further rank. copy_passes: how
    often the whole message passes at the link's datasheet bandwidth whatever the number of ranks;
    link_passes: how often what an algorithm must send does. one_shot: each rank sends its whole message to
    every other. in_switch: of ranks among which the switch adds up, what a byte costs beside a ring's (0: it
    does not).
    """

    start_us: Us
    rank_us: Us
    copy_passes: Ratio
    link_passes: Ratio
    bytes_max: Annotated[float, Meta(ge=0.0, le=1e15)] = 0.0
    growth: Annotated[float, Meta(ge=-8.0, le=8.0)] = 0.0
    one_shot: bool = False
    in_switch: Ratio = 0.0


class CollectiveKernel(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """One collective of a library: its regimes by ascending message, the last open.

    name: of the kernel in its library, by which rows ask for it; empty: any. ranks_of: `gpu:set:entry` of the
    kernel that it grows with ranks as, where its own rows are of two alone.
    """

    regimes: Annotated[tuple[CollectiveRegime, ...], Meta(min_length=1)]
    fit: Fit
    name: str = ""
    ranks_of: str = ""

    @property
    def knows_ranks(self) -> bool:
        """Whether it was measured at more than one number of ranks."""
        return any(regime.rank_us or regime.growth for regime in self.regimes)


class DispatchKernel(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Dispatch or combination of tokens under expert parallelism.

    start_us, width_us, spread_us, rank_us: time without tokens, for every 1,024 values of a token's width,
    for every copy of it, and for every doubling of the ranks beyond two. fill_us, fill_tokens: what is added,
    for every 1,024 values, until tokens fill the pipeline, and how many fill half of it. token_us, own_us,
    copy_us: time of one multiprocessor for a token, for every 1,024 values of it, and for every 1,024 values
    of each copy that travels. link_fraction: share of the link's bandwidth. norm: exponent of the smooth
    maximum of both. per_expert: a copy for each expert instead of each rank. far_us, far_fraction,
    far_growth: start for every doubling of the nodes, link of copies between two nodes, and the exponent by
    which these grow with more; 0 where no rows tell. name: of the library's backend; empty: any.
    """

    start_us: Us
    width_us: Us
    spread_us: Us
    rank_us: Us
    fill_us: Us
    fill_tokens: Rate
    token_us: Us
    own_us: Us
    copy_us: Us
    link_fraction: Rate
    norm: Norm
    per_expert: bool
    fit: Fit
    far_us: Us = 0.0
    far_fraction: Ratio = 0.0
    far_growth: Ratio = 0.0
    name: str = ""
