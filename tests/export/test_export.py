"""Launch settings of engines: read back with a parser that is not ours, and refusals that say why."""

from __future__ import annotations

import itertools
import json
import shlex
from dataclasses import replace

import numpy as np
import pytest

from medusa_sim.acceptance.heads import HeadAccuracy
from medusa_sim.acceptance.profile import AcceptanceProfile
from medusa_sim.acceptance.shaped import ShapedAcceptance
from medusa_sim.acceptance.tree import CandidateTree
from medusa_sim.errors import UsageError
from medusa_sim.export import ENGINES, exported
from medusa_sim.export.settings import checked_version
from medusa_sim.plan.acceptance import constant_rate
from medusa_sim.plan.draft_options import Drafting, Method
from medusa_sim.plan.recommend import Question, Recommendation, recommend
from medusa_sim.plan.scenario import sweep_settings
from medusa_sim.specs.models import load_model

BASE = sweep_settings(("h100-sxm",), ("llama-3.1-8b",), latency="roofline", drafter="ngram")[0]
ACCURACY = np.array([[0.6, 0.12, 0.06, 0.03], [0.5, 0.12, 0.06, 0.03], [0.4, 0.12, 0.06, 0.03]])


def heads_profile() -> AcceptanceProfile:
    model = ShapedAcceptance("made", HeadAccuracy.checked(ACCURACY))
    return AcceptanceProfile("made", "head-topk", "made", "made for a test", model)


def answered(method: Method, profile: AcceptanceProfile | None = None, **question: object) -> Recommendation:
    drafting = Drafting(
        method=method, heads=3, draft=load_model("llama-3.2-1b") if method == "draft-model" else None
    )
    asked = Question(**{"batch_max": 300, "seq_len": (512,), **question})  # type: ignore[arg-type]
    return recommend(BASE.gpu, BASE.setting, drafting, profile or constant_rate(0.55), asked)


@pytest.fixture(scope="module")
def eagle() -> Recommendation:
    return answered("eagle")


@pytest.fixture(scope="module")
def medusa() -> Recommendation:
    return answered("medusa", heads_profile(), batch_max=32)


def flags(text: str) -> dict[str, str]:
    words = shlex.split(text)
    return dict(zip(words[::2], words[1::2], strict=True))


def simple_yaml(text: str) -> dict[str, object]:
    """Nested mappings of scalars by indentation: all that the TensorRT-LLM file uses."""
    root: dict[str, object] = {}
    stack: list[tuple[int, dict[str, object]]] = [(-1, root)]
    for line in text.splitlines():
        if not line.strip() or line.lstrip().startswith("#"):
            continue
        indent = len(line) - len(line.lstrip())
        key, _, value = line.strip().partition(":")
        while stack[-1][0] >= indent:
            stack.pop()
        parent = stack[-1][1]
        if value.strip():
            parent[key] = json.loads(value) if value.strip()[0] in '"0123456789' else value.strip()
        else:
            child: dict[str, object] = {}
            parent[key] = child
            stack.append((indent, child))
    return root


def test_vllm_schedule_reads_back_as_the_recommended_one(eagle: Recommendation) -> None:
    settings = exported(eagle, "vllm", draft_path="some/draft's folder")
    config = json.loads(flags(settings.text)["--speculative-config"])
    assert config["method"] == "eagle3"
    assert config["model"] == "some/draft's folder"
    schedule = config["num_speculative_tokens_per_batch_size"]
    assert schedule[0][0] == 1
    assert all(b[0] == a[1] + 1 for a, b in itertools.pairwise(schedule))
    assert config["num_speculative_tokens"] == max(k for _, _, k in schedule)
    rows = eagle.schedule
    assert [(end, k) for _, end, k in schedule] == [(row.batch_max, row.candidates - 1) for row in rows]
    assert settings.notes[0] == "written for vLLM 0.26"


def test_vllm_runs_a_fixed_number_of_medusa_drafts_and_says_what_the_tree_would_gain(
    medusa: Recommendation,
) -> None:
    settings = exported(medusa, "vllm", draft_path="heads")
    config = json.loads(flags(settings.text)["--speculative-config"])
    assert set(config) == {"method", "model", "num_speculative_tokens"}
    assert 1 <= config["num_speculative_tokens"] <= 3
    assert any("a tree of" in note and "%" in note for note in settings.notes)


def test_vllm_ngram_and_mtp_name_no_checkpoint() -> None:
    ngram = json.loads(flags(exported(answered("ngram"), "vllm").text)["--speculative-config"])
    assert ngram["method"] == "ngram"
    assert ngram["prompt_lookup_max"] >= ngram["prompt_lookup_min"]
    mtp = json.loads(flags(exported(answered("mtp", batch_max=8), "vllm").text)["--speculative-config"])
    assert mtp["method"] == "mtp"
    assert "model" not in mtp


def test_sglang_counts_the_root_and_forces_a_chain_with_topk_one(eagle: Recommendation) -> None:
    read = flags(exported(eagle, "sglang", draft_path="d").text)
    assert read["--speculative-algorithm"] == "EAGLE3"
    assert read["--speculative-eagle-topk"] == "1"
    steps, tokens = (int(read[f"--speculative-num-{name}"]) for name in ("steps", "draft-tokens"))
    assert tokens == steps + 1 == eagle.schedule[0].candidates


