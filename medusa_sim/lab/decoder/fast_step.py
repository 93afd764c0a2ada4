"""The tricks for speed, behind one seam: steps that give what `step.cached_step` gives, sooner.

A small model's step is mostly bookkeeping, so one sequence writes its rows side by side, without indices, and
masks the tree alone (`quick_step`). A long prefix is read without a mask (`prefix_and_tree`). And a step of
fixed shapes can be compiled by torch or replayed as a CUDA graph (`FORWARDS`, for `generate`): it scans the
fewest slots of a ladder that doubles, so that a shape serves many steps, a long cache costs nothing before
its text is long, and there are at most as many shapes as doublings.


"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Protocol, TypeAlias, TypeVar, cast

import torch
from torch import Tensor

from medusa_sim.errors import UsageError
from medusa_sim.lab.decoder.cache import KVCache, aligned_tensor, attend, mask_bias
from medusa_sim.lab.decoder.config import DecoderConfig
from medusa_sim.lab.decoder.parts import Rotations
from medusa_sim.lab.decoder.step import CachedStep, Forward, NewTokens, Step, cached_step

_Window: TypeAlias = tuple[Tensor, Tensor, Tensor, Tensor]
"""Of one layer: where new keys and values go, (1, q, kv_heads, head_dim), and those to look at."""
SLOTS_MIN = 256
"""The lowest rung: fewer slots are scanned as quickly, and a shape for them would have to be made too."""
_FIRST_RUNS = 2
"""The second may compile again, for what the first one changed."""
_COMPILED_MAX = 64
"""Shapes of one run: methods, trees and rungs."""
_Make: TypeAlias = Callable[[Forward, tuple[Tensor, Tensor, Tensor]], Forward]
"""(a forward of fixed shapes, inputs of that shape) -> the same, ready to be run."""


class SideBySide(Step):
    """One sequence, whose new rows lie side by side: they are copied into the cache without indices."""

    __slots__ = ("windows",)

    def __init__(self, cos: Tensor, sin: Tensor, mask: Tensor | None, windows: Sequence[_Window]) -> None:
        super().__init__(1, cos, sin, mask)
        self.windows = windows

    def write(self, layer: int, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        """As `CachedStep.write`."""
        own_keys, own_values, keys, values = self.windows[layer]
        own_keys.copy_(k)
        own_values.copy_(v)
        return keys, values

    def attend(self, q: Tensor, keys: Tensor, values: Tensor) -> Tensor:
        """As `CachedStep.attend`."""
        return attend(q, keys, values, self.mask)


class TwoParts(CachedStep):
    """Texts of one length: the committed keys are read without a mask, `mask` is over those of the tree."""

    __slots__ = ()

    def attend(self, q: Tensor, keys: Tensor, values: Tensor) -> Tensor:
        """As `CachedStep.attend`."""
        assert self.mask is not None  # noqa: S101  # it is made of a tree
        return prefix_and_tree(q, keys, values, self.kv_len - self.mask.shape[-1], self.mask)


def quick_step(
    config: DecoderConfig, rotations: Rotations, cache: KVCache, new: NewTokens, *, splits_attention: bool
) -> Step | None:
    """The step of `cached_step` without indices, or without a mask over committed tokens; None where only the
    plain way is right.
    """
    longest = cache.require_room(new.uncommitted)
    if config.sliding_window is not None or min(cache.lengths_on_host) < longest:
        return None
    splits = splits_attention and longest > 0 and new.uncommitted > 1
    if cache.batch == 1 and not splits:
        return _side_by_side(config, rotations, cache, new, longest)
    if not splits and new.uncommitted > 1:
        return None
    return filled_step(config, rotations, cache, new, longest + new.uncommitted, splits_attention=splits)


def _side_by_side(
    config: DecoderConfig, rotations: Rotations, cache: KVCache, new: NewTokens, length: int
) -> SideBySide:
    start, kv_len = length + new.offset, length + new.uncommitted
    tables = rotations.tables(kv_len, cache.lengths.device, cache.keys.dtype)
    bias = None
    if new.uncommitted == 1:
        cos, sin = (table.narrow(0, start, 1) for table in tables)
    else:
        depths = new.depths.view(-1)[new.offset :]
        cos, sin = (table.narrow(0, length, new.uncommitted).index_select(0, depths) for table in tables)
        seen = new.mask.view(1, new.tokens, new.uncommitted)
        tree = mask_bias(seen, config.group_size, cache.keys.dtype)
        bias = aligned_tensor((*tree.shape[:-1], kv_len), tree.dtype, tree.device, fill=0.0)
        bias[..., length:] = tree
    stores = (cache.keys, cache.values)
    own = [store.narrow(3, start, new.tokens).transpose(2, 3).unbind(0) for store in stores]
    seen_rows = [store.narrow(3, 0, kv_len).unbind(0) for store in stores]
    return SideBySide(cos, sin, bias, list(zip(*own, *seen_rows, strict=True)))


def filled_step(
    config: DecoderConfig,
    rotations: Rotations,
    cache: KVCache,
    new: NewTokens,
    kv_len: int,
    *,
    splits_attention: bool,
) -> CachedStep:
    """Of sequences that all end at `kv_len`: one token needs no mask, a tree may be read in two parts."""
    splits = splits_attention and 1 < new.uncommitted < kv_len
    is_masked = new.uncommitted > 1 and not splits
    step = cached_step(config, rotations, cache, new, kv_len, is_masked=is_masked)
    if not splits:
        return step
    mask = new.mask.expand(cache.batch, new.tokens, new.uncommitted)
    bias = mask_bias(mask, config.group_size, cache.keys.dtype)
    return TwoParts(cache.batch, step.cos, step.sin, cache, step.slots, bias, kv_len)


def prefix_and_tree(q: Tensor, keys: Tensor, values: Tensor, prefix: int, bias: Tensor) -> Tensor:
    """Attention in two parts: over the first `prefix` keys, which every query sees, and over the tree behind.

    An arbitrary mask keeps a GPU from its fastest kernel, and the one that is left walks a long prefix with
    few blocks. So the prefix is read without a mask, the tree's few keys with one, and the two are merged by
    the logarithms of their sums: softmax over both. q: (batch, kv_heads, rows, head_dim); keys, values:
    (batch, kv_heads, kv_len, head_dim); bias: additive, broadcasts to (batch, 1, rows, kv_len - prefix).
    """
    first, first_sum = _with_log_sum(q, keys.narrow(2, 0, prefix), values.narrow(2, 0, prefix))
    behind = keys.shape[2] - prefix
    scale = q.shape[-1] ** -0.5
    scores = torch.matmul(q * scale, keys.narrow(2, prefix, behind).transpose(-1, -2)).to(first_sum.dtype)
    scores = scores + bias
    second_sum = scores.logsumexp(-1)
    second = torch.matmul(scores.softmax(-1).to(q.dtype), values.narrow(2, prefix, behind))
    share = torch.sigmoid(first_sum - second_sum)[..., None]
    return torch.lerp(second.to(share.dtype), first.to(share.dtype), share).to(q.dtype)


def _with_log_sum(q: Tensor, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
    """Attention without a mask and the logarithm of each row's sum of exponentials (batch, heads, rows)."""
    both: tuple[Tensor, ...]
    if q.device.type == "cpu":
        both = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(q, keys, values)
    elif q.dtype in (torch.float16, torch.bfloat16):
        both = torch.ops.aten._scaled_dot_product_flash_attention(q, keys, values)
    else:
        both = torch.ops.aten._scaled_dot_product_efficient_attention(q, keys, values, None, True)
    return both[0], both[1][..., : q.shape[2]]  # the sums may be padded


