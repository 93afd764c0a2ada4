"""Whole commands, and settings that an engine would refuse at start."""

import functools
import itertools
import re
import shlex
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from engine_rules import sglang, tensorrt, vllm
from hypothesis import given
from hypothesis import strategies as st
from one_line import one_line

import medusa_sim as ms
from medusa_sim.errors import UsageError
from medusa_sim.export import exports
from medusa_sim.export.chains import ChainGrid, best_tiers, drafts_by_batch
from medusa_sim.export.launch import chosen_command, launch_command
from medusa_sim.export.settings import Versions

VLLM: dict[str, Any] = {"method": "eagle3", "num_speculative_tokens": 3, "model": "d"}
TRT: dict[str, Any] = {
    "decoding_type": "Eagle3", "version": "1.3", "max_draft_len": 3, "speculative_model": "d"
}  # fmt: skip
TREE = {"use_dynamic_tree": True, "max_total_draft_tokens": 8}
SGL: dict[str, Any] = {
    f"--speculative-{name}": value
    for name, value in {"algorithm": "EAGLE3", "num-steps": 3, "eagle-topk": 1, "num-draft-tokens": 4}.items()
}
ADAPTIVE = {"--speculative-adaptive-config": "file"}
SLOTS = {"1": {"candidate_steps": [3]}}
BY_SIZE, SYNTHETIC = "num_speculative_tokens_per_batch_size", "synthetic_acceptance_rates"
REFUSED: list[tuple[Any, dict[str, Any], list[dict[str, Any]]]] = [
    (vllm, VLLM, [
        {"num_speculative_tokens": 0}, {"model": None}, {"method": "dflash", "parallel_drafting": True},
        {BY_SIZE: [(2, 8, 3)]}, {BY_SIZE: [(1, 8, 3), (8, 16, 1)]}, {BY_SIZE: [(1, 8, 4)]},
        {SYNTHETIC: [0.5, 0.4, 0.3]},
        {"rejection_sample_method": "synthetic", SYNTHETIC: [0.5, 0.6, 0.3]},
        {"rejection_sample_method": "synthetic", SYNTHETIC: [0.5, 0.4]},
    ]),
    (tensorrt, TRT, [
        {"draft_len_schedule": {80: 2, 256: 3}},  # what 1.3 refused to load
        {"version": "1.2", "draft_len_schedule": {64: 3}},
        {"version": "1.2", "dynamic_tree_max_topK": 4, **TREE}, {"dynamic_tree_max_topK": 2, **TREE},
        {"speculative_model": None}, {"decoding_type": "MTP", "version": "1.2"}, {"decoding_type": "PARD"},
    ]),
    (sglang, SGL, [
        {"--speculative-num-draft-tokens": 3},
        {"--speculative-eagle-topk": 4, "--speculative-num-draft-tokens": 12},
        {"--speculative-num-steps": None}, {"--speculative-algorithm": "DFLASH"},
        {"--speculative-algorithm": "STANDALONE", "slots": SLOTS, **ADAPTIVE},
        {"slots": {"2": {"candidate_steps": [3]}}, **ADAPTIVE},
        {"slots": {"1": {"candidate_steps": [0]}}, **ADAPTIVE}, {"slots": SLOTS}, ADAPTIVE,
    ]),
]  # fmt: skip


def take(rules: Callable[..., None], given: dict[str, Any]) -> None:
    beside = {name: given[name] for name in ("version", "slots") if name in given}
    rules({name: value for name, value in given.items() if name not in beside}, **beside)


@pytest.mark.parametrize(
    ("rules", "sound", "change"), [(*of, change) for *of, changes in REFUSED for change in changes]
)
def test_the_rules_take_what_is_sound_and_nothing_else(rules, sound, change):
    take(rules, sound)
    with pytest.raises(ValueError, match=r"\w"):
        take(rules, sound | change)


