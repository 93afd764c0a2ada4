"""Mixers with a state -> kernels: projections, a convolution, the recurrence and its gated norm.

    (K3)  b S (1 + q) bytes: a state is read once, and one kept for each of q tokens, one after the other
    (K4)  prompts in chunks of C tokens: FLOPs by the token, states once a sequence

Convolution and recurrence are kernels of `operators.recurrent`, fitted for some cards and engines. Elsewhere
(K3) is priced as traffic of an elementwise kernel, (K4) as products of small matrices at a third of
a linear layer's rate. Those bands hold what public rows of other cards and engines show: two times faster
where states stay in L2, up to three times slower by library.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TypedDict

import numpy as np

from medusa_sim.operators.operator import Elementwise, Gemm
from medusa_sim.operators.recurrent import CONVOLUTION, STATE, RecurrentKind
from medusa_sim.operators.recurrent import Recurrent as Kernel
from medusa_sim.specs.recurrent import GatedDelta, KimiDelta, Mamba2
from medusa_sim.specs.recurrent import Recurrent as RecurrentMixer
from medusa_sim.step.attention import KERNEL_PHASE
from medusa_sim.step.workload import Launch, Mixing, elementwise_launch, head_launch, linear_launch
from medusa_sim.units import BYTES_PER_ELEMENT


class _Heads(TypedDict):
    kind: RecurrentKind
    heads: int
    key_heads: int
    key_dim: int
    value_dim: int


_TRAFFIC_BAND = (0.5, 1.35)
"""Ends of (K3) as multiples: states that fit L2; SGLang's fused kernel at two tokens."""
_CHUNK_SLOWDOWN = 3.0
_CHUNK_BAND = (0.4, 3.0)
"""(K4) over a linear layer of as many FLOPs: FlashInfer on an H100 1.4, Triton 9; ends around the middle."""


def recurrent_launches(mixer: RecurrentMixer, at: Mixing[RecurrentMixer]) -> list[Launch]:
    """The kernels of one kind of recurrent layer."""
    model, m, count = at.model, at.rows, at.count
    launches = [linear_launch(model, "in_proj", "qkv", m, mixer.input_width, model.hidden, count)]
    launches += [
        head_launch(model, name, "qkv", m, n, k, count) for name, n, k in mixer.thin_projections(model.hidden)
    ]
    convolution = elementwise_launch(model, "causal_conv", "rope", "attention", m, mixer.conv_width, count)
    return [
        *launches,
        _own(mixer, at, "causal_conv", CONVOLUTION, convolution),
        _own(mixer, at, "recurrence", STATE, _recurrence(mixer, at)),
        linear_launch(at.output_model, "out_proj", "o_proj", m, model.hidden, mixer.output_width, count),
        elementwise_launch(model, "gated_norm", "activation", "norm_rope", m, mixer.output_width, count),
    ]


def _own(mixer: RecurrentMixer, at: Mixing[RecurrentMixer], name: str, part: str, composed: Launch) -> Launch:
    """The kernel that computes a part, and what stands for it where nobody fitted one."""
    kernel = Kernel(
        name=name,
        batch=at.workload.batch,
        q_len=at.workload.query_tokens,
        conv_width=mixer.conv,
        part=part,
        phase=KERNEL_PHASE[at.workload.phase],
        dtype=at.model.activation_dtype,
        state_dtype=mixer.state_dtype,
        **_heads(mixer),
    )
    return Launch(operator=kernel, part=composed.part, count=composed.count, composed=(composed,))


def _heads(mixer: RecurrentMixer) -> _Heads:
    """Kind, heads and their widths, as kernels count them."""
    if isinstance(mixer, GatedDelta):
        return _Heads(
            kind="gdn",
            heads=mixer.value_heads,
            key_heads=mixer.key_heads,
            key_dim=mixer.key_dim,
            value_dim=mixer.value_dim,
        )
    if isinstance(mixer, KimiDelta):
        heads, width = mixer.heads, mixer.head_dim
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


def _recurrence(mixer: RecurrentMixer, at: Mixing[RecurrentMixer]) -> Launch:
    workload = at.workload
    batch, queries = (np.asarray(size, dtype=np.float64) for size in (workload.batch, workload.query_tokens))
    if workload.phase == "prefill":
        width = _CHUNK_SLOWDOWN * mixer.chunk_flops / (2.0 * mixer.chunk)
        gemm = Gemm(
            name="chunk_scan", m=batch * queries, n=width, k=mixer.chunk, dtype=at.model.activation_dtype
        )
        low, high = (replace(gemm, n=each * width) for each in _CHUNK_BAND)
        return Launch(operator=gemm, part="attention", count=at.count, ends=(low, high))
    # an elementwise kernel reads and writes: two states
    states = 0.5 * batch * (1.0 + queries)
    dtype = at.model.activation_dtype
    width = mixer.state_size * BYTES_PER_ELEMENT[mixer.state_dtype] / BYTES_PER_ELEMENT[dtype]
    kernel = Elementwise(name="recurrence", kind="rope", m=states, n=width, dtype=dtype)
    few, many = (replace(kernel, m=each * states) for each in _TRAFFIC_BAND)
    return Launch(operator=kernel, part="attention", count=at.count, ends=(few, many))
