"""Layers of a model that are alike: what mixes their tokens, side by side, and their feed-forward part."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

import msgspec

from medusa_sim.models.feed_forwards import FeedForward, MoE
from medusa_sim.models.mixers import Mixer


@dataclass(frozen=True, slots=True)
class LayerGroup:
    """`count` layers that are alike: how they mix tokens, and their feed-forward part."""

    count: int
    mixers: tuple[Mixer, ...]
    """Side by side on one input, attention first; none: the layer has a feed-forward part alone."""
    feed_forward: FeedForward | None
    """None: the layer mixes tokens alone."""

    @property
    def blocks(self) -> int:
        """Parts of one layer that are normed and added to the residual stream: two, or one."""
        return bool(self.mixers) + (self.feed_forward is not None)

    @property
    def parts(self) -> tuple[Mixer | FeedForward, ...]:
        """Its mixers and its feed-forward part."""
        return self.mixers if self.feed_forward is None else (*self.mixers, self.feed_forward)

    def with_forms(
        self,
        change: Callable[[str | None], str | None],
        output_form: Callable[[Mixer], str | None] | None = None,
    ) -> LayerGroup:
        """The layers with every format changed; output_form: the new one of an output projection, if by a
        rule of its own.
        """
        mixers, part = [], self.feed_forward
        for mixer in self.mixers:
            output = change(mixer.out_form) if output_form is None else output_form(mixer)
            mixers.append(msgspec.structs.replace(mixer, form=change(mixer.form), out_form=output))
        if part is not None:
            shared = {"shared_form": change(part.shared_form)} if isinstance(part, MoE) else {}
            part = msgspec.structs.replace(part, form=change(part.form), **shared)
        return LayerGroup(self.count, tuple(mixers), part)


def side_by_side(given: Mixer | tuple[Mixer, ...] | None) -> tuple[Mixer, ...]:
    """The mixers of a layer that has one, several or none."""
    return (given,) if isinstance(given, Mixer) else given or ()


def grouped(layers: Iterable[LayerGroup]) -> tuple[LayerGroup, ...]:
    """Groups of equal layers, in the order of their first."""
    counts: dict[tuple[tuple[Mixer, ...], FeedForward | None], int] = {}
    for layer in layers:
        key = (layer.mixers, layer.feed_forward)
        counts[key] = counts.get(key, 0) + layer.count
    return tuple(LayerGroup(count, *key) for key, count in counts.items())
