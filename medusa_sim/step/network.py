"""Model and workload -> the kernels that one step launches on each GPU.

`scope="block"` is the paper's simplified block (Q, K, V, QK^T, PV, up, gate, down), once.
`scope="model"` is what an engine runs: every layer with norms, rope, output projection, residuals
and activation, then the LM head and sampling.

The model is what one GPU holds of it (`models.variants.on_one_gpu`). Each kind of block has its module:
mixers (`attention`, `latent`, `sparse`, `recurrent`), `feed_forward`, `residual`, and what GPUs send each
other, `exchange`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any

from medusa_sim.engines.engine import Engine
from medusa_sim.engines.runtime import Runtime
from medusa_sim.models.mixers import Grouped, Latent, Mixer
from medusa_sim.models.model import Model
from medusa_sim.models.parallel import ONE
from medusa_sim.models.recurrent import GatedDelta, KimiDelta, Mamba2
from medusa_sim.models.sparse import BlockSparse, Compressed
from medusa_sim.operators.elementwise import Elementwise
from medusa_sim.operators.operator import Size
from medusa_sim.step import Scope
from medusa_sim.step.attention import grouped_launches
from medusa_sim.step.exchange import exchange_launches
from medusa_sim.step.feed_forward import feed_forward_launches
from medusa_sim.step.fusions import fused
from medusa_sim.step.launch import PARTS, Launch, elementwise_launch, head_launch
from medusa_sim.step.mixer_layers import MixerLayers
from medusa_sim.step.recurrent import recurrent_launches
from medusa_sim.step.residual import residual_launches
from medusa_sim.step.sparse import block_sparse_launches, compressed_launches, sparse_latent_launches
from medusa_sim.step.workload import Workload

_MIXERS: dict[type[Mixer], Callable[[Any, MixerLayers[Any]], list[Launch]]] = {
    Grouped: grouped_launches,
    BlockSparse: block_sparse_launches,
    Compressed: compressed_launches,
    GatedDelta: recurrent_launches,
    KimiDelta: recurrent_launches,
    Latent: sparse_latent_launches,
    Mamba2: recurrent_launches,
}
"""What builds the kernels of layers with a mixer of each kind; it is handed the mixer without its window."""
_MERGED = (
    "norms", "final_norm", "qk_norm", "latent_norm", "rope", "activation", "shared_activation", "mixer_sum"
)  # fmt: skip
"""Operators that a compiler merges with their neighbours."""
LOGIT_OPERATORS = ("lm_head", "logit_gather", "next_token")
"""Operators on the rows whose next token is chosen: of a prompt its last one alone."""


def step_launches(model: Model, workload: Workload, runtime: Runtime, scope: Scope) -> tuple[Launch, ...]:
    """The kernels of one step without drafting, for the chosen scope."""
    if scope == "block":
        return block_launches(model, workload, runtime)
    return model_launches(model, workload, runtime)


def model_launches(model: Model, workload: Workload, runtime: Runtime) -> tuple[Launch, ...]:
    """Everything an engine launches to turn token ids into next-token choices, drafting apart.

    The LM head and sampling run on the last token of a prompt, and on every candidate of a
    verification step. A serving engine adds residuals inside the norms and merges other small kernels.
    Under data-parallel attention a GPU has its own sequences, but for experts and MLPs the tokens of all.
    """
    local = workload.on_one_gpu(model.parallel)
    m, hidden = local.rows, model.hidden
    norms = model.norms_per_layer * model.block_count // 2
    logit_rows = workload.batch if workload.phase == "prefill" else workload.tokens
    launches = [
        elementwise_launch(model, "embedding", "embedding", "embedding", m, hidden),
        elementwise_launch(model, "norms", "rms_norm", "norm_rope", m, hidden, norms),
        *mixer_launches(model, local, runtime),
        *residual_launches(model, m),
        *feed_forward_launches(model, workload, runtime),
        elementwise_launch(model, "final_norm", "rms_norm", "norm_rope", m, hidden),
        *exchange_launches(model, workload, local, logit_rows, runtime),
        head_launch(model, "lm_head", "lm_head", logit_rows, model.vocab, hidden),
        elementwise_launch(model, "next_token", "next_token", "accept", logit_rows, model.whole_vocab),
    ]
    if runtime.engine is None:
        return tuple(launches)
    return fused(_compiled(launches, runtime.engine), model, workload, runtime.engine)


def _compiled(launches: Iterable[Launch], engine: Engine) -> tuple[Launch, ...]:
    """As an engine compiles them: residual adds inside the norms, a share of the other elementwise time."""
    share = engine.elementwise_share.value
    return tuple(
        replace(launch, share=share) if launch.operator.name in _MERGED else launch
        for launch in launches
        if launch.operator.name != "residuals" or not engine.fused_residual
    )


def block_launches(model: Model, workload: Workload, runtime: Runtime) -> tuple[Launch, ...]:
    """The paper's simplified block (appendix G.3): linear layers and attention products, once.

    Unfused products use s keys, as Table 5 does; a fused kernel attends to s + q. Of a model with experts the
    block is `Model.last_layer`.
    """
    one = replace(model.resized(layers=1), parallel=ONE)
    exact = replace(workload, padded_rows=None)
    launches = [
        *mixer_launches(one, exact, runtime, unfused_keys=workload.seq_len),
        *feed_forward_launches(one, exact, runtime),
    ]
    parts = (part for launch in launches for part in (launch.composed[1:] and launch.composed) or (launch,))
    return tuple(
        launch for launch in parts if launch.part != "o_proj" and not isinstance(launch.operator, Elementwise)
    )


def mixer_launches(
    model: Model, workload: Workload, runtime: Runtime, unfused_keys: Size | None = None
) -> list[Launch]:
    """The kernels of all mixers of a model, in the order of PARTS, elementwise ones last.

    unfused_keys: keys of unfused products, those of the workload unless given.
    """
    variants_of: dict[Mixer, list[tuple[int, Mixer]]] = {}
    for count, mixer in model.blocks(Mixer):
        variants_of.setdefault(mixer.unwindowed(), []).append((count, mixer))
    launches = []
    for mixer_kind, variants in variants_of.items():
        layers = MixerLayers(
            model=model.in_form(mixer_kind.form),
            variants=tuple(variants),
            workload=workload,
            runtime=runtime,
            unfused_keys=workload.kv_len if unfused_keys is None else unfused_keys,
        )
        launches += _MIXERS[type(mixer_kind)](mixer_kind, layers)
    return sorted(launches, key=_in_order)


def _in_order(launch: Launch) -> tuple[bool, int]:
    """Place of a launch among those of mixers."""
    return isinstance(launch.operator, Elementwise), PARTS.index(launch.part)