def test_versions_between_and_just_beyond_are_stated_and_far_ones_refused():
    versions = Versions("x", ("0.24", "0.26", "0.33"), "0.33")
    assert versions.chosen(None) == ("0.33", "")
    assert versions.chosen("v0.26.1rc2") == ("0.26", "")
    for asked, nearest in (("0.29", "0.26"), ("0.34.0", "0.33")):
        known, note = versions.chosen(asked)
        assert known == nearest
        assert asked in note
    for asked in ("0.9", "0.40", "1.0", "new"):
        with pytest.raises(UsageError, match="known"):
            versions.chosen(asked)
    tensorrt_llm = exports()["tensorrt-llm"].versions
    assert tensorrt_llm.chosen(None)[0] == "1.2"
    assert tensorrt_llm.chosen("1.4.0rc1") == ("1.4", "")


def grid(values: np.ndarray) -> ChainGrid:
    batches, columns = values.shape
    return ChainGrid(
        batch=np.arange(1, batches + 1),
        drafts=np.arange(columns),
        log_speedup=np.where(np.arange(columns) == 0, 0.0, values),
        rates=np.linspace(0.9, 0.1, columns - 1),
        max_batch=np.full(columns, batches),
        searched_to=batches,
    )


@given(
    seed=st.integers(0, 2**32 - 1),
    batches=st.integers(1, 60),
    columns=st.integers(2, 6),
    gain=st.floats(0.0, 0.2),
    off=st.booleans(),
)
def test_tiers_cover_every_batch_once_and_never_rise(seed, batches, columns, gain, off):
    made = grid(np.random.default_rng(seed).normal(0.0, 0.3, (batches, columns)))
    captured = (1, 2, 4, 8, 16, 32)
    tiers = best_tiers(made, captured, gain=gain, idle_cost=(lambda _: 0.1) if off else None)
    assert tiers[0].batch_min == 1
    assert tiers[-1].batch_max == batches
    assert all(b.batch_min == a.batch_max + 1 for a, b in pairwise(tiers))
    assert all(b.drafts < a.drafts for a, b in pairwise(tiers))
    assert all(tier.batch_max in captured for tier in tiers[:-1])
    assert off or min(tier.drafts for tier in tiers) > 0


@given(seed=st.integers(0, 2**32 - 1), columns=st.integers(2, 5))
def test_tiers_are_the_best_of_all_falling_ones(seed, columns):
    """Against every falling choice of one number for each span between captured sizes."""
    made = grid(np.random.default_rng(seed).normal(0.0, 0.3, (16, columns)))
    captured = (1, 2, 4, 8)
    switch = 0.03
    tiers = best_tiers(made, captured, gain=switch, idle_cost=None)

    def worth(drafts: np.ndarray) -> float:
        values = made.log_speedup[np.arange(16), drafts]
        return float(values @ made.weight - np.log1p(switch) * np.count_nonzero(np.diff(drafts)))

    spans = np.searchsorted(np.asarray((1, 2, 4, 8, 16)), made.batch)
    choices = np.stack(np.meshgrid(*[np.arange(1, columns)] * 5, indexing="ij"), axis=-1).reshape(-1, 5)
    falling = choices[np.all(np.diff(choices, axis=1) <= 0, axis=1)]
    best = max(worth(choice[spans]) for choice in falling)
    assert worth(drafts_by_batch(made, tiers)) == pytest.approx(best)


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
        "model": "llama-3.1-8b", "gpus": "h100-sxm", "counts": 2, "drafters": ("none", "eagle3"),
        "batches": 8, "weight_dtypes": ("bf16", "fp8"), "kv_dtypes": ("bf16", "fp8"),
    },
    "experts": {
        "model": "deepseek-r1", "gpus": "b200", "counts": 8, "drafters": ("none", "mtp"), "batches": 16,
        "weight_dtypes": ("fp8_block", "nvfp4"),
    },
}  # fmt: skip
Row = dict[str, Any]


