"""Model and workload -> the kernels that one step launches on each GPU.

`scope="block"` is the paper's simplified block (Q, K, V, QK^T, PV, up, gate, down), once.
`scope="model"` is what an engine runs: every layer with norms, rope, output projection, residuals
and activation, then the LM head and the choice of the next token.

The model is what one GPU holds of it (`specs.variants.on_one_gpu`).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

import numpy as np

from medusa_sim.operators.operator import Elementwise, Size
from medusa_sim.operators.stream import AFTER, BEFORE, HyperConnection
from medusa_sim.specs.engine import Engine
from medusa_sim.specs.mixers import Mixer
from medusa_sim.specs.model import Model
from medusa_sim.specs.parallel import ONE
from medusa_sim.specs.runtime import Runtime
from medusa_sim.step.exchange import exchange_launches
from medusa_sim.step.feed_forward import feed_forward_launches
from medusa_sim.step.mixers import mixer_launches
from medusa_sim.step.workload import Launch, Scope, Workload, elementwise_launch, head_launch


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
    parts = (each for launch in launches for each in (launch.composed[1:] and launch.composed) or (launch,))
    return tuple(
        launch for launch in parts if launch.part != "o_proj" and not isinstance(launch.operator, Elementwise)
    )


def model_launches(model: Model, workload: Workload, runtime: Runtime) -> tuple[Launch, ...]:
    """Everything an engine launches to turn token ids into next-token choices, drafting apart.

    The LM head and the choice run on the last token of a prompt, and on every candidate of a
    verification step. A serving engine adds residuals inside the norms and merges other small kernels.
    Under data-parallel attention a GPU has its own sequences, but for experts and MLPs the tokens of all.
    """
    own = workload.on_one_gpu(model.parallel)
    m, hidden = own.rows, model.hidden
    norms = model.norms_per_layer * model.block_count // 2
    logit_rows = workload.batch if workload.phase == "prefill" else workload.tokens
    launches = [
        elementwise_launch(model, "embedding", "embedding", "embedding", m, hidden),
        elementwise_launch(model, "norms", "rms_norm", "norm_rope", m, hidden, norms),
        *mixer_launches(model, own, runtime),
        *_residual_launches(model, m),
        *feed_forward_launches(model, workload, runtime),
        elementwise_launch(model, "final_norm", "rms_norm", "norm_rope", m, hidden),
        *exchange_launches(model, workload, own, logit_rows),
        head_launch(model, "lm_head", "lm_head", logit_rows, model.vocab, hidden),
        elementwise_launch(model, "next_token", "next_token", "accept", logit_rows, model.whole_vocab),
    ]
    return tuple(launches) if runtime.engine is None else _compiled(launches, runtime.engine)


_CONNECTION_WIDTHS = {BEFORE: (0.5, 0.5), AFTER: (1.0, 0.5)}
"""Hidden widths a token, for each stream and beside, that a kernel both reads and writes: half of (J1)."""
_CONNECTION_ENDS = (0.5, 2.0)
"""Ends where no kernel is fitted."""


def _residual_launches(model: Model, m: Size) -> list[Launch]:
    """What adds a mixer or feed-forward part to the residual stream, or mixes several streams around it."""
    hidden, sites = model.hidden, model.block_count
    if model.streams == 1:
        return [elementwise_launch(model, "residuals", "residual", "norm_rope", m, hidden, sites)]
    launches = []
    for part, (each, beside) in _CONNECTION_WIDTHS.items():
        width = (each * model.streams + beside) * hidden
        mid, low, high = (
            elementwise_launch(
                model, "hyper_connections", "rope", "norm_rope", m, round(share * width), sites
            )
            for share in (1.0, *_CONNECTION_ENDS)
        )
        composed = replace(mid, ends=(low.operator, high.operator))
        kernel = HyperConnection(
            name="hyper_connections",
            tokens=m,
            hidden=hidden,
            streams=model.streams,
            part=part,
            dtype=model.activation_dtype,
        )
        launches.append(replace(mid, operator=kernel, composed=(composed,)))
    return launches


_MERGED = ("norms", "final_norm", "qk_norm", "latent_norm", "rope", "activation", "shared_activation")
"""Operators that a compiler merges with their neighbours."""


def _compiled(launches: Iterable[Launch], engine: Engine) -> tuple[Launch, ...]:
    """As an engine compiles them: residual adds inside the norms, a share of the other elementwise time."""
    share = engine.elementwise_share.value
    return tuple(
        replace(launch, share=share) if launch.operator.name in _MERGED else launch
        for launch in launches
        if launch.operator.name != "residuals" or not engine.fused_residual
    )


def step_launches(model: Model, workload: Workload, runtime: Runtime, scope: Scope) -> tuple[Launch, ...]:
    """The kernels of one step without drafting, for the chosen scope."""
    if scope == "block":
        return block_launches(model, workload, runtime)
    return model_launches(model, workload, runtime)


def acceptance_launches(model: Model, workload: Workload, depth: int) -> tuple[Launch, ...]:
    """Tree bookkeeping, acceptance and cache compaction after the LM head.

    Gathering the candidates, comparing them with the target's choice, the running product along the
    paths and the best path are four kernels over the candidates; compaction copies the KV rows of at
    most depth + 1 accepted tokens of every layer.
    """
    rows: dict[int, int] = {}
    for count, mixer in model.blocks(Mixer):
        if mixer.row:
            rows[mixer.row] = rows.get(mixer.row, 0) + count
    tree = elementwise_launch(model, "tree_bookkeeping", "residual", "accept", workload.tokens, depth + 1, 4)
    return (
        tree,
        *(
            elementwise_launch(
                model,
                "cache_compaction",
                "embedding",
                "accept",
                np.asarray(workload.batch) * ((depth + 1) * count),
                row,
            )
            for row, count in rows.items()
        ),
    )
