"""The whole command of a set-up: GPUs, precision, requests and drafts as the engines take them."""

import functools
import itertools
import shlex
from typing import Any

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


ASKED: dict[str, dict[str, Any]] = {
    "dense": {
        "model": "llama-3.1-8b", "gpus": "h100-sxm", "counts": (1, 2), "drafters": ("none", "eagle3"),
        "batches": 32, "weight_dtypes": ("bf16", "fp8"), "kv_dtypes": ("bf16", "fp8"),
    },
    "experts": {
        "model": "deepseek-r1", "gpus": "b200", "counts": 8, "drafters": ("none", "mtp"), "batches": 64,
        "weight_dtypes": ("fp8_block", "nvfp4"),
    },
}  # fmt: skip
Row = dict[str, Any]


@functools.cache
def compared(name: str) -> ms.Compared:
    return ms.compare(**ASKED[name])


@functools.cache
def commands(name: str) -> list[tuple[Row, str]]:
    """Every set-up with its command: a search for each that drafts."""
    found = compared(name)
    return [(row, chosen_command(found.comparison, row)) for row in found.table.to_dict("records")]


@pytest.mark.parametrize("name", ASKED)
def test_commands_say_what_was_priced(name):
    assert {row["engine"] for row, _ in commands(name)} == set(OPTIONS)
    for row, whole in commands(name):
        text = "".join(line for line in whole.splitlines(keepends=True) if not line.startswith("#"))
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


def test_weights_and_drafters_are_checkpoints_that_exist():
    named = {"nvfp4": "nvidia/DeepSeek-R1-0528-FP4-v2", "fp8_block": "deepseek-ai/DeepSeek-R1"}
    for row, text in commands("experts"):
        assert f" {named[row['precision']]} " in text
    own = {"vllm": "RedHatAI/Llama-3.1-8B-Instruct-speculator.eagle3",
           "sglang": "lmsys/sglang-EAGLE3-LLaMA3.1-Instruct-8B",
           "tensorrt-llm": "yuhuili/EAGLE3-LLaMA3.1-Instruct-8B"}  # fmt: skip
    for row, text in commands("dense"):
        assert (own[row["engine"]] in text) == (row["drafter"] == "eagle3")
        loads_fp8 = row["engine"] == "tensorrt-llm" and row["precision"] == "fp8"
        model = "nvidia/Llama-3.1-8B-Instruct-FP8" if loads_fp8 else "meta-llama/Llama-3.1-8B-Instruct"
        assert f" {model} " in text
    row = next(row for row, _ in commands("dense") if row["drafter"] == "eagle3")
    assert "a/drafter" in chosen_command(compared("dense").comparison, row, "a/drafter")


def test_a_cache_of_16_bits_is_named_where_the_checkpoint_may_bring_one_of_fp8():
    for row, text in (*commands("dense"), *commands("experts")):
        half = " nvidia/" in text and row["kv_precision"] != "fp8"
        named = {"vllm": "--kv-cache-dtype bfloat16", "sglang": "--kv-cache-dtype bf16"}
        told = named.get(row["engine"], "priced with a KV cache in bf16; one in fp8 that it brings is taken")
        assert (told in text) == half


def test_a_checkpoint_that_is_not_known_is_said() -> None:
    found = ms.compare("qwen2-7b", gpus="b200", counts=1, engines="vllm", drafters=("none", "eagle3"),
                       weight_dtypes="nvfp4", batches=4)  # fmt: skip
    for row in found.table.to_dict("records"):
        text = chosen_command(found.comparison, row)
        assert text.startswith("# Qwen/Qwen2-7B: its nvfp4 checkpoint has to be named instead")
        assert ("eagle3-of-qwen2-7b" in text) == (row["drafter"] == "eagle3")


def test_an_engine_without_a_server_is_one_error():
    dense = compared("dense")
    scenario = dense.comparison.scenario(dense.table.iloc[0])
    with pytest.raises(UsageError, match="launch command"):
        launch_command(scenario, "tgi", 4, 4096, None)
