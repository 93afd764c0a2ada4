"""Launch settings of engines: read back as the engine reads them, and refusals that say why."""

import json
import re
import shlex
import subprocess
from dataclasses import replace
from functools import cache
from types import SimpleNamespace

import click
import numpy as np
import pytest
from click.testing import CliRunner
from export_cases import answered, flags, heads_profile, plan_of, simple_yaml, speculative

import medusa_sim as ms
from medusa_sim.acceptance.tree import CandidateTree
from medusa_sim.arrays import joined
from medusa_sim.cli import cli
from medusa_sim.errors import UsageError
from medusa_sim.export import ENGINES, exports
from medusa_sim.export.ab import ab_script, batches
from medusa_sim.export.chains import best_static, chain_grid, drafts_by_batch, graph_sizes, idle_cost
from medusa_sim.export.engines import _limit_note, engine_settings
from medusa_sim.export.settings import length_note
from medusa_sim.models.checkpoints import drafter_id
from medusa_sim.models.parallel import Parallel
from medusa_sim.plan.break_even import BreakEven
from medusa_sim.plan.recommend import recommend
from medusa_sim.plan.recommendation import Recommendation
from medusa_sim.plan.verdict import Stretch
from medusa_sim.scenario.acceptance import constant_rate
from medusa_sim.scenario.question import Question
from medusa_sim.scenario.scenario import Scenario
from medusa_sim.step.drafter import drafters


@pytest.fixture(scope="module")
def eagle() -> Recommendation:
    return answered("eagle3")


@pytest.fixture(scope="module")
def steep() -> Recommendation:
    """Speculation pays at few requests and loses at many: a schedule gains more than it costs."""
    return answered("eagle3", constant_rate(0.85), seq_len=(64,), batch_max=512)


@pytest.fixture(scope="module")
def medusa() -> Recommendation:
    return answered("medusa", heads_profile(), batch_max=32)


def vllm_drafts(config: dict[str, object], batch: int) -> int:
    """As vllm/v1/spec_decode/dynamic/utils.py reads it: gaps and what lies above keep the K before."""
    schedule = config.get("num_speculative_tokens_per_batch_size")
    if schedule is None:
        return int(str(config["num_speculative_tokens"]))
    assert isinstance(schedule, list)
    return int([k for low, _, k in schedule if low <= batch][-1])


def tensorrt_drafts(config: dict[str, object], batch: int, version: str) -> int:
    schedule = config.get("draft_len_schedule")
    if schedule is None:
        return int(str(config.get("max_draft_len", config.get("num_nextn_predict_layers"))))
    assert isinstance(schedule, dict)
    by_batch = {int(key): int(value) for key, value in schedule.items()}
    if version == "1.2":  # the largest key at or below the batch
        return by_batch[max(key for key in by_batch if key <= batch)]
    larger = [key for key in by_batch if key >= batch]  # the smallest key at or above it, 0 beyond
    return by_batch[min(larger)] if larger else 0


def sglang_drafts(text: str, batch: int) -> int:
    if "<<'EOF'" not in text:
        return int(flags(text)["--speculative-num-steps"])
    slots = json.loads(text.split("<<'EOF'\n")[1].split("\nEOF", maxsplit=1)[0])
    step = slots[max((key for key in slots if int(key) <= batch), key=int)]["candidate_steps"]
    assert len(step) == 1
    return int(step[0])


@pytest.mark.parametrize("answer", ["eagle", "steep"])
def test_every_engine_runs_the_plan_at_every_batch_and_above(answer, request):
    asked: Recommendation = request.getfixturevalue(answer)
    for engine in ("vllm", "sglang", "tensorrt-llm"):
        for version in {"tensorrt-llm": ("1.2", "1.3", "1.4")}.get(engine, (None,)):
            settings = engine_settings(asked, engine, version=version, draft_path="d")
            plan = plan_of(settings)
            for batch in (*range(1, 64), 255, 256, 257, *plan.grid.batch[-3:], 1000, 2048):
                if engine == "vllm":
                    config = json.loads(flags(settings.text)["--speculative-config"])
                    drafts = vllm_drafts(config, int(batch))
                elif engine == "sglang":
                    drafts = sglang_drafts(settings.text, int(batch))
                else:
                    drafts = tensorrt_drafts(speculative(settings.text), int(batch), str(version))
                assert drafts == plan.drafts_at(int(batch)), (engine, version, batch)
            assert any("not searched" in note or "do not fit" in note for note in settings.notes)


