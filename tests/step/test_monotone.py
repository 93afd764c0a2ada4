"""A step takes no less for one more request or a longer context, whatever chose the kernels."""

from functools import cache

import numpy as np
import pytest

from medusa_sim.errors import MedusaSimError
from medusa_sim.gpus.gpu import load_gpu
from medusa_sim.gpus.gpu_names import gpu_names
from medusa_sim.scenario.scenario import Scenario
from medusa_sim.step.setting import Setting
from medusa_sim.step.step import decode_step, speculative_step

CARDS = [name for name in gpu_names() if load_gpu(name).architecture != "cpu"]
MODELS = (
    ("llama-3.1-8b", 1), ("llama-3.1-70b", 4), ("qwen3-32b", 8), ("qwen3-30b-a3b", 1), ("gpt-oss-120b", 1),
    ("deepseek-v3", 8), ("nemotron-3-nano-30b-a3b", 1),
)  # fmt: skip
REQUESTS = np.arange(1, 513)
LENGTHS = np.unique(np.concatenate([np.arange(64, 4096, 64), np.arange(4096, 32_769, 256)]))
DRAFTS = 3


@cache
def setting(gpu: str, model: str, tp: int, runtime: str) -> Setting | None:
    try:
        named = {"gpu": gpu, "model": model, "tp": tp, "runtime": runtime}
        return Scenario(**named, drafter="ngram", acceptance="0.5").setting
    except MedusaSimError:  # memory, or an engine that does not run there
        return None


@pytest.mark.parametrize("runtime", ["vllm", "sglang"])
@pytest.mark.parametrize("gpu", CARDS)
def test_one_more_request_never_saves_more_than_three_per_cent(gpu, runtime):
    """Libraries do change tiles; lines drawn on beyond their rows once saved 31 %."""
    for model, tp in MODELS:
        if (of := setting(gpu, model, tp, runtime)) is not None:
            time_us = decode_step(of, REQUESTS, 640).time_us
            assert (time_us[1:] / time_us[:-1]).min() > 0.97, model


@pytest.mark.parametrize("runtime", ["vllm", "sglang"])
@pytest.mark.parametrize("gpu", CARDS)
def test_a_longer_context_is_never_faster(gpu, runtime):
    """Keys of equal lengths divide more evenly at some: a longer context was up to 20 % faster."""
    batches = np.array([1, 2, 4, 8, 12, 16, 32, 48, 64, 128])[:, None]
    for model, tp in MODELS:
        if (of := setting(gpu, model, tp, runtime)) is not None:
            for step in (
                decode_step(of, batches, LENGTHS),
                speculative_step(of, batches, LENGTHS, DRAFTS + 1),
            ):
                longest = np.maximum.accumulate(step.time_us, axis=1)
                assert (step.time_us / longest).min() > 0.99, model
