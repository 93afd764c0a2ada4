"""The whole command of a set-up: GPUs, precision, requests and drafts as the engines take them."""

import itertools
import shlex

import pytest

import medusa_sim as ms
from medusa_sim.errors import UsageError
from medusa_sim.export.launch import chosen_command, launch_command

OPTIONS = {
    "vllm": {"--tensor-parallel-size", "--data-parallel-size", "--enable-expert-parallel", "--max-num-seqs",
             "--max-model-len", "--quantization", "--kv-cache-dtype", "--speculative-config"},
    "sglang": {"--model-path", "--tp", "--ep", "--dp", "--enable-dp-attention", "--max-running-requests",
               "--context-length", "--quantization", "--kv-cache-dtype", "--speculative-algorithm",
               "--speculative-draft-model-path", "--speculative-num-steps", "--speculative-eagle-topk",
               "--speculative-num-draft-tokens"},
    "tensorrt-llm": {"--tp_size", "--ep_size", "--max_batch_size", "--max_seq_len", "--config"},
}  # fmt: skip
"""What the engines' servers take, of their sources as the module names them."""


@pytest.fixture(scope="module")
def dense() -> ms.Compared:
    return ms.compare(
        "llama-3.1-8b", gpus="h100-sxm", counts=(1, 2), drafters=("none", "eagle3"), batches=(1, 32),
        weight_dtypes=("bf16", "fp8"), kv_dtypes=("bf16", "fp8"),
    )  # fmt: skip


@pytest.fixture(scope="module")
def experts() -> ms.Compared:
    return ms.compare(
        "deepseek-r1", gpus="b200", counts=8, drafters=("none", "mtp"), batches=64,
        weight_dtypes=("fp8_block", "nvfp4"),
    )  # fmt: skip


@pytest.mark.parametrize("name", ["dense", "experts"])
def test_commands_say_what_was_priced(name, request):
    found: ms.Compared = request.getfixturevalue(name)
    rows = found.table[found.table.batch > 1].to_dict("records")
    assert {row["engine"] for row in rows} == set(OPTIONS)
    for row in rows:
        text = chosen_command(found.comparison, row, "a/drafter")
        text = "".join(line for line in text.splitlines(keepends=True) if not line.startswith("#"))
        serve = shlex.split(text.rstrip("\n").split("\n")[-1])
        options = {word for word in serve if word.startswith("--")}
        assert options <= OPTIONS[row["engine"]]
        assert ("fp8" in text.split("speculat")[0]) == (
            row["kv_precision"] == "fp8"
            or (row["precision"] == "fp8" and row["engine"] in ("vllm", "sglang"))
        )
        told = dict(itertools.pairwise(serve))
        size = {"vllm": "--tensor-parallel-size", "sglang": "--tp", "tensorrt-llm": "--tp_size"}[
            row["engine"]
        ]
        if row["tp"] > 1 and not (row["engine"] == "vllm" and row["dp_attention"]):
            assert told[size] == str(row["tp"])
        assert ("peculative" in text) == (row["drafter"] != "none")
        if row["dp_attention"]:
            wanted = {"vllm": "--data-parallel-size 8", "sglang": "--enable-dp-attention --dp 8",
                      "tensorrt-llm": "enable_attention_dp: true"}  # fmt: skip
            assert wanted[row["engine"]] in text
        if row["ep"] > 1 and row["engine"] == "vllm":
            assert "--enable-expert-parallel" in serve


def test_weights_and_drafters_are_checkpoints_that_exist(dense, experts):
    for row in experts.table[experts.table.drafter == "none"].to_dict("records"):
        named = {"nvfp4": "nvidia/DeepSeek-R1-0528-FP4-v2", "fp8_block": "deepseek-ai/DeepSeek-R1"}
        assert f" {named[row['precision']]} " in chosen_command(experts.comparison, row)
    own = {"vllm": "RedHatAI/Llama-3.1-8B-Instruct-speculator.eagle3",
           "sglang": "lmsys/sglang-EAGLE3-LLaMA3.1-Instruct-8B",
           "tensorrt-llm": "yuhuili/EAGLE3-LLaMA3.1-Instruct-8B"}  # fmt: skip
    for row in dense.table[dense.table.drafter == "eagle3"].to_dict("records"):
        text = chosen_command(dense.comparison, row)
        assert own[row["engine"]] in text
        loads_fp8 = row["engine"] == "tensorrt-llm" and row["precision"] == "fp8"
        model = "nvidia/Llama-3.1-8B-Instruct-FP8" if loads_fp8 else "meta-llama/Llama-3.1-8B-Instruct"
        assert f" {model} " in text


def test_a_cache_of_16_bits_is_named_where_the_checkpoint_may_bring_one_of_fp8(dense, experts):
    for found in (dense, experts):
        for row in found.table[found.table.drafter == "none"].to_dict("records"):
            text = chosen_command(found.comparison, row)
            half = " nvidia/" in text and row["kv_precision"] != "fp8"
            named = {"vllm": "--kv-cache-dtype bfloat16", "sglang": "--kv-cache-dtype bf16"}
            told = named.get(
                row["engine"], "priced with a KV cache in bf16; one in fp8 that it brings is taken"
            )
            assert (told in text) == half


def test_a_checkpoint_that_is_not_known_is_said() -> None:
    found = ms.compare("qwen2-7b", gpus="b200", counts=1, engines="vllm", drafters=("none", "eagle3"),
                       weight_dtypes="nvfp4", batches=4)  # fmt: skip
    for row in found.table.to_dict("records"):
        text = chosen_command(found.comparison, row)
        assert text.startswith("# Qwen/Qwen2-7B: its nvfp4 checkpoint has to be named instead")
        assert ("eagle3-of-qwen2-7b" in text) == (row["drafter"] == "eagle3")


def test_an_engine_without_a_server_is_one_error(dense):
    scenario = dense.comparison.scenario(dense.table.iloc[0])
    with pytest.raises(UsageError, match="launch command"):
        launch_command(scenario, "tgi", 4, 4096, None)
