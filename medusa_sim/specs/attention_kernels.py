"""Fitted parameters of fused attention and latent attention, as stored in `hardware/<gpu>.toml`."""

from __future__ import annotations

import msgspec

from medusa_sim.specs.fitted import Count, Fit, Rate, Ratio, Share, Size
from medusa_sim.specs.strict import Us


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
    of a module. name: of the kernel in its library, by which rows ask for it; empty: any.
    """

    wide: AttentionPath
    narrow: AttentionPath | None = None
    narrow_rows: Count = 0
    projections: Projections | None = None
    fit: Fit
    name: str = ""
