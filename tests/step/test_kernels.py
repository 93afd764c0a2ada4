"""Kernels of their own (sparse, windows, recurrent, exchanges): times that a step and a table take."""

from io import StringIO
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
from asking import answered

from medusa_sim.arrays import FloatArray
from medusa_sim.doubts.of_scenario import scenario_doubts
from medusa_sim.engines.runtime import load_runtime
from medusa_sim.errors import SpecError
from medusa_sim.gpus.gpu import load_gpu
from medusa_sim.latency.calibrated import CalibratedLatency
from medusa_sim.latency.roofline import RooflineLatency
from medusa_sim.models.mixers import Latent, Mixer
from medusa_sim.models.named import load_model
from medusa_sim.models.recurrent import Recurrent
from medusa_sim.models.sparse import BlockSparse, Compressed
from medusa_sim.models.state_rules import as_served
from medusa_sim.operators.collective import Collective
from medusa_sim.operators.operator import CONTEXT, VERIFY, Operator
from medusa_sim.operators.sparse import Sparse
from medusa_sim.operators.table import check_rows
from medusa_sim.operators.window import WindowAttention
from medusa_sim.scenario.scenario import Scenario
from medusa_sim.step.host import host_share, overlapped_us
from medusa_sim.step.kernels import decomposed, launch_time
from medusa_sim.step.launch import Launch
from medusa_sim.step.network import model_launches
from medusa_sim.step.residual import residual_launches
from medusa_sim.step.rows import predicted_rows
from medusa_sim.step.sparse import _compressed_attention
from medusa_sim.step.workload import Workload, decode, prefill, verify
from medusa_sim.units import US_PER_S

RUNTIME = load_runtime("vllm-0.33")
SPARSE = ("deepseek-v3.2", "glm-5", "glm-5.2", "minimax-m3", "deepseek-v4-flash")
WINDOWED = ("gpt-oss-20b", "mimo-v2-flash")
OF_ROWS = ("batch", "q_len", "prefix", "heads", "kv_heads", "head_dim", "window")
MODELS = {6144: "GLM-5", 7168: "DeepSeek-V3.2"}
"""By width; a width of MiniMax-M3 is that of GLM-5, whose other sizes its module has not."""
LATENCY = {
    gpu: CalibratedLatency(load_gpu(gpu), "sglang", library="vllm")
    for gpu in ("h100-sxm", "h200-sxm", "mi300x", "b200")
}


def modules(model: str, workload: Workload, gpu: str = "h100-sxm") -> list[Launch]:
    """Launches of a step that are timed by kernels of their own."""
    launches = model_launches(load_model(model), workload, RUNTIME)
    priceable = decomposed(LATENCY[gpu], launches)
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
    as_measured = CalibratedLatency(load_gpu("h100-sxm"), "sglang", library="vllm", cold=False)
    assert as_measured.time(each.operator).time_us == pytest.approx([383.0, 818.0], rel=0.15)


