"""Fitted parameters of attention kernels, plain and latent (`latency/attention.py`, `latency/latent.py`)."""

from __future__ import annotations

import msgspec

from medusa_sim.gpus.fitted import Count, Fit, Rate, Ratio, Share, Size
from medusa_sim.reading.strict import Us


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
    """Share of an SM's peak at which a block works through all keys, padded rows included; `by_token`:
    through its first tile of them."""
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
    by_token: bool = False
    """Whether every token of a sequence has blocks of its own, in whole splits and waves (U5)."""


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
    """As of a `StreamKernel`: SGLang's rows of an fp8 cache on Hopper convert all of it first, and those of
    prompts, but on Blackwell, multiply the latent of every key (3.4 times the products), which a server does
    for a cached prefix alone: without one it expands K and V."""