@pytest.mark.parametrize("answer", ["eagle", "steep"])
@pytest.mark.parametrize("engine", ["vllm", "sglang", "tensorrt-llm"])
def test_schedules_fall_switch_on_captured_sizes_and_gain(answer, engine, request):
    asked: Recommendation = request.getfixturevalue(answer)
    version = "1.4" if engine == "tensorrt-llm" else None
    plan = plan_of(engine_settings(asked, engine, version=version, draft_path="d"))
    drafts = [tier.drafts for tier in plan.best_schedule]
    assert drafts == sorted(drafts, reverse=True)
    assert len(set(drafts)) == len(drafts)
    assert all(tier.batch_max in graph_sizes(engine) for tier in plan.best_schedule[:-1])
    asked_for = asked.question.switching_gain
    margin = max(asked_for, idle_cost(asked)(1)) if engine == "vllm" else asked_for
    assert plan.dynamic == (len(drafts) > 1 and drafts[0] > 0 and plan.gain >= margin)
    best_fixed = max(plan.grid.mean_gain(np.full(plan.grid.batch.size, k)) for k in plan.grid.drafts[1:])
    assert plan.grid.mean_gain(drafts_by_batch(plan.grid, plan.tiers)) >= best_fixed - 0.35


def test_the_steep_case_is_scheduled_and_the_flat_one_is_not(steep, eagle):
    assert plan_of(engine_settings(steep, "sglang", draft_path="d")).dynamic
    settings = engine_settings(steep, "vllm", draft_path="d")
    assert plan_of(settings).dynamic
    assert any("VLLM_USE_V2_MODEL_RUNNER" in note for note in settings.notes)
    assert any("data-parallel-size" in note for note in settings.notes)
    assert any("enable_adaptive_verification" in note for note in settings.notes)


def test_vllm_writes_one_number_where_schedules_are_not_tested():
    answer = answered("draft-model", constant_rate(0.85), seq_len=(64,), batch_max=512)
    settings = engine_settings(answer, "vllm", draft_path="some/draft's folder")
    config = json.loads(flags(settings.text)["--speculative-config"])
    assert config["model"] == "some/draft's folder"
    assert "num_speculative_tokens_per_batch_size" not in config
    assert any("one number of drafts" in note and "tests schedules" in note for note in settings.notes)


def test_vllm_medusa_is_a_chain_and_says_what_the_tree_would_gain(medusa):
    settings = engine_settings(medusa, "vllm", draft_path="heads")
    config = json.loads(flags(settings.text)["--speculative-config"])
    assert set(config) == {"method", "model", "num_speculative_tokens"}
    assert 1 <= config["num_speculative_tokens"] <= 3
    assert any("a tree of" in note and "%" in note for note in settings.notes)


def test_vllm_ngram_and_mtp_name_no_checkpoint_and_json_carries_the_trees(medusa):
    ngram = json.loads(flags(engine_settings(answered("ngram"), "vllm").text)["--speculative-config"])
    assert ngram["method"] == "ngram"
    assert ngram["prompt_lookup_max"] >= ngram["prompt_lookup_min"]
    mtp = json.loads(flags(engine_settings(small("mtp"), "vllm").text)["--speculative-config"])
    assert mtp["method"] == "mtp"
    assert "model" not in mtp
    values = json.loads(engine_settings(medusa, "json").text)
    assert values["schema"] == "medusa-sim/schedule/1"
    for read, row in zip(values["schedule"], medusa.schedule, strict=True):
        tree = CandidateTree.from_paths(read["paths"])
        assert tree.paths == row.paths
        assert tree.candidates == read["candidates"]


@cache
def small(method: str) -> Recommendation:
    return answered(method, heads_profile() if method == "medusa" else None, batch_max=8)


