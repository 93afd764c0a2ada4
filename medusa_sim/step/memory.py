"""What a step keeps in GPU memory, and the most requests and tokens for which it has room.

    (R10) kept bytes = weights + drafter + ceil(b / schedulers) bytes per request
          bytes per request = (s + c + slots) KV bytes + schedulers c (widest MLP rows + fp32 logits)

b requests with s tokens in the cache and c verified ones. Schedulers are as many as GPUs with data-parallel
attention, else one: the GPU that has most requests keeps the cache of ceil(b / schedulers) whole ones and, as
every GPU, runs the rows of all.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from medusa_sim.arrays import FloatArray, as_float
from medusa_sim.engines.engine import Engine
from medusa_sim.errors import UsageError
from medusa_sim.gpus.gpu import Gpu
from medusa_sim.models.model import Model
from medusa_sim.models.parallel import Parallel
from medusa_sim.models.variants import on_one_gpu
from medusa_sim.operators.operator import Size
from medusa_sim.step.drafter.base import Drafter
from medusa_sim.step.workload import of_fullest
from medusa_sim.units import BYTES_PER_ELEMENT

USABLE_MEMORY_SHARE = 0.9
"""Share of the GPU that an engine hands out: vLLM's default `gpu_memory_utilization` of 0.9.

The rest holds captured graphs and the allocator's slack. TensorRT-LLM hands out a share of what weights leave
free instead (`engines.engine.Engine.free_memory_share`).
"""
CONTEXT_BYTES = 1.0e9
"""Of that share, what CUDA's context, NCCL, workspaces and the driver keep on a GPU.

vLLM 0.15.1 reports 7,463 blocks of 16 tokens for Llama-2-7B on an H100, 0.9 of 80 GiB would hold 7,588
(benchmarks/log); its logs of other models miss 1 to 2 GB: the widest step is the rest (`activation_bytes`).
"""
LINKED_BYTES = 0.45e9
"""What NCCL adds to it where a model is split: vLLM 0.11.0 logs 0.13 GiB alone, 0.55 GiB on one of two."""


class DrafterMemory(NamedTuple):
    """What a drafter adds to the memory of one GPU; numbers, or arrays of several drafters."""

    weight_bytes: FloatArray | float = 0.0
    kv_bytes_per_token: FloatArray | float = 0.0
    """Of the requests whose cache the GPU keeps."""
    kv_slots: FloatArray | float = 0.0
    """Tokens of KV cache, the target's too, that a request holds for drafting besides its own."""


NO_DRAFTER = DrafterMemory()


def drafter_memory(model: Model, drafter: Drafter | None) -> DrafterMemory:
    """What a drafter adds on a GPU that holds `model`; nothing for None."""
    if drafter is None:
        return NO_DRAFTER
    return DrafterMemory(
        drafter.weight_bytes(model), drafter.kv_bytes_per_token(model), float(drafter.kv_slots())
    )


class MemoryParts(NamedTuple):
    """Bytes of one GPU."""

    weights: FloatArray
    drafter: FloatArray
    """Its weights and its own KV cache."""
    kv_cache: FloatArray
    activations: FloatArray

    @property
    def total(self) -> FloatArray:
        """All of them."""
        return np.asarray(self.weights + self.activations + self.drafter + self.kv_cache)


def step_memory_bytes(
    model: Model, drafter: Drafter | None, batch: Size, seq_len: Size, candidates: Size
) -> FloatArray:
    """Weights, drafter, KV cache with room for the tree, and the widest activations of one GPU, bytes.

    model: what that GPU holds. Sizes broadcast.
    """
    return memory_parts(model, drafter_memory(model, drafter), batch, seq_len, candidates).total


def memory_parts(
    model: Model, drafter: DrafterMemory, batch: Size, seq_len: Size, candidates: Size
) -> MemoryParts:
    """(R10) by what the bytes are for; all broadcast."""
    counts = np.asarray(candidates, dtype=np.float64)
    tokens = np.asarray(seq_len, dtype=np.float64) + counts + drafter.kv_slots
    schedulers = model.parallel.schedulers
    requests = of_fullest(batch, schedulers)
    rows = schedulers * requests * counts
    return MemoryParts(
        weights=np.asarray(float(model.weight_bytes)),
        drafter=np.asarray(drafter.weight_bytes + requests * tokens * drafter.kv_bytes_per_token),
        kv_cache=requests * request_bytes(model, tokens, counts),
        activations=activation_bytes(model, rows, rows),
    )


