"""Names as people, drivers and publishers write them; what is only like a name stays refused."""

import shutil
from pathlib import Path

import pytest
from asking import run

import medusa_sim as ms
from medusa_sim.data import shipped_dir
from medusa_sim.errors import SpecError
from medusa_sim.gpus.gpu import load_gpu
from medusa_sim.gpus.gpu_names import gpu_name, gpu_names
from medusa_sim.models.checkpoints import stored_as
from medusa_sim.models.named import load_model
from medusa_sim.reading.documents import read_toml

DOCS = Path(__file__).resolve().parents[1] / "docs"
TYPED = {
    "H100-SXM": "h100-sxm", "h100 sxm": "h100-sxm", "H100_SXM5": "h100-sxm",
    "NVIDIA H100 80GB HBM3": "h100-sxm", "RTX 5090": "rtx-5090",
    "NVIDIA GeForce RTX 4090": "rtx-4090", "rtx4090": "rtx-4090",
    "NVIDIA A100-SXM4-80GB": "a100-80gb-sxm", "NVIDIA L40S": "l40s", "AMD Instinct MI300X": "mi300x",
    "H200": "h200-sxm", "B200": "b200",
}  # fmt: skip


def test_brackets_of_a_name_may_stay():
    assert load_gpu("CPU Xeon 6 (GNR) 12ch").name == "cpu-xeon-6-gnr-12ch"


@pytest.mark.parametrize("typed", ["MXFP4", "mxfp4", "MXFP4 MoE", "mxfp4_moe"])
def test_types_of_files_are_taken_as_tools_write_them(typed):
    one = ms.Scenario(
        gpu="gb10", model="gpt-oss-20b", runtime="llama.cpp", drafter="ngram", acceptance=0.5,
        weight_dtype=typed,
    )  # fmt: skip
    assert one.model.weight_dtype == "mxfp4_moe"


@pytest.mark.parametrize("typed", TYPED)
def test_cards_are_taken_as_they_are_typed(typed):
    assert load_gpu(typed).name == TYPED[typed]
    assert ms.Scenario(gpu=typed, model="llama-3.1-8b", drafter="ngram").gpu.name == TYPED[typed]


def test_every_card_is_itself_in_any_writing():
    for name in gpu_names():
        for typed in (name, name.upper(), name.replace("-", " "), name.replace("-", "_")):
            assert gpu_name(typed) == name


@pytest.mark.parametrize("typed", ["h100", "a100", "rtx", "", " ", "-", "nvidia", "h100-sxm-x", "x" * 10_000])
def test_a_name_of_several_or_of_none_is_refused(typed):
    with pytest.raises(SpecError):
        load_gpu(typed)


def test_compare_knows_cards_and_their_prices_by_any_writing():
    found = ms.compare("llama-3.1-8b", gpus="H100-SXM", counts=1, engines="vllm", drafters="none",
                       batches=8, price={"H100 SXM": 2.0})  # fmt: skip
    assert set(found.table.gpu) == {"h100-sxm"}
    assert found.answer.scenario(found.chosen).usd_per_gpu_hour == 2.0


STORED = {
    "Qwen/Qwen3-32B-FP8": ("qwen3-32b", "fp8_block"),
    "Qwen/Qwen3-30B-A3B-GPTQ-Int4": ("qwen3-30b-a3b", "int4"),
    "qwen/qwen3-32b-awq": ("qwen3-32b", "int4"),
    "nvidia/Llama-3.1-8B-Instruct-FP8": ("llama-3.1-8b", "fp8"),
    "RedHatAI/Llama-3.1-8B-Instruct-FP8-dynamic": ("llama-3.1-8b", "fp8"),
    "nvidia/Llama-3.1-8B-Instruct-FP4": ("llama-3.1-8b", "nvfp4"),
    "zai-org/GLM-5-FP8": ("glm-5", "fp8_block"),
    "nvidia/DeepSeek-R1-0528-FP4-v2": ("deepseek-r1", "nvfp4"),
}


@pytest.mark.parametrize("given", STORED)
def test_checkpoints_in_another_format_are_the_model_in_it(given):
    name, form = STORED[given]
    model = load_model(given)
    assert (model.name, model.weight_dtype) == (name, form)
    assert model.checkpoint == given
    typed = {"weight_dtype": form} if form == "int4" else {"dtype": form}
    beside = ms.Scenario(gpu="b200", model=name, drafter="ngram", **typed)
    own = ms.Scenario(gpu="b200", model=given, drafter="ngram")
    assert own.model.weight_bytes == beside.model.weight_bytes
    assert own.model.groups == beside.model.groups


def test_every_checkpoint_that_launch_commands_name_is_read_back():
    for form, ids in read_toml(shipped_dir() / "profiles" / "served_checkpoints.toml")["weights"].items():
        for name, given in ids.items():
            assert stored_as(given) == (name, form)
            assert load_model(given).name == name


def test_the_launch_command_starts_the_checkpoint_that_was_named():
    found = ms.compare(
        "Qwen/Qwen3-32B-FP8", gpus="h100-sxm", counts=1, engines="vllm", drafters="none", batches=8
    )
    assert "vllm serve Qwen/Qwen3-32B-FP8 " in found.command()


@pytest.mark.parametrize("given", ["Foo/Qwen3-32B-FP8", "nobody-FP8", "-FP8", "Qwen/-FP8", "x/y-awq"])
def test_ids_of_nobody_are_refused_in_one_line(given):
    with pytest.raises(SpecError):
        load_model(given)


@pytest.mark.parametrize(
    "given", ["qwen3-coder-30b-a3b", "llama-3.1-8b-instruct", "minimax-m2.5", "MiniMax-M2.5"]
)
def test_models_are_found_without_what_ids_add(given):
    assert load_model(given).name in ("qwen3-30b-a3b", "llama-3.1-8b", "minimax-m2")


def test_a_folder_needs_no_dot_before_it(tmp_path, monkeypatch):
    (tmp_path / "cm").mkdir()
    shutil.copy(DOCS / "example_config.json", tmp_path / "cm" / "config.json")
    monkeypatch.chdir(tmp_path)
    assert load_model("cm").groups == load_model("./cm").groups
    (tmp_path / "empty").mkdir()
    with pytest.raises(SpecError, match="model 'empty'"):
        load_model("empty")


def test_a_format_that_does_not_go_with_the_dtype_names_the_one_that_would():
    done = run("recommend", "--gpu", "h100-sxm", "--model", "llama-3.1-8b", "--weight-dtype", "fp8_block")
    assert done.exit_code == 1
    assert "; give --dtype fp8_block (allowed:" in done.stderr