@pytest.mark.parametrize("gpu", ["h100-sxm", "h200-sxm", "b200", "gb200"])
def test_a_step_holds_no_gaps_between_the_launches_of_a_module(gpu):
    """vLLM's rows of DeepSeek's sparse attention take 165 to 250 us a layer, SGLang's 76 to 100."""
    model = load_model("deepseek-v3.2")
    launches = model_launches(model, decode(np.array([1, 16, 256]), 8192), RUNTIME)
    (module,) = [each.operator for each in launches if isinstance(each.operator, Sparse)][:1]
    times = {
        library: CalibratedLatency(load_gpu(gpu), "sglang", library=library).time(module)
        for library in ("vllm", "sglang", "trtllm")
    }
    for name in ("vllm", "trtllm"):
        assert (times[name].time_us <= times["sglang"].time_us * (1.0 + 1e-9)).all()
        assert times[name].low_us[0] <= 0.61 * times[name].time_us[0]
        assert times[name].high_us[0] > 1.05 * times[name].time_us[0]


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
    """Window 1024: engines' plain steps of Gemma 3 are nearer to these (benchmarks/log)."""
    launches = model_launches(load_model("gemma-3-27b"), decode(8, 4096), RUNTIME)
    assert not any(isinstance(each.operator, WindowAttention) for each in launches)
    warnings = " ".join(
        scenario_doubts(Scenario(model="deepseek-v3.2", gpu="a100-80gb-sxm", tp=8, runtime="vllm-0.33"))
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


QUERIES = np.array([1, 2, 4, 8])
STATES = ("kimi-k3", "qwen3.5-27b", "nemotron-3-nano-30b-a3b")


def layer_us(model: str, gpu: str, workload: Workload, *names: str) -> FloatArray:
    """Time of the kernels of those names in one layer."""
    latency = CalibratedLatency(load_gpu(gpu), "sglang", library="vllm")
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
    moved = 2 * 4096 * 4096 * 2 * (5 + 9) / load_gpu("h100-sxm").bandwidth_bytes_per_s * 1e6
    assert moved < found[1] < 4.0 * moved
    assert found[0] < 0.2 * found[1]


def test_both_places_of_a_layer_are_priced_as_the_rows_timed_them():
    """One place alone would be charged the start of both: DeepSeek-V4-Flash 1.2 ms a step."""
    model, gpu = load_model("deepseek-v4-flash"), load_gpu("h100-sxm")
    launches = residual_launches(model, np.array(1))
    assert [each.operator.sites * each.count for each in launches] == [model.block_count] * 2
    assert {each.operator.sites for each in launches} == {2}
    latency = CalibratedLatency(gpu, kernels="vllm", library="vllm")
    told = sum(each.count * float(latency.time(each.operator).time_us) for each in launches)
    rows_us = 20.8 + 8.3  # of one token, 7,168 wide (H100, vLLM 0.24)
    assert told == pytest.approx(model.layers * rows_us, rel=0.05)


def test_what_has_no_fitted_kernel_is_composed_and_says_so(tmp_path):
    """A GPU of the user's own, whose file borrows no kernels of linear attention."""
    (tmp_path / "hardware").mkdir()
    lines = Path(load_gpu("a40").path).read_text().replace('name = "a40"', 'name = "mine"').splitlines()
    kept = [line for line in lines if not line.startswith("recurrent =") and '"a40:' not in line]
    (tmp_path / "hardware" / "mine.toml").write_text("\n".join(kept))
    fitted, composed = (
        " ".join(
            scenario_doubts(Scenario(model="qwen3.5-27b", gpu=gpu, latency="calibrated", data_dir=tmp_path))
        )
        for gpu in ("h100-sxm", "mine")
    )
    assert "no kernel is fitted" not in fitted
    assert "linear attention" in composed


HEADS_OF_STATES = {
    "qwen3-next-80b-a3b": 32 * 128 * 128, "kimi-linear-48b-a3b": 32 * 128 * 128,
    "nemotron-3-nano-30b-a3b": 64 * 64 * 128,
}  # fmt: skip
"""Entries of a layer's states of one request: value heads (or heads) x key width x value width."""


@pytest.mark.parametrize("name", HEADS_OF_STATES)
@pytest.mark.parametrize("tokens", [1, 4])
def test_a_recurrence_that_nobody_fitted_reads_its_states_once_and_writes_one_a_token(name, tokens):
    """(K3), on the roofline of an H100: b S (1 + q) bytes, fp32."""
    workload = decode(16, 1024) if tokens == 1 else verify(16, 1024, tokens)
    kernel = composed_recurrence(name, workload)
    moved = 4 * HEADS_OF_STATES[name] * 16 * (1 + tokens)
    gpu = load_gpu("h100-sxm")
    time_us = launch_time(RooflineLatency(gpu), kernel).time_us
    assert float(time_us) == pytest.approx(moved / gpu.bandwidth_bytes_per_s * US_PER_S, rel=1e-9)
    ends = [float(end.bytes) / moved for end in kernel.ends]
    assert ends == pytest.approx([0.5, 1.35])


@pytest.mark.parametrize(
    ("name", "token_flops"),
    [
        ("qwen3-next-80b-a3b", 32 * (6 * 128 * 128 + 64 * 10 * 128 + 64**2 / 3)),
        ("kimi-linear-48b-a3b", 32 * (6 * 128 * 128 + 64 * 10 * 128 + 64**2 / 3)),
        ("nemotron-3-nano-30b-a3b", 2 * 128 * (8 * 128 + 64 * 64) + 4 * 64 * 64 * 128),
    ],
)
def test_a_prompt_of_a_recurrence_that_nobody_fitted_runs_at_a_third_of_a_linear_layers_rate(
    name, token_flops
):
    """(K4), (B4): chunks of 64, those of Mamba-2 of 128."""
    kernel = composed_recurrence(name, prefill(2, 1000))
    assert float(kernel.operator.flops) == pytest.approx(3 * 2000 * token_flops, rel=1e-9)
    ends = [float(end.flops / kernel.operator.flops) for end in kernel.ends]
    assert ends == pytest.approx([0.4, 3.0])
    fitted = named(name, prefill(2, 1000), "recurrence").operator
    assert float(fitted.flops) == pytest.approx(2000 * token_flops, rel=1e-9)


def composed_recurrence(name: str, workload: Workload) -> Launch:
    """What the recurrence of a model's layers is priced as where no kernel of its own is fitted."""
    own = named(name, workload, "recurrence")
    (kernel,) = own.composed
    assert own.count == kernel.count
    return kernel


def named(model: str, workload: Workload, name: str) -> Launch:
    """The first kernel of that name among a model's."""
    launches = model_launches(load_model(model), workload, RUNTIME)
    return next(each for each in launches if each.operator.name == name)


@pytest.mark.parametrize(
    ("name", "vllm", "sglang", "trtllm"),
    [
        ("qwen3-next-80b-a3b", "bf16", "fp32", "bf16"),
        ("qwen3.5-27b", "fp32", "fp32", "bf16"),
        ("nemotron-3-nano-30b-a3b", "fp32", "fp32", "fp32"),
        ("kimi-linear-48b-a3b", "fp32", "fp32", "fp32"),
    ],
)
def test_engines_keep_states_that_no_config_names_in_their_own_dtype(name, vllm, sglang, trtllm):
    """vLLM in the model's, SGLang in fp32; TensorRT-LLM gated delta rules in 16 bits whatever they name.

    Its `resolve_ssm_cache_dtype`; convolutions are in 16 bits anyway.
    """
    model = load_model(name)
    for library, dtype in (("vllm", vllm), ("sglang", sglang), ("trtllm", trtllm)):
        served = as_served(model, library)
        kept = {
            mixer.state_dtype
            for group in served.groups
            for mixer in group.mixers
            if isinstance(mixer, Recurrent)
        }
        assert kept == {dtype}
        half = 2.0 * served.state_bytes - model.state_bytes if dtype == "bf16" else 0.0
        assert half < 0.05 * model.state_bytes
    assert as_served(model, "") is model


def predicted(rows: list[dict[str, object]], gpu: str = "h100-sxm") -> pd.DataFrame:
    frame = check_rows(pd.DataFrame(rows), "rows")
    return predicted_rows(frame, load_gpu(gpu), load_runtime("kernel"), cold=False)


def latent(**columns: object) -> dict[str, object]:
    given = {"op": "mla_decode", "mla_dtype": "bfloat16", "kv_dtype": "bfloat16", "gemm_dtype": "none",
             "scope": "kernel", "heads": 16, "batch": 8, "q_len": 1, "kv_len": 4096}  # fmt: skip
    return given | columns


def test_the_engine_and_the_scope_choose_the_kernel_of_latent_attention():
    found = predicted(
        [
            latent(engine="sglang", kernel="flash_attention"),
            latent(engine="trtllm", kernel="default"),
            latent(engine="vllm", kernel="FLASH_ATTN_MLA", scope="module", gemm_dtype="bfloat16"),
            latent(engine="sglang", kernel="nobody's"),
        ]
    )
    places = [
        "sglang:decode_bf16",
        "trtllm:decode_bf16",
        "vllm:decode_bf16_module_bf16",
        "sglang:decode_bf16",
    ]
    assert found["kernels"].tolist() == places
    assert found["source"].tolist() == ["calibrated"] * 3 + ["borrowed"]
    assert found["predicted_us"].iloc[2] > 2 * found["predicted_us"].iloc[0]
    found = predicted([latent(engine="sglang", kernel="triton", kv_dtype="fp8")], "l40s")
    assert found["kernels"].tolist() == ["sglang:decode_bf16"]
    assert found["source"].tolist() == ["borrowed"]


def test_the_release_and_the_launch_choose_the_kernel_of_a_collective():
    row = {"op": "all_reduce", "dtype": "bfloat16", "engine": "sglang", "ranks": 4, "bytes": 65536}
    graph, eager = "SGLang_CustomAllReduce_graph", "SGLang_CustomAllReduce_eager"
    found = predicted(
        [
            row | {"kernel": graph, "version": "0.5.14"},
            row | {"kernel": graph, "version": "0.5.10"},
            row | {"kernel": eager, "version": "0.5.14"},
            row | {"kernel": graph, "version": "9.9"},
        ]
    )
    assert found["kernels"].iloc[0] == found["kernels"].iloc[3] == "sglang:all_reduce_bf16"
    assert found["kernels"].iloc[1] == "sglang:all_reduce_bf16-0.5.10"
    assert found["kernels"].iloc[2].endswith(f"@{eager}")
    newest, older, launched = found["predicted_us"].iloc[:3]
    assert newest < older < launched


def test_the_backend_chooses_the_kernel_of_dispatch():
    row = {"op": "combine", "engine": "sglang", "ep": 8, "nodes": 1, "sms": 24, "hidden": 4096, "topk": 8,
           "experts": 256,
           "tokens": 64, "phase": "combine", "dtype": ""}  # fmt: skip
    found = predicted([row | {"backend": name} for name in ("deepep_ll", "deepep_normal")])
    assert found["kernels"].tolist() == ["sglang:combine_bf16", "sglang:combine_bf16@deepep_normal"]
    assert found["predicted_us"].iloc[0] < found["predicted_us"].iloc[1]


@pytest.mark.parametrize("gpu", ["a100-80gb-sxm", "h100-sxm", "h200-sxm", "b200", "gb200", "rtx-pro-6000"])
@pytest.mark.parametrize("kind", ["all_reduce", "all_gather", "reduce_scatter", "all_to_all"])
def test_shipped_collectives_lie_between_their_measured_ranks_and_above_the_link(gpu, kind):
    card = load_gpu(gpu)
    model = CalibratedLatency(card, "nccl")
    message = 2.0 ** np.arange(12, 31, 3)
    made = [
        Collective(name=kind, kind=kind, dtype="fp16", message_bytes=message, ranks=ranks)
        for ranks in (1, 2, 4)
    ]
    one, two, four = (model.time(operator).time_us for operator in made)
    assert (one == 0.0).all()
    ends = [0, 1, -2, -1]  # between them a library may change its algorithm at other sizes
    assert (four[ends] >= 0.95 * two[ends]).all()
    line_us = made[2].link_bytes / card.link_bandwidth_bytes_per_s * US_PER_S
    assert (four[-2:] >= line_us[-2:]).all()


def test_a_card_without_rows_of_its_link_is_refused_in_one_line(bare_gpu):
    row = {"op": "all_reduce", "dtype": "bf16", "ranks": 2, "bytes": 65536}
    with pytest.raises(SpecError, match=bare_gpu):
        predicted([row], bare_gpu)


def test_compressed_attention_rotates_a_part_of_each_head():
    """Of heads of 64 values 16 are rotated, so that 48 are latent; values are of all 64."""
    mixer = Compressed(heads=16, head_dim=64, rope_dim=16, q_rank=32, o_rank=8, o_groups=2, size=128)
    seen: dict[str, object] = {}

    def attention(operator: type, name: str, **sizes: object) -> None:
        seen.update(sizes)
        raise StopIteration

    layers = SimpleNamespace(
        keys=None, is_prompt=False, attention=attention, workload=SimpleNamespace(kv_len=100),
        model=SimpleNamespace(kv_dtype="bf16"),
    )  # fmt: skip
    with pytest.raises(StopIteration):
        _compressed_attention(mixer, layers)
    assert [seen[name] for name in ("heads", "latent_dim", "nope_dim", "rope_dim", "v_dim")] == [
        16, 48, 48, 16, 64,
    ]  # fmt: skip


@pytest.mark.parametrize(("device_us", "host_us"), [(100.0, 100.0), (100.0, 20.0), (20.0, 100.0)])
def test_a_hosts_share_is_by_how_much_a_step_grows_with_it(device_us, host_us):
    """The cube root of the sum of cubes, moved by a thousandth of a microsecond."""
    ends = [(device_us**3 + (host_us + moved) ** 3) ** (1 / 3) for moved in (-1e-3, 1e-3)]
    whole = overlapped_us(np.asarray(device_us), host_us)
    assert float(whole) == pytest.approx(sum(ends) / 2, rel=1e-9)
    assert float(host_share(host_us, whole)) == pytest.approx((ends[1] - ends[0]) / 2e-3, rel=1e-6)
