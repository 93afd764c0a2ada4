"""Verification in passes of fixed shapes, which a CUDA graph can replay (`decode --launch`).

A pass scans the fewest slots of a ladder that doubles, so that a shape serves many passes, a long cache costs
nothing before its text is long, and there are at most as many shapes as doublings.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from typing import TypeAlias

import torch
from torch import Tensor

from medusa_sim.errors import UsageError
from medusa_sim.lab.decoder.cache import KVCache
from medusa_sim.lab.decoder.cuda_graph import capture
from medusa_sim.lab.decoder.model import Llama

SLOTS_MIN = 256
"""The lowest rung: fewer slots are scanned as quickly, and a shape for them would have to be made too."""
Forward: TypeAlias = Callable[[Tensor, Tensor, Tensor], Tensor]
"""(tokens (batch, n), tree mask, depths) -> hidden states (batch, n, hidden) of one verification."""
_Make: TypeAlias = Callable[[Forward, tuple[Tensor, Tensor, Tensor]], Forward]
"""(a forward of fixed shapes, inputs of that shape) -> the same, ready to be run."""


def scanned_slots(needed: int, capacity: int) -> int:
    """Cache slots that a pass scans which needs so many: the next power of two from 256, or the capacity."""
    return min(max(SLOTS_MIN, 1 << (needed - 1).bit_length()), capacity)


class FixedForward:
    """Verification that is made ready for each (slots, batch, nodes) when it is first needed.

    `setup_s`: seconds that this took so far. First runs write scratch rows of the cache alone, which the
    pass that follows writes again.
    """

    def __init__(self, model: Llama, cache: KVCache, make: _Make) -> None:
        self.model, self.cache, self.setup_s = model, cache, 0.0
        self._make = make
        self._ready: dict[tuple[int, bool, torch.Size, torch.Size, torch.Size], Forward] = {}

    @property
    def shapes(self) -> int:
        """Shapes that were made ready."""
        return len(self._ready)

    def __call__(self, tokens: Tensor, mask: Tensor, depths: Tensor) -> Tensor:
        """Hidden states (batch, n, hidden) of a tree. Raises UsageError where the cache lacks room."""
        nodes = tokens.shape[1]
        slots = scanned_slots(self.cache.require_room(nodes) + nodes, self.cache.capacity)
        filled = min(self.cache.lengths_on_host) + nodes == slots
        key = (slots, filled, tokens.shape, mask.shape, depths.shape)
        if key not in self._ready:
            self._ready[key] = self._made_ready(slots, filled, (tokens, mask, depths))
        return self._ready[key](tokens, mask, depths)

    def _made_ready(self, slots: int, filled: bool, inputs: tuple[Tensor, Tensor, Tensor]) -> Forward:
        started = time.perf_counter()
        # tabulated outside of what is captured
        self.model.rotations.tables(self.cache.capacity, self.cache.lengths.device, self.cache.keys.dtype)
        made = self._make(partial(verify_slots, self.model, self.cache, slots, filled=filled), inputs)
        made(*inputs).sum().item()  # waits for the device
        self.setup_s += time.perf_counter() - started
        return made


def verify_slots(
    model: Llama, cache: KVCache, slots: int, tokens: Tensor, mask: Tensor, depths: Tensor, *, filled: bool
) -> Tensor:
    """Verification over the first `slots` of the cache: no shape and no value depends on the text.

    filled: as of `Llama.cached_pass`.
    """
    hidden: Tensor = model(tokens, pass_=model.cached_pass(cache, mask, depths, slots, filled=filled))
    return hidden


def static_forward(model: Llama, cache: KVCache) -> FixedForward:
    """The passes of fixed shapes as they are: what is captured, in the open."""
    return FixedForward(model, cache, lambda forward, _: forward)


def graphed_forward(model: Llama, cache: KVCache) -> FixedForward:
    """`static_forward` as one CUDA graph a shape, all in one memory pool.

    Inputs are copied into the graph's own buffers; the output is a view that the next replay
    overwrites. Raises UsageError off CUDA.
    """
    if model.device.type != "cuda":
        raise UsageError(f"CUDA graphs need a CUDA device, the model is on {model.device}")
    pool = torch.cuda.graph_pool_handle()

    def captured(forward: Forward, inputs: tuple[Tensor, Tensor, Tensor]) -> Forward:
        buffers = tuple(given.clone() for given in inputs)
        graph, states = capture(partial(forward, *buffers), model.device, pool=pool)

        def replay(*given: Tensor) -> Tensor:
            for buffer, value in zip(buffers, given, strict=True):
                buffer.copy_(value)
            graph.replay()
            return states

        return replay

    return FixedForward(model, cache, captured)


FORWARDS = {"static": static_forward, "cuda-graph": graphed_forward}
"""What `decode --launch` offers beside `eager`."""