def scanned_slots(needed: int, capacity: int) -> int:
    """Cache slots that a step scans which needs so many: the next power of two from 256, or the capacity."""
    return min(max(SLOTS_MIN, 1 << (needed - 1).bit_length()), capacity)


class Verified(Protocol):
    """What is verified: `decoder.model.Llama`."""

    config: DecoderConfig
    rotations: Rotations
    splits_attention: bool

    @property
    def device(self) -> torch.device:
        """Of the weights."""

    def __call__(self, tokens: Tensor, *, step: Step) -> Any:
        """Hidden states of a step."""


class FixedForward:
    """Verification that is made ready for each (slots, batch, nodes) when it is first needed.

    `setup_s`: seconds that this took so far. First runs write scratch rows of the cache alone, which the
    step that follows writes again.
    """

    def __init__(self, model: Verified, cache: KVCache, make: _Make) -> None:
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
        made = self._make(partial(verify_slots, self.model, self.cache, slots, filled=filled), inputs)
        for _ in range(_FIRST_RUNS):
            made(*inputs).sum().item()  # waits for the device
        self.setup_s += time.perf_counter() - started
        return made


def verify_slots(
    model: Verified,
    cache: KVCache,
    slots: int,
    tokens: Tensor,
    mask: Tensor,
    depths: Tensor,
    *,
    filled: bool = False,
) -> Tensor:
    """Verification over the first `slots` of the cache: no shape and no value depends on the text."""
    new = NewTokens(tokens.shape[1], 0, mask, depths)
    given = (model.config, model.rotations, cache, new, slots)
    if filled and model.config.sliding_window is None:
        step = filled_step(*given, splits_attention=model.splits_attention)
    else:
        step = cached_step(*given)
    hidden: Tensor = model(tokens, step=step)
    return hidden