METHODS = {name: engine.methods for name, engine in exports().items()}
EVERY = [(engine, method) for engine, methods in METHODS.items() for method in methods]


@pytest.mark.parametrize(("engine", "method"), EVERY)
def test_every_method_of_the_map_is_a_drafter_and_is_written(engine, method):
    assert method in drafters()
    row = METHODS[engine][method]
    version = row.versions[-1] if row.versions else None
    settings = engine_settings(small(method), engine, version=version, draft_path="d")
    assert row.name in settings.text  # P-EAGLE and PARD go by another's
    assert ("parallel_drafting" in settings.text) == row.parallel
    assert not row.versions or settings.version in row.versions


def test_engines_are_listed_in_the_order_of_their_records():
    assert (*exports(), "json") == ENGINES


def test_parallel_drafters_go_by_the_name_of_what_they_grew_from():
    for method, name in (("p-eagle", "eagle3"), ("pard", "draft_model")):
        text = engine_settings(small(method), "vllm", draft_path="d").text
        config = json.loads(flags(text)["--speculative-config"])
        assert (config["method"], config["parallel_drafting"]) == (name, True)
    for method, more in (("dflash", 1), ("dspark", 0)):
        settings = engine_settings(small(method), "sglang", draft_path="d")
        block = flags(settings.text)[f"--speculative-{method}-block-size"]
        assert int(block) == plan_of(settings).drafts + more
        assert "--speculative-num-steps" not in settings.text


def test_a_method_that_a_version_lacks_names_one_that_has_it():
    with pytest.raises(UsageError, match=r"1\.2 has no pard.*--engine-version 1\.4"):
        engine_settings(answered("pard", batch_max=4), "tensorrt-llm", draft_path="d")
    text = engine_settings(answered("pard", batch_max=4), "tensorrt-llm", version="1.4", draft_path="d")
    assert speculative(text.text)["decoding_type"] == "PARD"
    assert any("2 K tokens" in note for note in text.notes)


def test_sglang_counts_the_root_and_forces_a_chain_with_topk_one(eagle):
    settings = engine_settings(eagle, "sglang", draft_path="d")
    read = flags(settings.text)
    assert read["--speculative-algorithm"] == "EAGLE3"
    assert read["--speculative-eagle-topk"] == "1"
    steps, tokens = (int(read[f"--speculative-num-{name}"]) for name in ("steps", "draft-tokens"))
    assert tokens == steps + 1 == plan_of(settings).drafts + 1


@pytest.mark.parametrize(
    ("version", "flag"), [(None, "--page-size"), ("0.5.9", "--disable-overlap-schedule")]
)
def test_sglang_trees_start_under_the_overlap_scheduler(version, flag):
    answer = answered("eagle3", heads_profile(), batch_max=2)
    settings = engine_settings(answer, "sglang", version=version, draft_path="d")
    read = flags(settings.text)
    assert int(read["--speculative-eagle-topk"]) > 1
    assert read[flag] in ("1", "on")
    assert settings.plan is None
    assert any("cannot be given" in note for note in settings.notes)


def test_sglang_ngram_is_the_chain_that_was_priced_and_standalone_is_a_draft_model():
    settings = engine_settings(answered("ngram"), "sglang")
    read = flags(settings.text)
    assert read["--speculative-algorithm"] == "NGRAM"
    assert read["--speculative-ngram-max-bfs-breadth"] == "1"
    assert int(read["--speculative-num-draft-tokens"]) == plan_of(settings).drafts + 1
    read = flags(engine_settings(answered("draft-model", batch_max=4), "sglang", draft_path="d").text)
    assert read["--speculative-algorithm"] == "STANDALONE"


def test_tensorrt_llm_is_written_for_what_pip_installs_and_schedules_where_they_are_read(steep):
    settings = engine_settings(steep, "tensorrt-llm", draft_path='a "quoted" path')
    assert settings.version == "1.2"
    config = speculative(settings.text)
    assert config["speculative_model"] == 'a "quoted" path'
    assert "draft_len_schedule" not in config  # one-model EAGLE-3 reads none in 1.2
    assert any("reads no schedule" in note for note in settings.notes)
    newer = speculative(engine_settings(steep, "tensorrt-llm", version="1.3.0rc29", draft_path="d").text)
    schedule = newer["draft_len_schedule"]
    assert isinstance(schedule, dict)
    first = min(int(key) for key in schedule)
    assert schedule[str(first)] == newer["max_draft_len"] == max(schedule.values())


