"""A runtime from somebody's own benchmark: files of every tool read alike, terms recovered, runs left out."""

import json
import math
from dataclasses import replace
from pathlib import Path

import pytest
from one_line import one_line

import medusa_sim as ms
from medusa_sim.engine_runs.bench import read_bench
from medusa_sim.engine_runs.bench_row import BenchRow, Shape, with_shape
from medusa_sim.engine_runs.run import engine_run
from medusa_sim.errors import DataError, UsageError

FILES = Path(__file__).resolve().parents[1] / "data" / "engine"
SHAPE = Shape(concurrency=8, prompt=128, output=512)


def test_every_tools_file_is_the_same_runs():
    by_tool = {
        "vllm": [row for b in (1, 8, 64) for row in read_bench(FILES / f"vllm_serve_plain_b{b}.json")],
        "sglang": read_bench(FILES / "sglang_bench.jsonl"),
        "guidellm": read_bench(FILES / "guidellm_benchmarks.json"),
        "csv": read_bench(FILES / "bench.csv"),
        "aiperf": [row for b in (1, 64) for row in read_bench(FILES / f"profile_export_aiperf_b{b}.json")],
    }
    expected = {row.concurrency: row.step_us for row in by_tool["vllm"]}
    for rows in by_tool.values():
        for row in rows:
            assert row.step_us == pytest.approx(expected[row.concurrency], rel=1e-3)
            assert (row.prompt, row.output) == (pytest.approx(128, rel=0.01), pytest.approx(512, rel=0.01))
    assert by_tool["vllm"][0].itl_us is not None
    assert by_tool["aiperf"][0].itl_us is None  # its inter-token latency is per token


def test_speculative_runs_say_drafts_and_acceptance():
    (row,) = read_bench(FILES / "vllm_serve_spec_b8.json")
    assert (row.drafts, row.acceptance_length) == (3.0, pytest.approx(2.33))
    assert row.step_us == row.itl_us


def test_results_without_a_shape_take_it_from_the_command():
    (row,) = read_bench(FILES / "vllm_latency_b8.json", SHAPE)
    assert row.offline
    assert row.tpot_us == pytest.approx(7.27e3, rel=0.01)
    (row,) = read_bench(FILES / "vllm_throughput.json", SHAPE)
    assert row.tokens_per_s == pytest.approx(3.2 * 512)
    for name in ("vllm_latency_b8.json", "vllm_throughput.json"):
        with pytest.raises(DataError, match="does not write its shape"):
            read_bench(FILES / name)


def changed(tmp_path: Path, **values: object) -> Path:
    result = json.loads((FILES / "vllm_serve_plain_b8.json").read_text())
    result.update(values)
    path = tmp_path / "result.json"
    path.write_text(json.dumps({key: value for key, value in result.items() if value != "gone"}))
    return path


def test_tensorrt_llm_tells_tokens_an_iteration(tmp_path):
    """Its client writes no drafts, as SGLang's; 511 steps of 512 tokens are plain decoding."""
    for told in ({"mean": 2.33}, 2.33):
        (row,) = read_bench(changed(tmp_path, avg_decoded_tokens_per_iter=told), Shape(drafts=3))
        assert (row.engine, row.drafts, row.acceptance_length) == ("tensorrt-llm", 3.0, 2.33)
        assert row.step_us == row.itl_us
    with pytest.raises(DataError, match="add --drafts K"):
        read_bench(changed(tmp_path, avg_decoded_tokens_per_iter={"mean": 2.33}))
    for mean, engine in ((512 / 511, "tensorrt-llm"), (0.0, "")):
        path = changed(tmp_path, avg_decoded_tokens_per_iter={"mean": mean})
        (row,) = read_bench(path)
        assert (row.engine, row.drafts, row.acceptance_length) == (engine, 0.0, 1.0)


def test_runs_are_of_the_runtimes_of_their_engine(tmp_path):
    """TensorRT-LLM's kernels have another name than it, a runtime of one's own has any."""
    own = tmp_path / "mine.toml"
    own.write_text('inherits = "tensorrt-llm-1.2"\ntitle = "mine"\n[engine]\nwiden = 2.0\n')
    path = changed(tmp_path, backend="tensorrt-llm")
    for runtime in ("tensorrt-llm-1.2", str(own)):
        scenario = ms.Scenario(gpu="h100-sxm", model="llama-3.1-8b", drafter="ngram", runtime=runtime)
        assert engine_run(scenario, [path])[1].drafts == 0
    with pytest.raises(UsageError, match="a run of vllm, not of mine"):
        engine_run(scenario, [changed(tmp_path, backend="vllm")])


