"""Sampling in a server: top-p and top-k of its requests, and what the host does for each token.

    (N6)  filter   = filter_us + (filter_bytes / B + filter_us_per_million) V (1 + top_k)
                     (min(rows, full) + beyond max(rows - full, 0))

of rows of logits of a vocabulary V, B the GPU's bandwidth. full and beyond are the engine's filter_full_rows
and filter_share_beyond, top_k its filter_top_k_share where top-k is asked as well as top-p, else 0. Tests of
an engine without a server ask for neither; a server follows the model's `generation_config`.
"""

from __future__ import annotations

import numpy as np

from medusa_sim.arrays import FloatArray
from medusa_sim.engines.engine import Engine
from medusa_sim.gpus.gpu import Gpu
from medusa_sim.operators.operator import Size
from medusa_sim.step.host import NOTHING_ADDED, Added
from medusa_sim.step.setting import Setting
from medusa_sim.step.workload import of_fullest
from medusa_sim.units import US_PER_S


def sampled(setting: Setting, batch: Size, candidates: Size, tokens_per_step: Size) -> Added:
    """What a server adds to a step of `batch` requests: (N6), and the host's work for every token sent.

    All broadcast; microseconds. 0 for scope `block` and where the runtime is no engine.
    """
    engine = setting.runtime.engine
    if engine is None or setting.scope == "block":
        return NOTHING_ADDED
    requests = of_fullest(batch, setting.parallel.schedulers)
    rows = requests * setting.verified.mean_tokens(candidates)
    model = setting.model
    filtered_us = filter_us(
        engine, setting.latency.gpu, rows, model.filtered_vocab, top_k=model.samples_top_k
    )
    band = max(engine.filter_us.band, engine.filter_bytes_per_logit.band, engine.filter_us_per_million.band)
    sent = requests * tokens_per_step
    return Added(
        np.asarray(filtered_us + engine.host_us_per_token.value * sent),
        np.hypot(band * filtered_us, engine.host_us_per_token.half_width * sent),
    )


def filter_us(engine: Engine, gpu: Gpu, rows: Size, vocab: int, *, top_k: bool) -> FloatArray:
    """Top-p (and top-k) of the requests of a server over `rows` rows of logits (N6), microseconds.

    vocab: 0 where the model's generation_config asks for neither.
    """
    asked = np.asarray(rows, dtype=np.float64)
    full = engine.filter_full_rows.value
    counted = np.minimum(asked, full) + engine.filter_share_beyond.value * np.maximum(asked - full, 0.0)
    if not vocab:
        return np.zeros(asked.shape)
    logits = vocab * (1.0 + engine.filter_top_k_share.value * top_k) * counted
    each_us = engine.filter_us_per_million.value / 1e6
    each_us += engine.filter_bytes_per_logit.value / gpu.bandwidth_bytes_per_s * US_PER_S
    return np.asarray(engine.filter_us.value + each_us * logits)