def test_tensorrt_llm_mtp_sets_the_number_that_counts():
    answer = small("mtp")
    old = speculative(engine_settings(answer, "tensorrt-llm").text)
    new = speculative(engine_settings(answer, "tensorrt-llm", version="1.3").text)
    assert "max_draft_len" not in old
    assert old["num_nextn_predict_layers"] == new["max_draft_len"]


@pytest.mark.parametrize(
    ("method", "synchronous"), [("ngram", True), ("draft-model", True), ("eagle3", False)]
)
def test_tensorrt_llm_switches_the_overlap_scheduler_off_where_it_must(method, synchronous):
    text = engine_settings(answered(method, batch_max=4), "tensorrt-llm", draft_path="d").text
    assert (simple_yaml(text).get("disable_overlap_scheduler") is True) == synchronous
    assert speculative(text)["decoding_type"] == METHODS["tensorrt-llm"][method].name


def test_tensorrt_llm_grows_dynamic_trees_from_1_3():
    answer = answered("eagle3", heads_profile(), batch_max=2)
    tree = speculative(engine_settings(answer, "tensorrt-llm", version="1.4", draft_path="d").text)
    assert tree["use_dynamic_tree"] is True
    depth, top_k, total = (
        int(str(tree[name])) for name in ("max_draft_len", "dynamic_tree_max_topK", "max_total_draft_tokens")
    )
    assert depth <= total <= depth * top_k
    assert "use_dynamic_tree" not in speculative(engine_settings(answer, "tensorrt-llm", draft_path="d").text)


def test_llama_cpp_takes_a_number_of_drafts():
    settings = engine_settings(answered("draft-model", batch_max=4), "llama-cpp", draft_path="draft.gguf")
    read = flags(settings.text)
    assert read["--spec-type"] == "draft-simple"
    assert read["--spec-draft-model"] == "draft.gguf"
    assert int(read["--spec-draft-n-max"]) == plan_of(settings).drafts
    assert read["--spec-draft-p-min"] == "0"


def test_several_lengths_become_one_schedule_and_chains_asked_for_stay_chains():
    answer = answered("eagle3", batch_max=40, seq_len=(256, 8192))
    settings = engine_settings(answer, "vllm", draft_path="d")
    assert any("256, 8192" in note for note in settings.notes)
    answer = answered("eagle3", heads_profile(), batch_max=2, chain_only=True)
    assert engine_settings(answer, "sglang", draft_path="d").plan is not None


def test_where_it_loses_is_stated():
    answer = answered("eagle3", constant_rate(0.3), seq_len=(64,), batch_max=1024)
    settings = engine_settings(answer, "llama-cpp", draft_path="d")
    plan = plan_of(settings)
    ((loses_from, last),) = plan.loses
    assert last == plan.grid.batch[-1]
    assert any(f"--parallel {loses_from - 1}" in note for note in settings.notes)
    before = int(plan.grid.batch[plan.grid.batch < loses_from][-1])
    assert plan.grid.speedup(before, plan.drafts) >= 1.0
    assert plan.grid.speedup(loses_from, plan.drafts) < 1.0


def test_where_settings_draft_against_the_schedule_is_stated():
    """One number of drafts for every batch; the schedule is off wherever the gain may be none."""
    set_up = ms.Scenario(
        gpu="l40s", model="gpt-oss-20b", drafter="eagle3", acceptance="0.32", runtime="vllm-0.33"
    )
    answer = set_up.recommend(batch=(1, 64)).answer
    settings = engine_settings(answer, "vllm", draft_path="d")
    plan = plan_of(settings)
    off = {
        n for row in answer.schedule if row.candidates == 1 for n in range(row.batch_min, row.batch_max + 1)
    }
    drafts = {n for n in off if plan.drafts_at(n)}
    loses, unsure = ({n for a, b in spans for n in range(a, b + 1)} for spans in (plan.loses, plan.unsure))
    assert unsure
    assert drafts <= loses | unsure
    assert not loses & unsure
    assert any("within its doubt" in note for note in settings.notes)


