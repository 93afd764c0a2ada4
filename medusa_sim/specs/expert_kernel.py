"""Fitted parameters of a fused mixture-of-experts layer, as stored in `hardware/<gpu>.toml`."""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta

from medusa_sim.specs.fitted import Count, Fit, Norm, Rate, Ratio, Share, Size
from medusa_sim.specs.strict import Us


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
