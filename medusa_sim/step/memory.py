"""What a step keeps in GPU memory."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from medusa_sim.arrays import FloatArray
from medusa_sim.errors import UsageError
from medusa_sim.operators.operator import Size
from medusa_sim.specs.engine import Engine
from medusa_sim.specs.gpu import Gpu
from medusa_sim.specs.model import Model
from medusa_sim.specs.parallel import Parallel
from medusa_sim.specs.variants import on_one_gpu
from medusa_sim.step.drafter.base import Drafter
from medusa_sim.units import BYTES_PER_ELEMENT

USABLE_MEMORY_SHARE = 0.9
"""Share of the GPU that an engine hands out: vLLM's default `gpu_memory_utilization` of 0.9.

The rest holds captured graphs and the allocator's slack. TensorRT-LLM hands out a share of what weights leave
free instead (`specs.engine.Engine.free_memory_share`).
"""
CONTEXT_BYTES = 1.0e9
"""Of that share, what CUDA's context, NCCL, workspaces and the driver keep on a GPU.

vLLM 0.15.1 reports 7,463 blocks of 16 tokens for Llama-2-7B on an H100, 0.9 of 80 GiB would hold 7,588
(benchmarks/log); its logs of other models miss 1 to 2 GB: the widest step is the rest (`activation_bytes`).
"""


LINKED_BYTES = 0.45e9
"""More of it on a GPU that is one of several: vLLM 0.11.0 logs 0.13 GiB alone and 0.55 GiB as one of two."""


def step_memory_bytes(
    model: Model, drafter: Drafter | None, batch: Size, seq_len: Size, candidates: Size
) -> FloatArray:
    """Weights, drafter, KV cache with room for the tree, and the widest activations of one GPU, bytes.

    model: what that GPU holds. The activations of one step: the MLP's widest rows and the logits (fp32, as
    samplers keep them).
    """
    return memory_parts(model, *drafter_bytes(model, drafter), batch, seq_len, candidates).total


def drafter_bytes(model: Model, drafter: Drafter | None) -> tuple[float, float, float]:
    """(bytes of weights, bytes of KV cache a token, tokens of KV cache a request) that a drafter adds."""
    if drafter is None:
        return 0.0, 0.0, 0.0
    return drafter.weight_bytes(model), drafter.kv_bytes_per_token(model), float(drafter.kv_slots())


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


def memory_parts(
    model: Model,
    drafter_weights: FloatArray | float,
    drafter_kv_per_token: FloatArray | float,
    drafter_kv_slots: FloatArray | float,
    batch: Size,
    seq_len: Size,
    candidates: Size,
) -> MemoryParts:
    """`step_memory_bytes` by what it holds, with what the drafter adds as arrays; all broadcast."""
    sequences = np.asarray(batch, dtype=np.float64)
    counts = np.asarray(candidates, dtype=np.float64)
    tokens = np.asarray(seq_len, dtype=np.float64) + counts + drafter_kv_slots
    rows = sequences * counts
    own = sequences * cache_bytes(model, 0.0, tokens, counts)
    drafter = np.asarray(drafter_weights)
    if np.any(drafter_kv_per_token):
        drafter = drafter + sequences * cache_bytes(model, drafter_kv_per_token, tokens, counts) - own
    return MemoryParts(
        weights=np.asarray(float(model.weight_bytes)),
        drafter=drafter,
        kv_cache=own,
        activations=activation_bytes(model, rows, rows),
    )


def cache_bytes(
    model: Model, drafter_kv_per_token: FloatArray | float, tokens: Size, verified: Size = 1
) -> FloatArray:
    """Cache and states of one request of so many tokens on one GPU, bytes: what every layer keeps of it.

    verified: tokens of a verification step, for each of which recurrent layers keep a state. The one place
    that says so: sweep, recommend, capacity and the blocks of `load` read it.
    """
    kept = np.asarray(tokens, dtype=np.float64)
    states = model.state_bytes + model.draft_state_bytes * (np.asarray(verified, dtype=np.float64) - 1.0)
    whole = model.kv_bytes(kept) + kept * drafter_kv_per_token + states
    return np.asarray(whole / model.parallel.tp if model.parallel.dp_attention else whole)


def activation_bytes(model: Model, tokens: Size, logit_rows: Size) -> FloatArray:
    """Widest rows of a step of so many tokens, and the logits of so many of them (fp32), bytes."""
    element = BYTES_PER_ELEMENT[model.activation_dtype]
    parts = [group.feed_forward.widest for group in model.groups if group.feed_forward is not None]
    widest = max(parts, default=0) + 2 * model.hidden
    logits = BYTES_PER_ELEMENT["fp32"] * model.whole_vocab
    return np.asarray(np.asarray(tokens) * element * widest + np.asarray(logit_rows) * logits)


def profiled_bytes(model: Model, engine: Engine | None, tokens: int, requests: int, rows: int) -> float:
    """What a server keeps free of KV cache: a step of so many tokens and verified rows, at least.

    More where choosing a token of as many requests as a step may hold takes more when the server starts.
    """
    per_logit = 0.0 if engine is None else engine.profiled_bytes_per_logit.value
    return max(float(activation_bytes(model, tokens, rows)), per_logit * model.whole_vocab * requests)


_GPUS = (1, 2, 4, 8, 16, 32, 64, 128)


def fewest_gpus(model: Model, gpu: Gpu, parallel: Parallel, engine: Engine | None = None) -> int | None:
    """The fewest GPUs on which one sequence of the model fits, split as `parallel` does; None if none do."""
    for tp in _GPUS:
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