@pytest.mark.parametrize(
    ("engine", "method", "told"),
    [
        ("sglang", "medusa", "never merged.*EAGLE-3 or DFlash"),
        ("tensorrt-llm", "medusa", "went with the engine backend"),
        ("llama-cpp", "medusa", "never merged"),
    ],
)
def test_what_an_engine_cannot_do_is_refused(engine, method, told, medusa, eagle):
    with pytest.raises(UsageError, match=told):
        engine_settings(medusa if method == "medusa" else eagle, engine, draft_path="d")


def test_checkpoints_of_the_first_eagle_go_where_they_load():
    answer = answered("eagle", batch_max=4)
    config = json.loads(flags(engine_settings(answer, "vllm", draft_path="d").text)["--speculative-config"])
    assert config["method"] == "eagle"
    assert flags(engine_settings(answer, "sglang", draft_path="d").text)["--speculative-algorithm"] == "EAGLE"
    for engine in ("tensorrt-llm", "llama-cpp"):
        with pytest.raises(UsageError, match="--drafter eagle3"):
            engine_settings(answer, engine, draft_path="d")


def test_other_refusals(eagle):
    with pytest.raises(UsageError, match="unknown engine"):
        engine_settings(eagle, "vlm")
    with pytest.raises(UsageError, match="--draft-path"):
        engine_settings(eagle, "llama-cpp")
    for engine in ENGINES:
        with pytest.raises(UsageError, match="known:"):
            engine_settings(eagle, engine, version="0.0.1", draft_path="d")
    losing = answered("eagle3", constant_rate(0.01), batch_max=4)
    with pytest.raises(UsageError, match="leave speculation off"):
        engine_settings(losing, "vllm", draft_path="d")


def test_ab_gives_vllm_the_rates_and_both_runs(eagle):
    settings = engine_settings(eagle, "vllm", draft_path="d")
    script = ab_script(eagle, settings)
    served = next(line for line in script.splitlines() if "--speculative-config" in line)
    words = shlex.split(served)
    config = json.loads(words[words.index("--speculative-config") + 1])
    assert config["rejection_sample_method"] == "synthetic"
    rates = config["synthetic_acceptance_rates"]
    assert rates == pytest.approx(
        [0.55 ** (i + 1) for i in range(config["num_speculative_tokens"])], abs=1e-4
    )
    assert script.count("vllm bench serve") == 2 * script.count("predicted at batch")
    assert "calibrate" in script
    assert "--tp" not in script.splitlines()[-1]


def test_ab_fits_a_runtime_with_the_gpus_and_formats_that_were_served():
    asked = Scenario(
        gpu="h100-sxm", model="llama-3.3-70b", drafter="eagle3", acceptance=0.6, runtime="vllm", tp=4,
        weight_dtype="fp8",
    )  # fmt: skip
    answer = recommend(asked, Question(batch_max=4))
    words = shlex.split(ab_script(answer, engine_settings(answer, "vllm", draft_path="d")).splitlines()[-1])
    assert words[words.index("--tp") + 1] == "4"
    assert words[words.index("--weight-dtype") + 1] == "fp8"


def test_ab_of_the_other_engines(eagle):
    length = 1.0 + sum(plan_of(engine_settings(eagle, "sglang", draft_path="d")).rates)
    script = ab_script(eagle, engine_settings(eagle, "sglang", draft_path="d"))
    assert f"SGLANG_SIMULATE_ACC_LEN={length:.2f}" in script
    with pytest.raises(UsageError, match="one request at a time"):
        ab_script(eagle, engine_settings(eagle, "llama-cpp", draft_path="d"))
    ngram = answered("ngram", batch_max=4)
    with pytest.raises(UsageError, match="forces no acceptance of ngram"):
        ab_script(ngram, engine_settings(ngram, "tensorrt-llm"))
    assert {name for name in ("vllm", "sglang", "tensorrt-llm") if exports()[name].takes_dp_attention} == {
        "vllm", "sglang",
    }  # fmt: skip
    spread = SimpleNamespace(scenario=SimpleNamespace(parallel=SimpleNamespace(dp_attention=True)))
    with pytest.raises(UsageError, match="--dp-attention"):
        ab_script(spread, engine_settings(eagle, "tensorrt-llm", draft_path="d"))  # type: ignore[arg-type]


