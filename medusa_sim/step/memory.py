"""What a step keeps in GPU memory."""

from __future__ import annotations

import numpy as np

from medusa_sim.arrays import FloatArray
from medusa_sim.operators.operator import Size
from medusa_sim.specs.gpu import Gpu
from medusa_sim.specs.model import Model
from medusa_sim.step.drafter.base import Drafter
from medusa_sim.units import BYTES_PER_ELEMENT

USABLE_MEMORY_SHARE = 0.9
"""Share of the card that an engine hands out: vLLM's default `gpu_memory_utilization` of 0.9.

The rest holds the CUDA context, the allocator's slack and captured graphs.
"""


def step_memory_bytes(
    model: Model, drafter: Drafter | None, batch: Size, seq_len: Size, candidates: Size
) -> FloatArray:
    """Weights, drafter, KV cache with room for the tree, and the widest activations, bytes.

    The activations of one step: the MLP's widest rows and the logits (fp32, as samplers keep them).
    """
    return memory_bytes(model, *drafter_bytes(model, drafter), batch, seq_len, candidates)


def drafter_bytes(model: Model, drafter: Drafter | None) -> tuple[float, float, float]:
    """(bytes of weights, bytes of KV cache a token, tokens of KV cache a request) that a drafter adds."""
    if drafter is None:
        return 0.0, 0.0, 0.0
    return drafter.weight_bytes(model), drafter.kv_bytes_per_token(model), float(drafter.kv_slots())


def memory_bytes(
    model: Model,
    drafter_weights: FloatArray | float,
    drafter_kv_per_token: FloatArray | float,
    drafter_kv_slots: FloatArray | float,
    batch: Size,
    seq_len: Size,
    candidates: Size,
) -> FloatArray:
    """`step_memory_bytes` with what the drafter adds as arrays; all broadcast."""
    sequences = np.asarray(batch, dtype=np.float64)
    counts = np.asarray(candidates, dtype=np.float64)
    cached = sequences * (np.asarray(seq_len, dtype=np.float64) + counts + drafter_kv_slots)
    element = BYTES_PER_ELEMENT[model.activation_dtype]
    widest = (3 if model.gated else 2) * model.intermediate + 2 * model.hidden
    activations = sequences * counts * (element * widest + BYTES_PER_ELEMENT["fp32"] * model.vocab)
    weights = model.weight_bytes + drafter_weights
    return np.asarray(weights + cached * (model.kv_bytes_per_token + drafter_kv_per_token) + activations)


def usable_memory_bytes(gpu: Gpu) -> float:
    """Bytes that an engine may fill."""
    return USABLE_MEMORY_SHARE * gpu.memory_bytes
