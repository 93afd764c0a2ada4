"""Kernels that an engine merges or runs beside others."""

import numpy as np
import pytest

from medusa_sim.scenario.scenario import Scenario
from medusa_sim.step.network import model_launches
from medusa_sim.step.step import decode_step, decode_work
from medusa_sim.step.workload import prefill


def _setting(gpu: str, model: str = "kimi-k3", runtime: str = "sglang-0.5"):
    return Scenario(gpu=gpu, model=model, runtime=runtime, tp=8, drafter="ngram", acceptance="0.5").setting


def _launches(setting, prompt: bool = False):
    if prompt:
        found = model_launches(setting.model, prefill(np.asarray(1.0), np.asarray(64.0)), setting.runtime)
    else:
        found = decode_work(setting, np.asarray(1.0), np.asarray(64.0)).launches
    return {launch.operator.name: launch for launch in found}


THIN = {"beta_proj", "decay_a_proj", "decay_b_proj", "gate_proj", "causal_conv", "gated_norm", "gate"}
SHARED = {"shared_down_proj", "shared_activation"}


@pytest.mark.parametrize(("gpu", "beside"), [("b300", THIN | SHARED), ("h200-sxm", THIN), ("mi355x", set())])
def test_kimi_k3_in_sglang_reads_its_input_once_and_hides_small_products(gpu, beside):
    launches = _launches(_setting(gpu))
    assert launches["router"].operator.n == 896 + 3584 + 2 * 6144 / 8
    assert not {"latent_in_proj", "shared_gate_up_proj"} & launches.keys()
    assert {name for name, launch in launches.items() if launch.share == 0.0} == beside
    assert _launches(_setting(gpu), prompt=True)["shared_down_proj"].share != 0.0


def test_what_runs_beside_takes_no_time():
    setting = _setting("b300")
    launches = _launches(setting)
    hidden = [launch for launch in launches.values() if launch.share == 0.0]
    assert len(hidden) == len(THIN | SHARED)
    step = decode_step(setting, np.asarray(1.0), np.asarray(64.0)).cost
    other = decode_step(_setting("b300", runtime="vllm-0.24"), np.asarray(1.0), np.asarray(64.0)).cost
    assert 6e3 < float(step.device_us) < 0.9 * float(other.device_us)


@pytest.mark.parametrize(
    ("model", "runtime"),
    [
        ("kimi-k3", "vllm-0.24"),
        ("nemotron-3-super-120b-a12b", "sglang-0.5"),
        ("kimi-linear-48b-a3b", "sglang-0.5"),
    ],
)
def test_others_launch_every_kernel(model, runtime):
    launches = _launches(_setting("b300", model, runtime))
    assert min(launch.share for launch in launches.values()) > 0.0
    assert "shared_down_proj" in launches
    assert "shared_gate_up_proj" in launches or "shared_up_proj" in launches
