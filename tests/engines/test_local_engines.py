"""Files, devices and engines of one's own machine: what they say, and what is refused."""

import pytest
from one_line import one_line

from medusa_sim.engines.runtime import load_runtime, local_runtime_names
from medusa_sim.errors import SpecError
from medusa_sim.file_types import FILES, NAMES, TYPES, bytes_per_weight, mean_bytes, named_file, shares
from medusa_sim.gpus.gpu import load_gpu
from medusa_sim.gpus.gpu_names import device_names, gpu_name, gpu_names, local_names
from medusa_sim.gpus.local import is_unopened, laws, local_law, runtimes_of
from medusa_sim.models.named import load_model
from medusa_sim.models.variants import with_dtypes
from medusa_sim.scenario.scenario import Scenario


@pytest.mark.parametrize("gpu", local_names())
def test_an_engine_without_a_backend_is_the_first_that_the_device_runs(gpu):
    runs = [name for name in runtimes_of(load_gpu(gpu).local) if name.startswith("llama.cpp-")]
    chosen = Scenario(gpu=gpu, model="llama-3.1-8b", runtime="llama.cpp", drafter="ngram").runtime.name
    assert chosen == runs[0]


# GiB of published files of Llama-3.1-8B (llama.cpp's own tables of quantisation)
LLAMA_8B = {
    "q2_k": 2.96,
    "q4_0": 4.34,
    "q4_k_m": 4.58,
    "q5_k_m": 5.33,
    "q6_k": 6.14,
    "q8_0": 7.95,
    "f16": 14.96,
}


@pytest.mark.parametrize(("name", "gib"), LLAMA_8B.items())
def test_a_file_is_as_large_as_published(name, gib):
    model = with_dtypes(load_model("llama-3.1-8b"), None, name)
    assert model.weight_bytes / 2**30 == pytest.approx(gib, rel=0.005)


# GiB of published files of other shapes: values as wide as queries, experts beside dense layers, tied heads
OTHER_FILES = [
    ("llama-2-7b", "q4_k_m", 3.80),
    ("llama-2-13b", "q8_0", 12.88),
    ("qwen2.5-32b", "q4_k_m", 18.48),
    ("qwen3-30b-a3b", "q4_k_m", 17.35),
    ("qwen3.5-27b", "q6_k", 20.6),
    ("llama-3-70b", "q4_k_m", 39.6),
]


@pytest.mark.parametrize(("model", "name", "gib"), OTHER_FILES)
def test_a_file_has_the_types_of_every_role(model, name, gib):
    assert with_dtypes(load_model(model), None, name).weight_bytes / 2**30 == pytest.approx(gib, rel=0.01)


@pytest.mark.parametrize(
    ("model", "name", "gib"),
    [("qwen3.5-35b-a3b", "ud-q8_k_xl", 36.4), ("qwen3.5-35b-a3b", "ud-q4_k_xl", 21.27),
     ("gemma-4-26b-a4b", "ud-q8_k_xl", 25.9), ("qwen3.5-27b", "ud-q8_k_xl", 33.31)],
)  # fmt: skip
def test_experts_of_dynamic_files_have_types_of_their_own(model, name, gib):
    assert with_dtypes(load_model(model), None, name).weight_bytes / 2**30 == pytest.approx(gib, rel=0.04)


# GiB of published files of gpt-oss, whose experts nobody packs again (ggml-org and unsloth)
GPT_OSS = [
    ("gpt-oss-20b", "mxfp4", 11.27),
    ("gpt-oss-20b", "f16", 12.83),
    ("gpt-oss-120b", "mxfp4", 59.02),
    ("gpt-oss-120b", "f16", 60.87),
]


@pytest.mark.parametrize(("model", "name", "gib"), GPT_OSS)
def test_experts_trained_in_mxfp4_stay_so_in_every_file(model, name, gib):
    file = with_dtypes(load_model(model), None, name)
    assert file.weight_bytes / 2**30 == pytest.approx(gib, rel=0.035)
    assert file.experts.form == "mxfp4"


def test_blocks_hold_their_weights_and_scales():
    assert TYPES["q4_0"] == (2 + 32 / 2) / 32
    assert TYPES["q8_0"] == (2 + 32) / 32
    assert TYPES["q6_k"] == (128 + 64 + 16 + 2) / 256
    assert TYPES["affine4"] == pytest.approx((4 + 2 * 16 / 64) / 8)


