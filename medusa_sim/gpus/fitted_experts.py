"""Fitted parameters of layers of experts (`latency/moe.py`)."""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta

from medusa_sim.gpus.fitted import Count, Fit, Norm, Rate, Ratio, Share, Size
from medusa_sim.reading.strict import Us


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