LLAMA_CPP = {
    "gpu": "rtx-3090", "runtime": "llama.cpp-cuda", "model": "llama-3.1-8b", "weight_dtype": "q4_k_m",
    "drafter": "eagle3", "acceptance": "0.7",
}  # fmt: skip


def test_ab_of_llama_cpp_ends_in_a_check_that_reads_its_responses(tmp_path, monkeypatch):
    """Rates of positions, as many as drafts, and the timings of four requests each."""
    answer = recommend(Scenario(**LLAMA_CPP), Question(batch_max=1))
    settings = engine_settings(answer, "llama-cpp", draft_path="d.gguf")
    script = ab_script(answer, settings)
    drafts = plan_of(settings).drafts
    rates = ",".join(f"{0.7 ** (k + 1):.4g}" for k in range(drafts))
    assert f"--spec-synth-rates {rates} --spec-type draft-eagle3" in script
    assert f"--spec-draft-n-max {drafts} " in script
    asked, client = script.splitlines()[6:8]
    monkeypatch.chdir(tmp_path)
    subprocess.run(asked, shell=True, check=True)  # noqa: S602  # our own line
    request = json.loads((tmp_path / "request.json").read_text())
    assert (len(request["prompt"]), request["n_predict"]) == (896, 256)
    assert client.endswith("> plain_b1.jsonl")
    timings = {"prompt_n": 896, "predicted_n": 256, "predicted_per_second": 100.0}
    accepted = round(255 * (1 - 1 / (1 + sum(0.7 ** (k + 1) for k in range(drafts)))))
    drafted = timings | {"predicted_per_second": 150.0, "draft_n_accepted": accepted}
    drafted["draft_n"] = drafts * (255 - accepted)
    for name, each in (("plain", timings), (f"spec{drafts}", drafted)):
        (tmp_path / f"{name}_b1.jsonl").write_text(f"{json.dumps({'timings': each})}\n" * 4)
    words = shlex.split(script.strip().splitlines()[-1])
    files = [str(path) for word in words[2:4] for path in tmp_path.glob(word)]
    result = CliRunner().invoke(cli, [words[1], *files, *words[4:]], catch_exceptions=False)
    assert result.exit_code in (0, 3), result.output  # whether it is as fast is the machine's to say
    assert "acceptance" in result.stdout
    assert "plain" in result.stdout
    for more, told in (({"p_min": 0.05}, "--p-min 0.05"), ({}, "not in b10532")):
        other = recommend(Scenario(**LLAMA_CPP, **more), Question(batch_max=1))
        old = engine_settings(other, "llama-cpp", version=None if more else "b10532", draft_path="d.gguf")
        with pytest.raises(UsageError, match=told):
            ab_script(other, old)


def test_ab_sends_no_cached_prefix():
    served = {"gpu": "h100-sxm", "model": "llama-3.1-8b", "prompt_tokens": 900, "output_tokens": 200}
    longer = recommend(Scenario(**served, drafter="eagle3"), Question(batch_max=1, seq_len=(8192,)))
    with pytest.raises(UsageError, match="leave out --seq"):
        ab_script(longer, engine_settings(longer, "vllm", draft_path="d"))


@pytest.mark.parametrize(("batch", "told"), [(1024, []), (1025, ["1025", "8192"]), (2048, ["2048", "8192"])])
def test_more_requests_than_an_engine_takes_by_default_are_shown_with_the_tokens_of_a_step(batch, told):
    scenario = ms.Scenario(gpu="h100-sxm", model="llama-3.1-8b", drafter="eagle3", runtime="vllm")
    note = _limit_note(SimpleNamespace(scenario=scenario), exports()["vllm"], batch)  # type: ignore[arg-type]
    assert re.findall(r"--max-num-seqs (\d+) and has (\d+) tokens", note) == [tuple(told)][: len(told)]


