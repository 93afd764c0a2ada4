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
Part = Annotated[float, Meta(ge=0.0, le=1.0)]
UNSEEN_TOGETHER = 0.5
"""`Fit.together` of what stands in on the same GPU: no whole step tells it (chosen)."""
Count = Annotated[int, Meta(ge=0, le=1_000_000_000)]
Size = Annotated[int, Meta(ge=1, le=1_000_000)]
Norm = Annotated[float, Meta(gt=0.0, le=1e3, description="(the exponent of a norm)")]


class Residual(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """80 % band of measured / predicted on held-out shapes, over a range of sizes."""

    size_max: Annotated[float, Meta(ge=0.0)]
    """Largest `Operator.size` that it is for, such as the m of a GEMM or the q_len x batch of attention."""
    low: Annotated[float, Meta(gt=0.0, le=1e6)]
    """Lower end, a factor on the predicted time."""
    high: Annotated[float, Meta(gt=0.0, le=1e6)]
    """Upper end."""

    def __post_init__(self) -> None:
        """Refuse a band that encloses nothing. Raises ValueError."""
        if self.low > self.high:
            raise ValueError(f"low {self.low:g} is above high {self.high:g}; calibrate again")


class Fit(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Where a table of kernel parameters comes from and how well it does."""

    source: Text
    rows: Size
    """Measured rows that it was fitted to."""
    fit_error: Error
    """Mean absolute error of time on these rows, as a fraction."""
    heldout_error: Error
    """The same with whole shapes held out."""
    residuals: tuple[Residual, ...]
    inherited_from: str = ""
    """`gpu:set:key` of the kernel whose efficiencies were borrowed; empty where this GPU was measured."""
    slower: Rate = 1.0
    """How many times as long a borrowed kernel takes here as those efficiencies say."""
    together: Part = UNSEEN_TOGETHER
    """By which part of its band a borrowed kernel is off together with all of its kind (`inheritance`)."""

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
    """One code path of a fused attention kernel (A1 to A4, `medusa_sim.latency.attention`)."""

    ramp_us: Us
    """Start and drain of the launch."""
    tile_rows: Size
    """Query rows of one tile."""
    tile_keys: Size
    """Keys of one tile."""
    packs_gqa: bool
    """Whether query rows of all heads that share a K/V head fill one tile together (one row a sequence always
    does)."""
    ctas_per_sm: Size
    """Thread blocks (CTAs) resident on an SM."""
    sharing: Ratio
    """How much slower each of them runs for every further one: 0 not at all, 1 they take turns."""
    cta_us: Us
    """Fixed time of a block."""
    row_us: Us
    """Time of a block for each query row that it loads and stores."""
    whole_fraction: Share
    """Share of an SM's peak at which a block works through all keys, padded rows included."""
    split_fraction: Share
    """The same of a block that has a split of the keys."""
    split_above: Count
    """kv_len above which keys may be split."""
    split_us: Us
    """Combining splits."""
    split_step_us: Us
    """The same for every doubling of their number."""
    bandwidth_fraction: Share
    """Share of the datasheet's bandwidth."""
    l2_ratio: Ratio
    """Rate of reading from L2, in units of that."""
    l2_fill: Rate
    """Footprint over L2 size at which half is still read from L2."""
    l2_sharpness: Rate
    """How suddenly that falls."""
    store_passes: Ratio
    """Passes over the new K and V (writing them to the cache) that the rows include."""
    append_ratio: Ratio
    """Extra walk for every new key where each block appends K and V itself, as FlashAttention-2 does with a
    cache."""


class AttentionKernel(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A fused attention kernel."""

    wide: AttentionPath
    """The Tensor Core path."""
    narrow: AttentionPath | None = None
    """Another path of the library for few query rows a K/V head."""
    narrow_rows: Count = 0
    """Most query rows that it takes."""
    fit: Fit


class Projections(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The linear layers around latent attention (U3 and U4, `medusa_sim.latency.latent`)."""

    launch_us: Us
    """All launches together."""
    token_us: Ratio
    """What stands between the projections, for every token."""
    head_us: Ratio
    """The same for every head of a token."""
    bandwidth_fraction: Share
    """Share of the datasheet's bandwidth."""
    peak_fraction: Share
    """Share of its peak."""


class LatentKernel(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A latent attention kernel or module (`medusa_sim.latency.latent`)."""

    wide: AttentionPath
    """As of an `AttentionKernel`, with query rows that share the latent; so are the next two."""
    narrow: AttentionPath | None = None
    narrow_rows: Count = 0
    projections: Projections | None = None
    """Of a module; None of a kernel alone."""
    fit: Fit
    name: str = ""
    """Its name in the library, as rows give it; empty: any."""
    fallback: bool = False
    """As of a `StreamKernel`: SGLang's rows of an fp8 cache on Hopper convert all of it first."""


class ExpertTile(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A tile of the grouped products: rows of one expert by output columns.

    A library with a rule takes it up to the largest numbers (`ExpertKernel.default_tiles`); 0: any.
    """

    rows: Size
    columns: Size
    selection_penalty: Rate = 1.0
    """Scales the tile's time when the library chooses, not the time itself."""
    tokens_max: Count = 0
    """Tokens of the layer."""
    tokens_per_expert_max: Ratio = 0.0
    """Tokens over experts."""
    rows_per_expert_max: Ratio = 0.0
    """(token, expert) pairs over experts."""
    slower: Rate = 1.0
    """Factor on the time of both products with this tile."""


class TunedShape(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A layer whose tiles a library has tuned."""

    experts: Size
    """Experts on the GPU."""
    inter: Size
    """Width of one of them after sharding."""


class ExpertKernel(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A fused layer of experts (`medusa_sim.latency.moe`, whose equations use these names)."""

    name: str = ""
    """Its name in the library, as rows give it; empty: any."""
    ramp_us: Us
    """Start and drain of all its launches."""
    expert_us: Us
    """Sorting tokens by expert, for each expert of the layer."""
    counts_held: bool = False
    """Whether that is for each expert that a GPU holds: problems of a grouped product, not a sort."""
    walks_all: bool = False
    """Whether sorting and passes are over all pairs, those of other GPUs' experts too."""
    token_us: Us
    """The same for each token."""
    pair_us: Us
    """The same for each (token, expert) pair."""
    bandwidth_fraction: Share
    """Share of the datasheet's bandwidth at which weights are read."""
    peak_fraction: Share
    """Share of its peak."""
    activation_ratio: Rate
    """Rate of all passes over activations, in units of the datasheet's bandwidth."""
    load_ratio: Rate
    """Rate at which all SMs together load tiles, in the same units."""
    tile_k: Ratio
    """k elements that filling and draining one tile's pipeline costs."""
    memory_norm: Norm
    """Exponent of the smooth maximum of memory and tiles."""
    step_norm: Norm
    """Exponent of the smooth maximum of arithmetic and loads in a tile."""
    wave_rounding: Ratio
    """As of `GemmKernel`; so are the next three."""
    contention: Ratio
    throttle: Ratio
    throttle_us: Us
    l2_ratio: Ratio = 1.0
    """As of `AttentionPath`, of weights that rows measured alone left in L2; so are the next two."""
    l2_fill: Rate = 1.0
    l2_sharpness: Rate = 6.0
    unaligned_ratio: Rate = 1.0
    """By how much the second product is slower where the width of an expert is no multiple of 16."""
    gates_all: bool = False
    """Whether it computes a gate where an expert has none."""
    tiles: Annotated[tuple[ExpertTile, ...], Meta(min_length=1)]
    """What the library chooses from by time."""
    default_tiles: tuple[ExpertTile, ...] = ()
    """Where it has a rule instead: the first that is allowed."""
    tuned: tuple[TunedShape, ...] = ()
    """Shapes that choose from `tiles` all the same."""
    fit: Fit


FEWEST_RANKS = 2.0
"""Ranks at which a regime's range and start are stated."""


class CollectiveRegime(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """One algorithm and protocol of a library, which serves a range of message sizes (C2, C3)."""

    start_us: Us
    """Time of an empty message at two ranks."""
    rank_us: Us
    """The same for every further rank."""
    copy_passes: Ratio
    """How often the whole message passes at the link's datasheet bandwidth, whatever the number of ranks."""
    link_passes: Ratio
    """How often what an algorithm must send does."""
    bytes_max: Annotated[float, Meta(ge=0.0, le=1e15)] = 0.0
    """The largest message that it serves at two ranks; 0: any."""
    growth: Annotated[float, Meta(ge=-8.0, le=8.0)] = 0.0
    """bytes_max grows as (ranks / 2) to this power."""
    one_shot: bool = False
    """Whether each rank sends its whole message to every other."""
    in_switch: Ratio = 0.0
    """What a byte costs beside a ring's where the switch adds up; 0: it does not."""


class CollectiveKernel(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """One collective of a library."""

    regimes: Annotated[tuple[CollectiveRegime, ...], Meta(min_length=1)]
    """By ascending message, the last open."""
    fit: Fit
    name: str = ""
    """Its name in the library, as rows give it; empty: any."""
    ranks_of: str = ""
    """`gpu:set:entry` of the kernel that it grows as beyond `most_ranks` (C5)."""
    most_ranks: Annotated[float, Meta(ge=FEWEST_RANKS, le=1024.0)] = FEWEST_RANKS
    """Ranks of its own rows, at most."""

    @property
    def knows_ranks(self) -> bool:
        """Whether it was measured at more than one number of ranks."""
        return any(regime.rank_us or regime.growth for regime in self.regimes)


class DispatchKernel(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Dispatch or combination of tokens to experts (Y1 to Y5, `medusa_sim.latency.dispatch`)."""

    start_us: Us
    """Time without tokens."""
    width_us: Us
    """The same for every 1,024 values of a token's width."""
    spread_us: Us
    """The same for every copy of a token."""
    rank_us: Us
    """The same for every doubling of the ranks beyond two."""
    fill_us: Us
    """What is added, for every 1,024 values, until tokens fill the pipeline."""
    fill_tokens: Rate
    """Tokens that fill half of it."""
    token_us: Us
    """Time of one multiprocessor for a token."""
    own_us: Us
    """The same for every 1,024 values of it."""
    copy_us: Us
    """The same for every 1,024 values of each copy that travels."""
    link_fraction: Rate
    """Share of the link's bandwidth."""
    norm: Norm
    """Exponent of the smooth maximum of multiprocessors and link."""
    per_expert: bool
    """Whether a token makes a copy for each expert instead of each rank."""
    fit: Fit
    far_us: Us = 0.0
    """Start for every doubling of the nodes; 0 where no rows tell, as of the next two."""
    far_fraction: Ratio = 0.0
    """Share of the link's bandwidth between two nodes."""
    far_growth: Ratio = 0.0
    """Exponent by which that falls with more nodes."""
    name: str = ""
    """Of the library's backend; empty: any."""