def static_forward(model: Verified, cache: KVCache) -> FixedForward:
    """The steps of fixed shapes as they are: what is compiled or captured, in the open."""
    return FixedForward(model, cache, lambda forward, _: forward)


def compiled_forward(model: Verified, cache: KVCache) -> FixedForward:
    """`static_forward` through torch.compile (needs a C++ compiler on the CPU)."""
    return FixedForward(model, cache, _compiled)


def _compiled(forward: Forward, inputs: tuple[Tensor, Tensor, Tensor]) -> Forward:
    from torch._dynamo import config

    made = cast(Forward, torch.compile(forward, dynamic=False))
    # Torch gives up compiling after 8 shapes of one function; before 2.6 the limit had another name.
    limit = "recompile_limit" if hasattr(config, "recompile_limit") else "cache_size_limit"
    with config.patch({limit: _COMPILED_MAX}):
        for _ in range(_FIRST_RUNS):
            made(*inputs)
    return made


def graphed_forward(model: Verified, cache: KVCache) -> FixedForward:
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


FORWARDS = {"static": static_forward, "compiled": compiled_forward, "cuda-graph": graphed_forward}
"""What `decode --step` offers beside `eager`."""


Result = TypeVar("Result")
_WARM_UP = 3
"""Runs before the capture: libraries choose kernels and take memory in the first ones."""


def capture(
    work: Callable[[], Result],
    device: torch.device,
    *,
    warm_up: Callable[[], object] | None = None,
    pool: Any = None,
) -> tuple[torch.cuda.CUDAGraph, Result]:
    """A graph of `work` and what `work` returned, whose tensors every replay writes anew.

    Streams, graphs and events belong to torch's current device, so that `device` is made current meanwhile
    and the capture gets a stream of its own (torch keeps one for all devices otherwise). warm_up: run before
    in place of `work`. pool: of `torch.cuda.graph_pool_handle()`, shared by graphs that never run at once and
    whose results nobody reads after another replay.
    """
    with torch.cuda.device(device):
        stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]  # torch leaves it untyped
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            for _ in range(_WARM_UP):
                (warm_up or work)()
        torch.cuda.current_stream().wait_stream(stream)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=pool, stream=stream):
            result = work()
    return graph, result