@pytest.mark.parametrize(
    ("engine", "split", "options"),
    [
        ("vllm", {"tp": 8, "ep": 8}, "--tensor-parallel-size 8 --enable-expert-parallel"),
        ("vllm", {"tp": 8, "ep": 8, "dp_attention": True},
         "--data-parallel-size 8 --enable-expert-parallel"),
        ("sglang", {"tp": 8, "ep": 8, "dp_attention": True}, "--tp 8 --ep 8 --enable-dp-attention --dp 8"),
        ("tensorrt-llm", {"tp": 8, "ep": 8, "dp_attention": True},
         "--tp_size 8 --ep_size 8 'enable_attention_dp: true' in its file"),
        ("llama-cpp", {"tp": 8}, ""),
    ],
)  # fmt: skip
def test_options_of_several_gpus_are_those_of_the_split_that_was_priced(engine, split, options):
    """Of data-parallel attention no GPU shares attention: vLLM's tensor parallelism is 1 then."""
    assert " ".join(exports()[engine].of_gpus(Parallel(**split))) == options


def test_ab_starts_both_servers_on_the_gpus_that_were_priced(eagle):
    shared = replace(eagle, scenario=eagle.scenario.but(tp=2))
    settings = engine_settings(eagle, "vllm", draft_path="d")
    chosen = replace(settings.chosen, answer=shared)
    script = ab_script(shared, replace(settings, chosen=chosen))
    assert script.count('vllm serve "$MODEL" --tensor-parallel-size 2 --port') == 2


@pytest.mark.parametrize(("engine", "tells"), [("vllm", True), ("sglang", False), ("tensorrt-llm", False)])
def test_ab_ends_with_a_calibration_that_runs(eagle, engine, tells):
    """Runs that draft need a drafter, and the drafts of a step where no client writes them."""
    settings = engine_settings(eagle, engine, draft_path="d")
    *_, last = ab_script(eagle, settings).strip().splitlines()
    words = shlex.split(last)
    options = dict(zip(words[5::2], words[6::2], strict=True))
    assert words[:4] == ["medusa-sim", "calibrate", "engine", "plain_*.json*"]
    drafts = re.fullmatch(r"spec(\d+)_\*\.json\*", words[4])
    assert drafts is not None
    assert options.pop("--drafts", drafts[1] if tells else None) == drafts[1]
    assert options == {
        "--gpu": eagle.scenario.gpu.name, "--model": eagle.scenario.model.name, "--runtime": engine,
        "--drafter": "eagle3", "--name": "mine",
    }  # fmt: skip
    taken = cli.get_command(click.Context(cli), "calibrate").commands["engine"].params
    assert {*options, "--drafts", "--draft-model"} <= {name for each in taken for name in each.opts}


@pytest.mark.parametrize(("version", "fractions"), [("1.2", False), ("1.3", False), ("1.4", True)])
def test_ab_forces_what_a_version_of_tensorrt_llm_reads(eagle, version, fractions):
    """Before 1.4 by `int`: a fraction, and 0, would force nothing beside a prediction of 2 tokens a step."""
    settings = engine_settings(eagle, "tensorrt-llm", version=version, draft_path="d")
    plan, script = plan_of(settings), ab_script(eagle, settings)
    forced = re.findall(r"FORCE_NUM_ACCEPTED_TOKENS=(\S+)", script)
    assert [each.isdecimal() for each in forced] == [not fractions for _ in forced]
    drafted = [tier for tier in plan.tiers if tier.drafts]
    assumed = [sum(plan.rates[: tier.drafts]) for tier in drafted]
    assert [float(each) for each in forced] == pytest.approx(assumed, abs=0.005 if fractions else 0.5)
    predicted = re.findall(r"batch (\d+): ([0-9.]+)x, ([0-9.]+) tokens", script)
    for batch, speedup, length in predicted:
        drafts = plan.drafts_at(int(batch))
        if drafts:
            assert float(length) - 1.0 in [pytest.approx(float(each)) for each in forced]
        own = plan.grid.speedup(int(batch), drafts) / (1.0 + sum(plan.rates[:drafts]))
        assert float(speedup) / float(length) == pytest.approx(own, abs=0.005)
    # its random prompts come from a download, unless they are told to be token ids
    assert script.count("--dataset-name random") == script.count("--random-ids --tokenize-on-client")


