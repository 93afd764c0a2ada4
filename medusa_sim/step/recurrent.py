"""Mixers with a state -> kernels: projections, a convolution, the recurrence and its gated norm.

    (K3)  b S (1 + q) bytes: a state is read once, and one kept for each of q tokens, one after the other
    (K4)  prompts in chunks of C tokens: FLOPs by the token, states once a sequence

Convolution and recurrence are kernels of `operators.recurrent`, fitted for some GPUs and engines. Elsewhere
(K3) is priced as traffic of an elementwise kernel, (K4) as products of small matrices at a third of
a linear layer's rate. Those bands hold what public rows of other GPUs and engines show: two times faster
where states stay in L2, up to three times slower by library.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TypedDict

import numpy as np

from medusa_sim.models.recurrent import GatedDelta, KimiDelta, Mamba2, Recurrent
from medusa_sim.operators.elementwise import READ_AND_WRITE, Elementwise
from medusa_sim.operators.gemm import Gemm
from medusa_sim.operators.recurrent import CHUNK, CONVOLUTION, STATE, RecurrentKind, chunk_flops
from medusa_sim.operators.recurrent import Recurrent as RecurrentKernel
from medusa_sim.step.launch import Launch
from medusa_sim.step.mixer_layers import KERNEL_PHASE, MixerLayers
from medusa_sim.units import BYTES_PER_ELEMENT

_TRAFFIC_BAND = (0.5, 1.35)
"""Ends of (K3) as multiples: states that fit L2; SGLang's fused kernel at two tokens."""
_CHUNK_SLOWDOWN = 3.0
_CHUNK_BAND = (0.4, 3.0)
"""(K4) over a linear layer of as many FLOPs: FlashInfer on an H100 1.4, Triton 9; ends around the middle."""


def recurrent_launches(mixer: Recurrent, layers: MixerLayers[Recurrent]) -> list[Launch]:
    """The kernels of one kind of recurrent layer."""
    convolution = layers.elementwise("causal_conv", READ_AND_WRITE, mixer.conv_width, "attention")
    return [
        layers.linear("in_proj", "qkv", mixer.input_width, layers.model.hidden),
        *(
            layers.unquantised_linear(name, n, k)
            for name, n, k in mixer.thin_projections(layers.model.hidden)
        ),
        _fitted(mixer, layers, "causal_conv", CONVOLUTION, convolution),
        _fitted(mixer, layers, "recurrence", STATE, _recurrence(mixer, layers)),
        layers.output_linear("out_proj", layers.model.hidden, mixer.output_width),
        layers.elementwise("gated_norm", "activation", mixer.output_width),
    ]


def _fitted(
    mixer: Recurrent, layers: MixerLayers[Recurrent], name: str, part: str, composed: Launch
) -> Launch:
    """The kernel that computes a part, and what stands for it where nobody fitted one."""
    phase, state_dtype = KERNEL_PHASE[layers.workload.phase], mixer.state_dtype
    fields = {"part": part, "phase": phase, "state_dtype": state_dtype, "conv_width": mixer.conv}
    return replace(layers.attention(RecurrentKernel, name, **fields, **_heads(mixer)), composed=(composed,))


class _Heads(TypedDict):
    """Kind, heads and their widths, as kernels count them."""

    kind: RecurrentKind
    heads: int
    key_heads: int
    key_dim: int
    value_dim: int


def _heads(mixer: Recurrent) -> _Heads:
    if isinstance(mixer, GatedDelta):
        return _Heads(
            kind="gdn",
            heads=mixer.value_heads,
            key_heads=mixer.key_heads,
            key_dim=mixer.key_dim,
            value_dim=mixer.value_dim,
        )
    if isinstance(mixer, KimiDelta):
        width, heads = mixer.head_dim, mixer.heads
        return _Heads(kind="kda", heads=heads, key_heads=heads, key_dim=width, value_dim=width)
    if isinstance(mixer, Mamba2):
        return _Heads(
            kind="mamba2",
            heads=mixer.heads,
            key_heads=mixer.groups,
            key_dim=mixer.state,
            value_dim=mixer.head_dim,
        )
    raise TypeError(f"no kernel of {type(mixer).__name__}")


def _recurrence(mixer: Recurrent, layers: MixerLayers[Recurrent]) -> Launch:
    workload = layers.workload
    batch, queries = (np.asarray(size, dtype=np.float64) for size in (workload.batch, workload.query_tokens))
    if workload.phase == "prefill":
        heads = _heads(mixer)
        chunk, flops = CHUNK[heads["kind"]], float(chunk_flops(**heads))
        width = _CHUNK_SLOWDOWN * flops / (2.0 * chunk)
        gemm = Gemm(
            name="chunk_scan", m=batch * queries, n=width, k=chunk, dtype=layers.model.activation_dtype
        )
        low, high = (replace(gemm, n=end * width) for end in _CHUNK_BAND)
        return Launch(operator=gemm, part="attention", count=layers.count, ends=(low, high))
    # an elementwise kernel reads and writes: two states
    states = 0.5 * batch * (1.0 + queries)
    dtype = layers.model.activation_dtype
    width = mixer.state_size * BYTES_PER_ELEMENT[mixer.state_dtype] / BYTES_PER_ELEMENT[dtype]
    kernel = Elementwise(name="recurrence", kind=READ_AND_WRITE, m=states, n=width, dtype=dtype)
    few, many = (replace(kernel, m=end * states) for end in _TRAFFIC_BAND)
    return Launch(operator=kernel, part="attention", count=layers.count, ends=(few, many))
