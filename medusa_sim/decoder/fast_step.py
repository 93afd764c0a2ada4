"""Verification forwards of fixed shapes: compiled by torch, or replayed as a CUDA graph.

All of them are the static step below: attention scans the whole cache under its mask, so that no shape
depends on how much text there is. Pass one as `make_forward` to `generate`.
"""

from __future__ import annotations

from functools import partial
from typing import cast

import torch
from torch import Tensor

from medusa_sim.decoder.cache import KVCache
from medusa_sim.decoder.capture import capture
from medusa_sim.decoder.generate import Forward
from medusa_sim.decoder.model import Llama
from medusa_sim.errors import UsageError


def static_forward(model: Llama, cache: KVCache) -> Forward:
    """Verification over the whole capacity of the cache: every shape is fixed by (batch, nodes)."""
    capacity = cache.capacity

    def forward(tokens: Tensor, mask: Tensor, depths: Tensor) -> Tensor:
        hidden: Tensor = model(tokens, cache=cache, tree_mask=mask, depths=depths, kv_len=capacity)
        return hidden

    return forward


def compiled_forward(model: Llama, cache: KVCache) -> Forward:
    """`static_forward` through torch.compile (needs a C++ compiler on the CPU)."""
    return cast(Forward, torch.compile(static_forward(model, cache), dynamic=False))


def graphed_forward(model: Llama, cache: KVCache) -> Forward:
    """`static_forward` as one CUDA graph per shape, captured when the shape is first seen.

    Inputs are copied into the graph's own buffers; the output is a view that the next replay
    overwrites. Raises UsageError off CUDA.
    """
    if model.device.type != "cuda":
        raise UsageError(f"CUDA graphs need a CUDA device, the model is on {model.device}")
    forward = static_forward(model, cache)
    captured: dict[tuple[torch.Size, ...], tuple[torch.cuda.CUDAGraph, tuple[Tensor, ...], Tensor]] = {}

    def replay(tokens: Tensor, mask: Tensor, depths: Tensor) -> Tensor:
        key = (tokens.shape, mask.shape, depths.shape)
        if key not in captured:
            inputs = (tokens.clone(), mask.clone(), depths.clone())
            graph, states = capture(partial(forward, *inputs), model.device)  # warm-up writes scratch rows
            captured[key] = (graph, inputs, states)
        graph, buffers, out = captured[key]
        for buffer, given in zip(buffers, (tokens, mask, depths), strict=True):
            buffer.copy_(given)
        graph.replay()
        return out

    return replay


FORWARDS = {"static": static_forward, "compiled": compiled_forward, "cuda-graph": graphed_forward}
"""What `decode --step` offers beside `eager`."""
