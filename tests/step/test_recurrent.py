"""Layers with a state, hyper-connections: the fitted kernels of a step, and what stands for them."""

from pathlib import Path

import numpy as np
import pytest

from medusa_sim.arrays import FloatArray
from medusa_sim.latency.by_name import latency_model
from medusa_sim.plan.scenario import Scenario
from medusa_sim.specs.engine_facts import as_served
from medusa_sim.specs.gpu import load_gpu
from medusa_sim.specs.models import load_model
from medusa_sim.specs.runtime import load_runtime
from medusa_sim.step.kernels import launch_time
from medusa_sim.step.network import model_launches
from medusa_sim.step.workload import Workload, decode, prefill, verify

RUNTIME = load_runtime("vllm-0.33")
QUERIES = np.array([1, 2, 4, 8])
STATES = ("kimi-k3", "qwen3.5-27b", "nemotron-3-nano-30b-a3b")


def layer_us(model: str, gpu: str, workload: Workload, *names: str) -> FloatArray:
    """Time of the kernels of those names in one layer."""
    latency = latency_model(load_gpu(gpu), "calibrated", "sglang", library="vllm")
    launches = model_launches(load_model(model), workload, RUNTIME)
    times = [launch_time(latency, each).time_us for each in launches if each.operator.name in names]
    assert times
    return np.sum(np.broadcast_arrays(*times), axis=0)


def test_a_layer_of_kimi_k3_verifies_as_measured():
    """64 requests, 96 heads: 425, 720 and 1,313 us at 2, 4 and 8 tokens (aiconfigurator-core 0.12)."""
    found = layer_us("kimi-k3", "h100-sxm", verify(64, 1024, QUERIES), "recurrence")
    assert found[1:] == pytest.approx([425.0, 720.0, 1313.0], rel=0.1)


@pytest.mark.parametrize("gpu", ["h100-sxm", "h200-sxm", "b200", "l40s"])
@pytest.mark.parametrize("model", STATES)
def test_states_cost_by_request_and_token_and_not_by_length(model, gpu):
    both = ("recurrence", "causal_conv")
    plain = layer_us(model, gpu, decode(16, np.array([1, 1024, 262_144])), *both)
    assert np.ptp(plain) == 0.0
    few, many = (layer_us(model, gpu, verify(batch, 1024, QUERIES), *both) for batch in (64, 256))
    assert float(few[0]) == pytest.approx(float(layer_us(model, gpu, decode(64, 1024), *both)))
    assert np.all(np.diff(few) > 0.0)
    assert np.all(np.diff(many) > np.diff(few))
    assert np.all(many > 2.0 * few)
    prompts = layer_us(model, gpu, prefill(1, np.array([1024, 4096])), *both)
    assert 1.5 * prompts[0] < prompts[1] < 5.0 * prompts[0]


def test_streams_are_mixed_before_and_after_every_block():
    found = layer_us("deepseek-v4-flash", "h100-sxm", decode(np.array([1, 4096]), 64), "hyper_connections")
    moved = 4096 * 4096 * 2 * (5 + 9) / load_gpu("h100-sxm").bandwidth_bytes_per_s * 1e6
    assert moved < found[1] < 4.0 * moved
    assert found[0] < 0.2 * found[1]


def test_what_has_no_fitted_kernel_is_composed_and_says_so(tmp_path):
    """A card of the user's own, whose file borrows no kernels of linear attention."""
    (tmp_path / "hardware").mkdir()
    lines = Path(load_gpu("a40").path).read_text().replace('name = "a40"', 'name = "mine"').splitlines()
    kept = [line for line in lines if not line.startswith("recurrent =") and '"a40:' not in line]
    (tmp_path / "hardware" / "mine.toml").write_text("\n".join(kept))
    fitted, composed = (
        " ".join(Scenario(model="qwen3.5-27b", gpu=gpu, latency="calibrated", data_dir=tmp_path).warnings)
        for gpu in ("h100-sxm", "mine")
    )
    assert "no kernel is fitted" not in fitted
    assert "linear attention" in composed


def test_tensorrt_llm_keeps_gated_delta_states_in_16_bits():
    """Its `resolve_ssm_cache_dtype`; convolutions are in 16 bits anyway, KDA as its config says."""
    model = load_model("qwen3-next-80b-a3b")
    served = as_served(model, "trtllm")
    assert as_served(model, "vllm") is model
    windows = 2.0 * served.state_bytes - model.state_bytes
    assert 0.0 < windows < 0.05 * model.state_bytes
    kimi = load_model("kimi-linear-48b-a3b")
    assert as_served(kimi, "trtllm").state_bytes == kimi.state_bytes
