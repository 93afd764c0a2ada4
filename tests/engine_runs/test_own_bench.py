"""`check` takes what stands on one's own terminal."""

import json
from pathlib import Path

import pytest
from one_line import one_line

from medusa_sim.engine_runs.bench import is_bench, read_bench
from medusa_sim.engine_runs.bench_row import BenchRow, Shape, checked, with_shape
from medusa_sim.engine_runs.run import _serving, engine_run, told_by
from medusa_sim.errors import DataError
from medusa_sim.plan.check import check
from medusa_sim.scenario.scenario import Scenario

PLAIN = [
    {
        "gpu_info": "NVIDIA GeForce RTX 3090", "backends": "CUDA", "n_prompt": 0, "n_gen": 64,
        "avg_ts": 125.0,
        "model_filename": "Meta-Llama-3.1-8B-Instruct-Q4_K_M.gguf",
    }
]  # fmt: skip
DRAFTED = {
    "timings": {"predicted_n": 400, "predicted_per_second": 200.0, "draft_n": 300, "draft_n_accepted": 240}
}


@pytest.fixture
def files(tmp_path):
    plain, drafted = tmp_path / "plain.json", tmp_path / "drafted.json"
    plain.write_text(json.dumps(PLAIN))
    drafted.write_text(json.dumps(DRAFTED))
    return plain, drafted


def test_a_plain_run_says_where_it_ran_and_is_checked(files):
    plain, _ = files
    assert is_bench(plain)
    told = told_by([plain])
    assert told == {
        "gpu": "rtx-3090", "runtime": "llama.cpp-cuda", "model": "llama-3.1-8b", "weight_dtype": "q4_k_m",
        "drafter": "ngram",
    }  # fmt: skip
    found = check(*engine_run(Scenario(**{**told, "acceptance": 0.5}), [plain]))
    assert [part.name for part in found.parts] == ["plain"]
    assert found.parts[0].measured_us == pytest.approx(8000.0)


def test_a_run_with_drafts_needs_their_number(files):
    _, drafted = files
    (known,) = read_bench(drafted)  # 159 rounds
    assert (known.drafts, known.acceptance_length) == (2, pytest.approx(399.0 / 159.0))
    drafted.write_text(json.dumps(DRAFTED).replace("predicted_n", "made"))
    with one_line(DataError, "--drafts", "80 %"):
        read_bench(drafted)
    (row,) = read_bench(drafted, Shape(drafts=3))
    assert row.acceptance_length == pytest.approx(3.4)
    assert row.tpot_us == pytest.approx(5000.0)
    assert row.concurrency == 1.0


def test_what_neither_file_nor_user_says_is_nothing():
    row = BenchRow(source="x", tool="own", concurrency=1.0, itl_us=8000.0)
    for given, expected in (
        (Shape(), (0.0, 0.0, 0.0)),
        (Shape(prompt=50, output=60, drafts=3), (50, 60, 0.0)),
    ):
        shaped = with_shape(row, given)
        assert (shaped.prompt, shaped.output, shaped.drafts) == expected
    drafted = BenchRow(source="x", tool="own", concurrency=1.0, tpot_us=4000.0, acceptance_length=2.0)
    assert with_shape(drafted, Shape(drafts=3)).drafts == 3
    assert with_shape(drafted, Shape()).drafts == 0.0
    assert drafted.step_us == 8000.0


@pytest.mark.parametrize(
    ("tokens_per_s", "fits"), [(8.0, True), (7.9, False), (2000.0, True), (2001.0, False)]
)
def test_a_rate_that_no_requests_give_says_that_units_are_mixed(tokens_per_s, fits):
    """Four requests of 10 ms a token give 400 tokens/s; from a fiftieth to five times that may be."""
    row = BenchRow(
        source="x", tool="own", concurrency=4.0, tpot_us=1e4, prompt=50, output=60, tokens_per_s=tokens_per_s
    )
    if fits:
        assert checked(row, Path("x.json")) is row
    else:
        with one_line(DataError, match="units mixed"):
            checked(row, Path("x.json"))


@pytest.mark.parametrize(
    ("prompt", "output", "traffic"), [(500, 200, (500, 200)), (0, 200, None), (500, 0, None)]
)
def test_a_run_that_says_its_lengths_is_served_with_them(prompt, output, traffic):
    scenario = Scenario(
        gpu="h100-sxm", model="llama-3.1-8b", drafter="eagle3", acceptance=0.7, runtime="vllm"
    )
    row = BenchRow(source="x", tool="own", concurrency=1.0, itl_us=8000.0, prompt=prompt, output=output)
    found = _serving(scenario, row).traffic
    assert traffic == (found and (found.prompt_tokens, found.output_tokens))
    asked = scenario.but(prompt_tokens=64, output_tokens=32)
    assert _serving(asked, row) is asked
