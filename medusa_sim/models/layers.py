"""Reads layers of every kind of mixer as `models.toml` writes them."""

from __future__ import annotations

import msgspec

from medusa_sim.models.feed_forwards import FeedForward
from medusa_sim.models.layer_group import LayerGroup, side_by_side
from medusa_sim.models.mixers import Grouped, Latent
from medusa_sim.models.model import Layers
from medusa_sim.models.recurrent import GatedDelta, KimiDelta, Mamba2
from medusa_sim.models.sparse import BlockSparse, Compressed
from medusa_sim.reading.strict import convert

Mixers = Grouped | BlockSparse | Latent | Compressed | GatedDelta | KimiDelta | Mamba2
"""Every kind of mixer, told apart by `kind` in a file."""


class _Group(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Layers that are alike."""

    count: Layers
    mixer: Mixers | tuple[Mixers, ...] | None = None
    """Several run side by side on one input."""
    feed_forward: FeedForward | None = None


def layers_of(given: object, where: str, key: str) -> LayerGroup:
    """A group of layers from its table. Raises SpecError naming file, key and what is allowed."""
    group = convert(given, _Group, where, key=key)
    return LayerGroup(group.count, side_by_side(group.mixer), group.feed_forward)
