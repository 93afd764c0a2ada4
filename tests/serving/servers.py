"""Settings of servers, and steps seen through them."""

import numpy as np

from medusa_sim.engines.runtime import Runtime, load_runtime
from medusa_sim.gpus.gpu import load_gpu
from medusa_sim.latency.cached import cached
from medusa_sim.latency.calibrated import CalibratedLatency
from medusa_sim.models.named import load_model
from medusa_sim.serving.server import FullServer, ServedCells, Server, in_server
from medusa_sim.serving.traffic import Traffic, served_length
from medusa_sim.step.setting import Setting
from medusa_sim.step.step import decode_step

LATENCY = cached(CalibratedLatency(load_gpu("h100-sxm"), "sglang"))
CHAT = Traffic(prompt_tokens=512.0, output_tokens=256.0, prompt_cv=0.4, output_cv=0.4)


def setting(runtime: str | Runtime = "vllm-0.11", model: str = "llama-3.1-8b", **more: object) -> Setting:
    named = load_runtime(runtime) if isinstance(runtime, str) else runtime
    given = {"latency": LATENCY, "model": load_model(model), "runtime": named}
    return Setting(**given | more, scope="model")


def served(
    of: Setting,
    step_us: object,
    requests: object,
    candidates: object,
    tokens: object,
    traffic: Traffic | None,
    **more: object,
) -> Server:
    cells = ServedCells(
        setting=of, requests=requests, candidates=candidates, tokens_per_step=tokens, step_us=step_us, **more
    )
    return in_server(cells, traffic)


def plain(
    of: Setting, batch: object, traffic: Traffic | None, tokens: float = 1.0
) -> tuple[np.ndarray, Server]:
    length = served_length(of, 512, traffic)
    step = decode_step(of, np.asarray(batch), np.asarray(length))
    attention_us = step.parts_us["attention"]
    seen = served(of, step.time_us, batch, 1, np.asarray(tokens), traffic, attention_us=attention_us)
    return step.time_us, seen


def full(of: Setting, batch: object, traffic: Traffic, tokens: float = 1.0) -> FullServer:
    seen = plain(of, batch, traffic, tokens)[1]
    assert isinstance(seen, FullServer)
    return seen