@functools.cache
def compared(name: str) -> ms.CompareResult:
    return ms.compare(**ASKED[name])


@functools.cache
def commands(name: str) -> list[tuple[Row, str]]:
    """Set-ups with their commands until every engine has each kind once.

    Plain ones first: a command that drafts takes a search, and what it tells of the server is the same.
    """
    found, seen = compared(name), set()
    chosen = []
    for row in sorted(found.table.to_dict("records"), key=lambda row: row["drafter"] != "none"):
        kinds = ("precision", "kv_precision", "tp", "ep", "dp_attention", "drafter")
        new = {(row["engine"], kind, row[kind]) for kind in kinds} - seen
        if new:
            seen |= new
            chosen.append((row, chosen_command(found.answer, row)))
    return chosen


@pytest.mark.parametrize("name", ASKED)
def test_commands_say_what_was_priced(name):
    assert {row["engine"] for row, _ in commands(name)} == set(OPTIONS)
    assert {row["dp_attention"] for row, _ in commands(name)} == {False, name == "experts"}
    for row, whole in commands(name):
        text = "".join(line for line in whole.splitlines(keepends=True) if not line.startswith("#"))
        serve = shlex.split(text.rstrip("\n").split("\n")[-1])
        options = {word for word in serve if word.startswith("--")}
        assert options <= OPTIONS[row["engine"]]
        server = re.sub(r"speculative_config:\n(?: +.*\n)*|(?s:--speculat.*)", "", text)
        assert ("fp8" in server) == (
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
    assert "a/drafter" in chosen_command(compared("dense").answer, row, "a/drafter")


def test_a_cache_of_16_bits_is_named_where_the_checkpoint_may_bring_one_of_fp8():
    for row, text in (*commands("dense"), *commands("experts")):
        half = " nvidia/" in text and row["kv_precision"] != "fp8"
        named = {"vllm": "--kv-cache-dtype bfloat16", "sglang": "--kv-cache-dtype bf16"}
        told = named.get(row["engine"], "priced with a KV cache in bf16; one in fp8 that it brings is taken")
        assert (told in text) == half


def test_a_checkpoint_that_is_not_known_is_stated() -> None:
    found = ms.compare("qwen2-7b", gpus="b200", counts=1, engines="vllm", drafters=("none", "eagle3"),
                       weight_dtypes="nvfp4", batches=4)  # fmt: skip
    for row in found.table.to_dict("records"):
        text = chosen_command(found.answer, row)
        assert text.startswith("# Qwen/Qwen2-7B: its nvfp4 checkpoint has to be named instead")
        assert ("eagle3-of-qwen2-7b" in text) == (row["drafter"] == "eagle3")


def test_an_engine_without_a_server_is_one_error():
    dense = compared("dense")
    scenario = dense.answer.scenario(dense.table.iloc[0])
    with pytest.raises(UsageError, match="launch command"):
        launch_command(scenario, "llama-cpp", 4, 4096, None)


def test_a_set_up_of_llama_cpp_is_told_where_its_options_are():
    found = ms.compare(
        "qwen3-8b", gpus="rtx-4090", counts=1, engines="llama.cpp", drafters="ngram", batches=4
    )
    with pytest.raises(UsageError, match="--export llama-cpp") as refused:
        chosen_command(found.answer, found.answer.chosen)
    assert "unknown" not in str(refused.value)


@pytest.mark.parametrize(
    ("asked", "written"),
    [("0.20", "0.20"), ("0.22", "0.20"), ("0.24", "0.24"), ("0.26", "0.24"), ("0.27", ""), ("0.19", "")],
)
def test_versions_are_written_for_up_to_two_releases_ahead(asked, written):
    versions = Versions("x", ("0.20", "0.24"), "0.24")
    if written:
        found, note = versions.chosen(asked)
        assert found == written
        assert (note == "") is (asked == written)
    else:
        with one_line(UsageError):
            versions.chosen(asked)
