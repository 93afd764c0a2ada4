"""Fitted parameters of a fused mixture-of-experts layer, as stored in `hardware/<gpu>.toml`."""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta

from medusa_sim.specs.fitted import Fit, Norm, Rate, Ratio, Share, Size
from medusa_sim.specs.strict import Us


class ExpertTile(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A tile of the grouped products: rows of one expert by output columns.

    reluctance: scales the tile's time when the library chooses, not the time itself (as of a `GemmTile`).
    """

    rows: Size
    columns: Size
    reluctance: Rate = 1.0


class ExpertKernel(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A fused layer of experts (see `medusa_sim.latency.moe`, whose equations use these names).

    name: of the kernel in its library, by which rows ask for it; empty: any. ramp_us: start and drain of all
    its launches. expert_us, token_us, pair_us: sorting tokens by expert, for each expert of the layer, each
    token and each (token, expert) pair. bandwidth_fraction, peak_fraction: share of the datasheet's bandwidth
    at which weights are read, and of its peak. activation_ratio: rate of activations, of all passes over
    them, in units of the datasheet's bandwidth. load_ratio: rate at which all SMs together load tiles, in the
    same units. tile_k: k elements that filling and draining one tile's pipeline costs. memory_norm,
    step_norm: exponents of the smooth maximum of memory and tiles, and of arithmetic and loads in a tile.
    wave_rounding, contention, throttle, throttle_us: as of `GemmKernel`.
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
    tiles: Annotated[tuple[ExpertTile, ...], Meta(min_length=1)]
    fit: Fit