def test_sglang_takes_the_shape_of_a_tree() -> None:
    answer = answered("eagle", heads_profile(), batch_max=2)
    row = answer.schedule[0]
    assert row.width > 1
    settings = exported(answer, "sglang", draft_path="d")
    read = flags(settings.text)
    assert int(read["--speculative-eagle-topk"]) == row.width
    assert int(read["--speculative-num-steps"]) == row.drafts
    assert int(read["--speculative-num-draft-tokens"]) == row.candidates
    assert any("cannot be given" in note for note in settings.notes)


def test_sglang_ngram_and_standalone() -> None:
    assert flags(exported(answered("ngram"), "sglang").text)["--speculative-algorithm"] == "NGRAM"
    read = flags(exported(answered("draft-model", batch_max=4), "sglang", draft_path="d").text)
    assert read["--speculative-algorithm"] == "STANDALONE"


@pytest.mark.parametrize("version", ["1.2", "1.3"])
def test_tensorrt_llm_schedule_means_the_same_in_both_versions(eagle: Recommendation, version: str) -> None:
    text = exported(eagle, "tensorrt-llm", version=version, draft_path='a "quoted" path').text
    config = simple_yaml(text)["speculative_config"]
    assert isinstance(config, dict)
    assert config["decoding_type"] == "Eagle3"
    assert config["speculative_model"] == 'a "quoted" path'
    schedule = {int(batch): int(length) for batch, length in config["draft_len_schedule"].items()}
    assert config["max_draft_len"] == max(schedule.values())

    def drafts(batch: int) -> int:
        if version == "1.2":  # the largest key at or below the batch
            return schedule[max(key for key in schedule if key <= batch)]
        larger = [key for key in schedule if key >= batch]  # the smallest key at or above it, 0 beyond
        return schedule[min(larger)] if larger else 0

    for row in eagle.schedule:
        for batch in (row.batch_min, row.batch_max):
            assert drafts(batch) == row.candidates - 1


def test_tensorrt_llm_knows_the_other_methods() -> None:
    for method, name in (("mtp", "MTP"), ("ngram", "NGram"), ("draft-model", "Draft_Target")):
        answer = answered(method, batch_max=4)  # type: ignore[arg-type]
        config = simple_yaml(exported(answer, "tensorrt-llm", draft_path="d").text)["speculative_config"]
        assert isinstance(config, dict)
        assert config["decoding_type"] == name


def test_tgi_takes_a_number_of_drafts_and_the_medusa_repository(medusa: Recommendation) -> None:
    settings = exported(medusa, "tgi", draft_path="me/medusa")
    read = flags(settings.text)
    assert read["--model-id"] == "me/medusa"
    chain = replace(medusa.question, chain_only=True)
    best = recommend(BASE.gpu, BASE.setting, medusa.drafting, medusa.profile, chain).schedule[0]
    assert int(read["--speculate"]) == best.candidates - 1
    assert any("would give" in note for note in settings.notes)


def test_json_carries_the_trees(medusa: Recommendation) -> None:
    values = json.loads(exported(medusa, "json").text)
    assert values["schema"] == "medusa-sim/schedule/1"
    for read, row in zip(values["schedule"], medusa.schedule, strict=True):
        tree = CandidateTree.from_paths(read["paths"])
        assert tree.paths == row.paths
        assert tree.candidates == read["candidates"]


def test_several_lengths_become_one_schedule() -> None:
    answer = answered("eagle", batch_max=40, seq_len=(256, 8192))
    settings = exported(answer, "vllm", draft_path="d")
    assert any("256, 8192" in note for note in settings.notes)


@pytest.mark.parametrize(
    ("engine", "method", "told"),
    [
        ("sglang", "medusa", "never merged"),
        ("tensorrt-llm", "medusa", "went with the engine backend"),
        ("tgi", "eagle", "no eagle speculation"),
    ],
)
def test_what_an_engine_cannot_do_is_refused(
    engine: str, method: str, told: str, medusa: Recommendation, eagle: Recommendation
) -> None:
    with pytest.raises(UsageError, match=told):
        exported(medusa if method == "medusa" else eagle, engine, draft_path="d")


def test_other_refusals(eagle: Recommendation) -> None:
    with pytest.raises(UsageError, match="unknown engine"):
        exported(eagle, "vlm")
    with pytest.raises(UsageError, match="--draft-path"):
        exported(eagle, "vllm")
    for engine in set(ENGINES) - {"tgi"}:
        with pytest.raises(UsageError, match="known:"):
            exported(eagle, engine, version="0.0.1", draft_path="d")
    losing = answered("eagle", constant_rate(0.01), batch_max=4)
    with pytest.raises(UsageError, match="leave it switched off"):
        exported(losing, "vllm", draft_path="d")


def test_versions_are_matched_by_their_prefix() -> None:
    assert checked_version("x", "v1.2.3rc1", ("1.2", "1.3")) == "1.2"
    assert checked_version("x", None, ("1.2", "1.3")) == "1.3"
    with pytest.raises(UsageError):
        checked_version("x", "1.20", ("1.2",))
