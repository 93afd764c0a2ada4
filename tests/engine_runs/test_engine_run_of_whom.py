"""A run is checked against the model and engine that it is of: taken from the file, or another is refused."""

from pathlib import Path

import pytest
from asking import run

import medusa_sim as ms
from medusa_sim.cli.check import sorted_out
from medusa_sim.engine_runs.bench import is_bench, read_bench
from medusa_sim.engine_runs.run import engine_run, known_model, told_by
from medusa_sim.errors import UsageError
from medusa_sim.scenario.question import Measured

FILES = Path(__file__).resolve().parents[1] / "data" / "engine"
PLAIN, SPEC = FILES / "vllm_serve_plain_b8.json", FILES / "vllm_serve_spec_b8.json"
NAMING = ("vllm_serve_plain_b8.json", "profile_export_aiperf_b1.json", "guidellm_benchmarks.json")


@pytest.mark.parametrize("name", NAMING)
def test_every_tool_that_names_its_model_is_heard(name):
    rows = read_bench(FILES / name)
    assert {known_model(row.model) for row in rows} == {"llama-3.1-8b"}
    assert told_by([FILES / name])["model"] == "llama-3.1-8b"


def test_the_files_model_is_taken_and_another_is_refused():
    taken = run("check", "--gpu", "h100-sxm", PLAIN)
    assert taken.exit_code == 0
    assert "model llama-3.1-8b, as vllm_serve_plain_b8.json says" in taken.stderr
    given = run(
        "check", "--gpu", "h100-sxm", "--model", "llama-3.1-8b", "--drafter", "ngram", "--bench", PLAIN
    )
    assert given.stdout == taken.stdout
    other = run("check", "--gpu", "h100-sxm", "--model", "qwen3-8b", "--bench", PLAIN)
    assert other.exit_code == 2
    assert "run of meta-llama/Llama-3.1-8B-Instruct, not of qwen3-8b" in other.stderr
    with pytest.raises(UsageError, match="not of qwen3-8b"):
        ms.Scenario(gpu="h100-sxm", model="qwen3-8b", drafter="ngram").check(PLAIN)


def test_the_files_engine_is_taken_and_another_is_refused():
    words = (
        "check",
        "--gpu",
        "h100-sxm",
        "--model",
        "llama-3.1-8b",
        "--batch",
        8,
        FILES / "sglang_bench.jsonl",
    )
    assert "runtime sglang, as sglang_bench.jsonl says" in run(*words).stderr
    other = run(*words, "--runtime", "vllm", "--drafter", "eagle3")
    assert other.exit_code == 2
    assert "a run of sglang, not of vllm" in other.stderr


def test_no_gpu_is_guessed():
    done = run("check", PLAIN)
    assert done.exit_code == 2
    assert "does not say on which GPU it ran: give --gpu" in done.stderr


def test_files_say_what_they_are():
    """Results of load generators without --bench, pages of counters and logs without --counters."""
    for path in FILES.iterdir():
        counted = path.name.startswith(
            ("vllm_metrics", "sglang_metrics", "llama_cpp", "README", "aiperf_rec")
        )
        assert is_bench(path) != (counted or path.name.endswith("_response.json")), path.name
    page, result = FILES / "vllm_metrics_after.txt", FILES / "vllm_serve_spec_b8.json"
    for files in ((page, result), (result, page)):
        assert sorted_out((), None, files) == ((result,), str(page))
    done = run("check", "--gpu", "h100-sxm", "--model", "llama-3.1-8b", "--drafter", "eagle3",
               "--measured-tpot-ms", "4", "--batch", 8, "--seq", 600, page)  # fmt: skip
    assert done.exit_code in (0, 3), done.stderr
    assert "acceptance" in done.stdout


def test_acceptance_by_position_is_read_from_the_results_themselves():
    scenario = ms.Scenario(
        gpu="h100-sxm", model="llama-3.1-8b", drafter="eagle3", acceptance="0.5", runtime="vllm"
    )
    _, found = engine_run(scenario, [SPEC])
    assert found.accepted == pytest.approx((0.7, 0.42, 0.21))
    assert found.tokens_per_step == pytest.approx(2.33)


@pytest.mark.parametrize(("batch", "is_same"), [(510, True), (490, True), (511, False), (489, False)])
def test_a_run_of_nearly_as_many_requests_is_the_one_asked_for(batch, is_same, tmp_path):
    """2 % of what is asked, no more."""
    path = tmp_path / "results.csv"
    path.write_text(f"concurrency,prompt,output,itl_ms\n{batch},512,256,9.5\n", encoding="utf-8")
    scenario = ms.Scenario(
        gpu="h100-sxm", model="llama-3.1-8b", drafter="eagle3", acceptance="0.5", runtime="vllm"
    )
    if is_same:
        engine_run(scenario, [path], given=Measured(batch=500))
    else:
        with pytest.raises(UsageError, match="no run at 500 requests in flight"):
            engine_run(scenario, [path], given=Measured(batch=500))


def test_a_plain_run_says_nothing_of_acceptance():
    for words in (("--model", "qwen3-8b"), ("--model", "mistral-7b")):
        done = run(
            "check", "--gpu", "h100-sxm", *words, "--batch", 8, "--seq", 600, "--measured-tpot-ms", "7"
        )
        assert "acceptance" not in done.stderr, words


def test_the_plain_run_beside_drafts_is_that_of_as_many_requests():
    """Of plain runs at 1, 8 and 64 requests the one at 8."""
    plain = [FILES / f"vllm_serve_plain_b{batch}.json" for batch in (1, 64, 8)]
    scenario = ms.Scenario(gpu="h100-sxm", model="llama-3.1-8b", drafter="eagle3", acceptance="0.7,0.5,0.3")
    _, found = engine_run(scenario, [*plain, SPEC])
    (row,) = read_bench(PLAIN)
    assert found.drafts == 3
    assert found.plain_us == pytest.approx(row.tpot_us)
    _, alone = engine_run(scenario, [plain[0], SPEC])
    assert alone.plain_us is None
