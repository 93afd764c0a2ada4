"""What a step keeps in GPU memory."""

from __future__ import annotations

import numpy as np

from medusa_sim.arrays import FloatArray
from medusa_sim.operators.operator import Size
from medusa_sim.specs.gpu import Gpu
from medusa_sim.specs.model import Model
from medusa_sim.step.drafter import Drafter
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
    rows = np.asarray(batch, dtype=np.float64) * np.asarray(candidates, dtype=np.float64)
    cached = np.asarray(batch, dtype=np.float64) * (
        np.asarray(seq_len, dtype=np.float64) + np.asarray(candidates, dtype=np.float64)
    )
    element = BYTES_PER_ELEMENT[model.activation_dtype]
    widest = (3 if model.gated else 2) * model.intermediate + 2 * model.hidden
    activations = rows * (element * widest + BYTES_PER_ELEMENT["fp32"] * model.vocab)
    kv_bytes_per_token = model.kv_bytes_per_token
    weights = model.weight_bytes
    if drafter is not None:
        kv_bytes_per_token += drafter.kv_bytes_per_token(model)
        weights += drafter.weight_bytes(model)
    return weights + cached * kv_bytes_per_token + activations


def usable_memory_bytes(gpu: Gpu) -> float:
    """Bytes that an engine may fill."""
    return USABLE_MEMORY_SHARE * gpu.memory_bytes