@pytest.mark.parametrize("name", FILES)
def test_the_shares_of_every_role_are_whole(name):
    for role in ("linear", "keys", "values", "output", "down", "head", "embedding", "experts"):
        assert sum(share for _, share in shares(name, role)) == pytest.approx(1.0)
        assert {of for of, _ in shares(name, role)} <= TYPES.keys()
        assert bytes_per_weight(name, role) > 0.0
    assert 0.15 < mean_bytes(name) <= 2.0


def test_names_are_read_in_any_case_and_spelling():
    assert named_file("Q4_K_M") == named_file("q4_k") == "q4_k_m"
    assert named_file("4-bit") == named_file("4bit") == "mlx-4bit"
    assert all(named_file(name) in FILES for name in NAMES)


@pytest.mark.parametrize("name", local_names())
def test_every_device_of_ones_own_runs_some_local_engine(name):
    gpu = load_gpu(name)
    assert gpu.local is not None
    own = [runtime for runtime in local_runtime_names() if _runs(runtime, gpu)]
    assert own
    for runtime in own:
        scenario = Scenario(
            gpu=gpu.name, model="llama-3.2-3b", runtime=runtime, drafter="ngram", acceptance=0.5,
            weight_dtype="4bit" if runtime == "mlx" else "Q4_K_M",
        )  # fmt: skip
        assert scenario.latency.name == "local"


def _runs(runtime, gpu):
    try:
        local_law(load_runtime(runtime).local, gpu.name, gpu.local)
    except SpecError:
        return False
    return True


def test_devices_are_told_apart_and_found_as_people_write_them():
    assert not set(local_names()) & set(gpu_names())
    assert len(device_names()) == len(set(device_names()))
    written = {
        "RTX 3090": "rtx-3090", "NVIDIA GeForce RTX 5060 Ti": "rtx-5060-ti", "Apple M2 Ultra": "m2-ultra",
        "Radeon 8060S": "radeon-8060s", "A100 SXM 80GB": "a100-80gb-sxm", "V100-PCIE-32GB": "v100",
        "AGX Orin": "agx-orin", "Arc Pro B70": "arc-pro-b70", "M4 Pro": "m4-pro", "GB10": "gb10",
        "M4 Pro 24GB": "m4-pro", "RTX 3060 12GB": "rtx-3060", "RTX 5060 Ti 8GB": "rtx-5060-ti-8gb",
    }  # fmt: skip
    assert {given: gpu_name(given) for given in written} == written


def test_numbers_that_nobody_looked_up_say_so():
    unopened = [name for name in local_names() if is_unopened(load_gpu(name).sources)]
    assert {"rtx-3080", "m1-max", "radeon-8060s"} <= set(unopened)
    assert not [name for name in unopened if name.startswith("cpu-")]
    for name in local_names():
        assert all(len(source) > 10 for source in load_gpu(name).sources.values())
    assert load_gpu("rtx-3080").local.board_watts.value == 320


def test_every_law_names_its_source_and_where_it_holds():
    for law in laws():
        assert len(law.source) > 20
        assert law.columns("q4_0", "") >= 1
    assert len({law.name for law in laws()}) == len(laws())


def test_switch_points_are_those_of_the_sources():
    cuda = next(law for law in laws() if law.backend == "cuda")
    assert [cuda.columns(of, "sm_120") for of in ("q4_k", "q5_k", "q6_k", "q4_0")] == [5, 6, 7, 8]
    assert [cuda.columns(of, "sm_89") for of in ("q2_k", "q3_k", "q4_k", "q8_0")] == [4, 6, 7, 8]
    assert cuda.columns("q4_k", "sm_87") == 1
    assert cuda.columns("q4_k", "sm_86") == 8


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({"gpu": "m2-ultra", "runtime": "llama.cpp-cuda"}, "llama.cpp-metal"),
        ({"gpu": "rtx-3090", "runtime": "mlx", "weight_dtype": "4bit"}, "llama.cpp-cuda"),
        ({"gpu": "rtx-3090", "runtime": "llama.cpp-cuda", "weight_dtype": "4bit"}, "Q4_K_M".lower()),
        ({"gpu": "m2-ultra", "runtime": "mlx", "weight_dtype": "Q4_K_M"}, "mlx-4bit"),
        ({"gpu": "h100-sxm", "runtime": "vllm", "weight_dtype": "Q4_K_M"}, "llama.cpp-cuda"),
        ({"gpu": "h20-sxm", "runtime": "llama.cpp-cuda"}, "vector_ops_per_s"),
    ],
)
def test_what_does_not_go_together_is_refused_in_one_line(given, told):
    with one_line(SpecError, told):
        Scenario(model="llama-3.1-8b", drafter="ngram", acceptance=0.5, **given)
