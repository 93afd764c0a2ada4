"""Sparse attention and narrow windows: a step charges what the operator's own kernel takes."""

from io import StringIO

import numpy as np
import pandas as pd
import pytest
from asking import answered

from medusa_sim.arrays import FloatArray
from medusa_sim.latency.by_name import latency_model
from medusa_sim.operators.operator import CONTEXT, VERIFY, Operator
from medusa_sim.operators.sparse import Sparse
from medusa_sim.operators.window import WindowAttention
from medusa_sim.plan.scenario import Scenario
from medusa_sim.specs.gpu import load_gpu
from medusa_sim.specs.mixers import Latent, Mixer
from medusa_sim.specs.models import load_model
from medusa_sim.specs.runtime import load_runtime
from medusa_sim.specs.sparse import BlockSparse, Compressed
from medusa_sim.step.kernels import launch_time, priced
from medusa_sim.step.network import model_launches
from medusa_sim.step.workload import Launch, Workload, decode, prefill, verify

RUNTIME = load_runtime("vllm-0.33")
SPARSE = ("deepseek-v3.2", "glm-5", "glm-5.2", "minimax-m3", "deepseek-v4-flash")
WINDOWED = ("gpt-oss-20b", "mimo-v2-flash")
OF_ROWS = ("batch", "q_len", "prefix", "heads", "kv_heads", "head_dim", "window")
MODELS = {6144: "GLM-5", 7168: "DeepSeek-V3.2"}
"""By width; a width of MiniMax-M3 is that of GLM-5, whose other sizes its module has not."""
LATENCY = {
    gpu: latency_model(load_gpu(gpu), "calibrated", "sglang", library="vllm")
    for gpu in ("h100-sxm", "h200-sxm", "mi300x", "b200")
}


def modules(model: str, workload: Workload, gpu: str = "h100-sxm") -> list[Launch]:
    """Launches of a step that are timed by kernels of their own."""
    launches = model_launches(load_model(model), workload, RUNTIME)
    priceable = priced(LATENCY[gpu], launches)
    found = [each for each in priceable if isinstance(each.operator, Sparse | WindowAttention)]
    assert found
    return found


def as_row(operator: Operator) -> dict[str, object]:
    """A line of a table that names the operator, as measured rows do."""
    assert isinstance(operator, Sparse | WindowAttention)
    row: dict[str, object] = {
        name: float(np.max(size)) for name, size in operator.sizes.items() if name in OF_ROWS
    }
    row |= {"engine": "vllm", "op": operator.kind, "dtype": operator.dtype}
    row |= {"phase": operator.phase, "kv_cache_dtype": operator.stored_dtype}
    if isinstance(operator, Sparse):
        verifies = operator.phase == VERIFY
        row |= {"phase": CONTEXT if verifies else operator.phase, "verifies": verifies}
        name = "" if operator.kind == "msa" else MODELS.get(int(np.max(operator.hidden)), "")
        row |= {"model_name": name, "gemm_type": operator.gemm_dtype}
    return row


@pytest.mark.parametrize("model", [*SPARSE, *WINDOWED])
@pytest.mark.parametrize(
    "workload", [decode(16, 8192), verify(16, 8192, 4), prefill(1, 4096)], ids=["one", "four", "prompt"]
)
def test_a_table_of_the_operator_gives_what_a_step_charges(model, workload, tmp_path):
    launches = modules(model, workload)
    file = tmp_path / "ops.csv"
    pd.DataFrame([as_row(each.operator) for each in launches]).to_csv(file, index=False)
    result = answered("time", "--gpu", "h100-sxm", "--ops", str(file), "--format", "csv")
    lines = pd.read_csv(StringIO(result.stdout))
    charged = [float(launch_time(LATENCY["h100-sxm"], each).time_us) for each in launches]
    assert lines["predicted_us"].to_numpy() == pytest.approx(charged, rel=1e-3)


def test_a_module_of_deepseek_v3_2_decodes_as_measured():
    """128 heads, 64 requests, vLLM: 383 us at 4,096 tokens, 818 at 131,072 (aiconfigurator-core 0.12)."""
    found = modules("deepseek-v3.2", decode(64, np.array([4096, 131_072])))
    (each,) = [launch for launch in found if launch.count == max(launch.count for launch in found)]
    assert launch_time(LATENCY["h100-sxm"], each).time_us == pytest.approx([383.0, 818.0], rel=0.15)


@pytest.mark.parametrize("gpu", LATENCY)
@pytest.mark.parametrize("model", [*SPARSE, *WINDOWED])
def test_modules_cost_more_for_more_tokens_and_requests(model, gpu):
    def total_us(workload: Workload) -> FloatArray:
        times = [
            launch_time(LATENCY[gpu], each).time_us * each.count for each in modules(model, workload, gpu)
        ]
        return np.sum(np.broadcast_arrays(*times), axis=0)

    queries = np.array([1, 2, 4, 8])
    several = total_us(verify(32, 8192, queries))
    assert float(several[0]) == pytest.approx(float(total_us(decode(32, 8192))), rel=0.05)
    assert (np.diff(several) > -1e-6 * several[:-1]).all()
    assert several[-1] < 8.0 * several[0]
    assert (np.diff(total_us(decode(np.array([1, 16, 256]), 8192))) > 0.0).all()


@pytest.mark.parametrize("model", SPARSE)
def test_a_module_reads_the_weights_of_its_layer(model):
    spec = load_model(model)
    read = sum(
        each.count * float(np.max(each.operator.weights))
        for each in modules(model, decode(1, 16))
        if isinstance(each.operator, Sparse)
    )
    held = sum(
        count * mixer.weights(spec.hidden)
        for count, mixer in spec.blocks(Mixer)
        if (isinstance(mixer, Latent) and mixer.indexer) or isinstance(mixer, BlockSparse)
        or (isinstance(mixer, Compressed) and mixer.ratio)
    )  # fmt: skip
    assert read == pytest.approx(held, rel=0.02)


def test_wide_windows_stay_with_plain_kernels_and_cards_without_modules_say_so():
    """Window 1024: engines' plain steps of Gemma 3 are nearer to these (docs/log.md)."""
    launches = model_launches(load_model("gemma-3-27b"), decode(8, 4096), RUNTIME)
    assert not any(isinstance(each.operator, WindowAttention) for each in launches)
    warnings = " ".join(
        Scenario(model="deepseek-v3.2", gpu="a100-80gb-sxm", tp=8, runtime="vllm-0.33").warnings
    )
    assert "sparse attention" in warnings
    assert "no kernel is fitted" in warnings


def test_a_layer_that_reuses_a_choice_is_shorter():
    model = load_model("glm-5.2")
    launches = modules("glm-5.2", decode(64, 65_536))
    assert {each.operator.kind for each in launches} == {"dsa", "dsa_no_indexer"}
    time = {each.operator.kind: float(launch_time(LATENCY["h100-sxm"], each).time_us) for each in launches}
    assert time["dsa_no_indexer"] < 0.9 * time["dsa"]
    assert sum(each.count for each in launches) == model.layers