@pytest.mark.parametrize(
    ("values", "told"),
    [
        ({"median_itl_ms": -1.0}, "time between chunks of -1 ms is none"),
        ({"median_itl_ms": 0.0071, "median_tpot_ms": 0.0071}, "another one"),
        ({"median_itl_ms": "7"}, "a number is needed"),
        ({"median_tpot_ms": 7100.0, "median_itl_ms": 7100.0}, "units mixed"),
        ({"total_input_tokens": "gone"}, "total_input_tokens is None"),
        ({"max_concurrency": None}, "--max-concurrency"),
        ({"completed": 0}, "requests failed"),
        ({"failed": 3}, "3 requests failed"),
        ({"median_itl_ms": "gone"}, "no result of a known benchmark"),
        ({"spec_decode_num_drafts": 9, "spec_decode_draft_tokens": 9, "spec_decode_acceptance_length": 3.0},
         "cannot be"),
    ],
)  # fmt: skip
def test_results_that_cannot_be_are_refused_in_one_line(values, told, tmp_path):
    with one_line(DataError, match=told):
        read_bench(changed(tmp_path, **values))


def test_a_run_of_one_request_has_its_lengths(tmp_path):
    one = {"completed": 1, "total_input_tokens": 128, "total_output_tokens": 512, "output_throughput": 140.0}
    (row,) = read_bench(changed(tmp_path, **one))
    assert (row.prompt, row.output) == (128, 512)


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("concurrency,itl,prompt,output\n1,7,128,512\n", "no unit"),
        ("concurrency,prompt,output\n1,128,512\n", "no column itl_ms"),
        ("concurrency,itl_ms,prompt\n1,7,128\n", "columns missing: output"),
        (
            "# ours\nconcurrency,itl_ms,prompt,output\n1,fast,128,512\n",
            "line 3: itl_ms .* not a number",
        ),
        ("concurrency,itl_ms,prompt,output\n-1,7,128,512\n", "concurrency -1"),
        ("concurrency,itl_ms,prompt,output\n1,,128,512\n", "neither itl nor tpot"),
        ("concurrency,itl_us,prompt,output\n1,7,128,512\n", "another one"),
    ],
)
def test_tables_are_checked(text, told, tmp_path):
    path = tmp_path / "bench.csv"
    path.write_text(text)
    with pytest.raises(DataError, match=told):
        read_bench(path)


def test_other_json_is_refused(tmp_path):
    for content in ("[1]", '{"a": 1}', '{"benchmarks": [{"metrics": {}}]}', "{"):
        path = tmp_path / "x.json"
        path.write_text(content)
        with pytest.raises(DataError, match="give a result"):
            read_bench(path)


def test_sglang_writes_an_infinite_rate_and_shares_chunks_out_among_tokens(tmp_path):
    line = (FILES / "sglang_bench.jsonl").read_text(encoding="utf-8").splitlines()[0]
    written = {**json.loads(line), "request_rate": math.inf, "max_concurrency": 8, "completed": 64}
    path = tmp_path / "closed.jsonl"
    for length in (None, 2.5):
        path.write_text(json.dumps({**written, "accept_length": length}), encoding="utf-8")
        (row,) = read_bench(path, Shape(drafts=3.0))
        assert (row.itl_us is None) == (length is not None)
        assert row.step_us == pytest.approx(
            row.itl_us if length is None else 1e3 * written["median_tpot_ms"] * length
        )


def test_drafts_that_are_given_belong_to_rows_that_speculate():
    plain = BenchRow(source="a", tool="aiperf", concurrency=1.0, tpot_us=9000.0)
    drafted, known = replace(plain, acceptance_length=2.0), replace(plain, acceptance_length=2.0, drafts=5.0)
    shape = Shape(drafts=3, prompt=700)
    assert [with_shape(row, shape).drafts for row in (plain, drafted, known)] == [0.0, 3.0, 5.0]
    assert with_shape(replace(plain, prompt=20.0), shape).prompt == 20.0
    assert with_shape(plain, shape).prompt == 700.0


def test_a_synchronous_run_of_guidellm_has_one_stream(tmp_path):
    report = json.loads((FILES / "guidellm_benchmarks.json").read_text())
    alone = [each for each in report["benchmarks"] if each["config"]["strategy"]["streams"] == 1]
    report["benchmarks"] = [each | {"config": {"strategy": {"type_": "synchronous"}}} for each in alone]
    path = tmp_path / "guidellm_benchmarks.json"
    path.write_text(json.dumps(report))
    assert [row.concurrency for row in read_bench(path)] == [1]