def test_ab_forces_one_length_on_one_number_of_drafts_alone(steep):
    settings = engine_settings(steep, "sglang", draft_path="d")
    plan, script = plan_of(settings), ab_script(steep, settings)
    tiers = [tier for tier in plan.tiers if tier.drafts]
    forced = [float(length) for length in re.findall(r"ACC_LEN=([0-9.]+)", script)]
    assert len(tiers) > 1
    assert forced == pytest.approx([1.0 + sum(plan.rates[: tier.drafts]) for tier in tiers], abs=0.005)
    assert re.findall(r"num-steps (\d+)", script) == [str(tier.drafts) for tier in tiers]
    assert "adaptive" not in script
    drafted = [batch for batch in batches(plan) if plan.drafts_at(batch)]
    assert [int(batch) for batch in re.findall(r"spec\d+_b(\d+)", script)] == drafted


@pytest.mark.parametrize("engine", ["vllm", "sglang", "tensorrt-llm"])
def test_settings_and_launch_commands_name_one_drafter(eagle, engine):
    """One table of checkpoints: what `compare` starts with, `recommend --export` names."""
    known = drafter_id("eagle3", eagle.scenario.model.name, engine)
    settings = engine_settings(eagle, engine)
    assert known is not None
    assert known in settings.text
    assert any(known in note for note in settings.notes)
    assert "mine" in engine_settings(eagle, engine, draft_path="mine").text


@pytest.mark.parametrize("engine", ["vllm", "sglang", "tensorrt-llm"])
def test_a_schedule_of_one_number_is_written_with_that_number(engine):
    """The table says 8 at 1..16; 7 would lose least at the batch where one number loses most."""
    answer = answered("eagle3", constant_rate(0.79), batch_max=16)
    (row,) = answer.schedule
    assert best_static(chain_grid(answer)) == 7
    plan = engine_settings(answer, engine).plan
    assert plan is not None
    assert (row.drafts, plan.drafts, plan.dynamic) == (8, 8, False)


@pytest.mark.parametrize(("acceptance", "batch_max"), [(0.8, 64), (0.7, 256), (0.5, 64)])
def test_one_number_for_a_range_is_nowhere_far_from_the_best(acceptance, batch_max):
    """Where no schedule is read, and what it costs is named with the batch, as the curve by batch has it."""
    answer = answered("ngram", constant_rate(acceptance), batch_max=batch_max)
    settings = engine_settings(answer, "sglang")
    plan = settings.plan
    assert plan is not None
    assert not plan.dynamic
    grid = plan.grid
    values = grid.log_speedup[:, 1:]
    pays = values.max(axis=1) > 0.0
    lost = (values[pays].max(axis=1, keepdims=True) - values[pays]).max(axis=0)
    assert lost[plan.drafts - 1] == lost.min()
    batch, best, most, own = plan.largest_loss
    assert own == pytest.approx(grid.speedup(batch, plan.drafts))
    assert most == pytest.approx(grid.speedup(batch, best))
    if len(plan.best_schedule) > 1:
        assert any(f"at batch {batch}: {own:.2f}x" in note for note in settings.notes)


@pytest.mark.parametrize(
    ("spans", "cap"), [(((16, 3999),), "--max-model-len 3999"), ((), ""), (((4000, 9000),), "")]
)
def test_a_length_from_which_drafts_cost_time_caps_requests(spans, cap):
    context = BreakEven(known=(Stretch(16, 9000, "uncertain"),), spans=joined(spans))
    question = SimpleNamespace(seq_len=(1024,), batch_max=8)
    note = length_note(SimpleNamespace(question=question, break_even_context=context), "--max-model-len")
    assert ("--max-model-len" in note) == bool(cap)
    assert cap in note