def largest_batch(
    model: Model,
    drafter: DrafterMemory,
    usable_bytes: float,
    seq_len: Size,
    candidates: Size,
    shared_tokens: Size = 0.0,
) -> FloatArray:
    """The most requests whose step fits into `usable_bytes` of each GPU; 0 where none does (R10).

    shared_tokens: of each request, which all have in common, so that the cache holds them once.
    """
    schedulers = model.parallel.schedulers
    none, one = (  # on the fullest GPU
        memory_parts(model, drafter, requests, seq_len, candidates).total for requests in (0, 1)
    )
    shared = as_float(shared_tokens)
    shared_bytes = model.kv_bytes(shared) + shared * drafter.kv_bytes_per_token
    room_bytes, each_bytes = usable_bytes - none - shared_bytes, one - none - shared_bytes
    return np.asarray(schedulers * np.maximum(np.floor(room_bytes / each_bytes), 0.0))


def request_bytes(model: Model, tokens: Size, verified: Size = 1) -> FloatArray:
    """Cache and states of one request of so many tokens on a GPU that keeps it, bytes: those of every layer.

    verified: tokens of a verification step, for each of which recurrent layers keep a state. The one place
    that says so: sweep, recommend, capacity and the blocks of `load` read it.
    """
    states = model.state_bytes + model.draft_state_bytes * (np.asarray(verified, dtype=np.float64) - 1.0)
    return np.asarray(model.kv_bytes(np.asarray(tokens, dtype=np.float64)) + states)


def activation_bytes(model: Model, tokens: Size, logit_rows: Size) -> FloatArray:
    """Widest rows of a step of so many tokens, and the logits of so many of them (fp32), bytes."""
    element = BYTES_PER_ELEMENT[model.activation_dtype]
    parts = [group.feed_forward.widest for group in model.groups if group.feed_forward is not None]
    widest = max(parts, default=0) + 2 * model.hidden
    logits = BYTES_PER_ELEMENT["fp32"] * model.whole_vocab
    return np.asarray(np.asarray(tokens) * element * widest + np.asarray(logit_rows) * logits)


def profiled_bytes(model: Model, engine: Engine | None, tokens: int, requests: int, rows: int) -> float:
    """What a server keeps free of KV cache: a step of so many tokens and verified rows, at least.

    At its start a server samples for as many requests as a step may hold: where that takes more, it counts.
    """
    per_logit = 0.0 if engine is None else engine.profiled_bytes_per_logit.value
    return max(float(activation_bytes(model, tokens, rows)), per_logit * model.whole_vocab * requests)


_SPLITS = (1, 2, 4, 8, 16, 32, 64, 128)
"""Numbers of GPUs that `fewest_gpus` tries: engines split a model over powers of two."""


def fewest_gpus(model: Model, gpu: Gpu, parallel: Parallel, engine: Engine | None = None) -> int | None:
    """The fewest GPUs on which one sequence of the model fits, split as `parallel` does; None if none do."""
    for tp in _SPLITS:
        ep = tp if parallel.ep > 1 else 1
        try:
            shard = on_one_gpu(model, Parallel(tp=tp, ep=ep, dp_attention=parallel.dp_attention))
        except UsageError:  # cannot be split over so many
            continue
        if float(step_memory_bytes(shard, None, 1, 1, 1)) <= usable_memory_bytes(gpu, engine, shard):
            return tp
    return None


def usable_memory_bytes(gpu: Gpu, engine: Engine | None = None, shard: Model | None = None) -> float:
    """Bytes that an engine may fill with weights, KV cache and activations on one GPU.

    A share of the GPU; of an engine that takes a share of what the weights (of `shard`) leave free
    (`Engine.free_memory_share`), the weights and that share of the rest.
    """
    linked = shard is not None and shard.parallel.tp > 1
    context = (CONTEXT_BYTES + LINKED_BYTES * linked) * (gpu.architecture != "cpu")
    own_bytes = gpu.memory_bytes
    if gpu.local is not None and gpu.local.gpu_memory_share is not None and not gpu.kernels:
        own_bytes, context = gpu.local.gpu_memory_share.value * own_bytes, 0.0
    if engine is None or shard is None or not engine.free_memory_share:
        return USABLE_MEMORY_SHARE * own_bytes - context
    weights = float(shard.weight_bytes)
    return weights + engine.free_memory_share * (own_bytes - context - weights)
