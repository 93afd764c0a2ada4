"""A runtime from somebody's own benchmark: files of every tool read alike, terms recovered, runs left out."""

import json
import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from asking import answered, run
from one_line import one_line

from medusa_sim.engine_runs.bench import read_bench
from medusa_sim.engine_runs.bench_row import BenchRow, Shape, with_shape
from medusa_sim.errors import DataError, UsageError
from medusa_sim.lab.calibrate.engine_fit import (
    check_runtime_name,
    fitted_runtime,
    predicted_us,
    with_terms,
    write_runtime,
)
from medusa_sim.scenario.scenario import Scenario
from medusa_sim.specs.engine import Term
from medusa_sim.specs.runtime import load_runtime
from medusa_sim.step.drafter.layer import Eagle
from medusa_sim.step.step import Setting

FILES = Path(__file__).resolve().parents[1] / "data" / "engine"
SHAPE = Shape(concurrency=8, prompt=128, output=512)


def setting(model: str = "llama-3.1-8b", runtime: str = "vllm-0.11") -> Setting:
    return Scenario(gpu="h100-sxm", model=model, runtime=runtime, drafter="ngram", acceptance=1.0).setting


def eagle(depth: int) -> Eagle:
    return Eagle(depth=depth)


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


@pytest.mark.parametrize(
    ("values", "told"),
    [
        ({"median_itl_ms": -1.0}, "no time"),
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


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("concurrency,itl,prompt,output\n1,7,128,512\n", "no unit"),
        ("concurrency,prompt,output\n1,128,512\n", "no column itl_ms"),
        ("concurrency,itl_ms,prompt\n1,7,128\n", "columns missing: output"),
        ("concurrency,itl_ms,prompt,output\n1,fast,128,512\n", "is not a number"),
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


def made_rows(asked: Setting, sizes: tuple[int, ...], drafts: tuple[int, ...] = (0,)) -> list[BenchRow]:
    """What a server with these terms would show."""
    rows = []
    for size in sizes:
        for k in drafts:
            row = BenchRow(
                source="made", tool="csv", concurrency=float(size), itl_us=1.0, prompt=128.0, output=512.0,
                drafts=float(k), acceptance_length=1.0 + 0.5 * k,
            )  # fmt: skip
            rows.append(replace(row, itl_us=predicted_us(asked, row, eagle)))
    return rows


def truth(**terms: float) -> Setting:
    base = {
        "hidden_us_per_step": 0.0,
        "filter_us": 0.0,
        "filter_bytes_per_logit": 0.0,
        "host_us_per_token": 0.0,
    }
    return with_terms(
        setting(), {key: Term(value=value, source="made") for key, value in {**base, **terms}.items()}
    )


@pytest.mark.parametrize("inherited", ["vllm-0.10", "vllm-0.11", "vllm-0.33", "sglang-0.5"])
def test_two_numbers_of_requests_give_the_others_whatever_is_inherited(inherited):
    made = made_rows(truth(host_us_per_step=900.0, host_us_per_request=40.0), (1, 8, 16, 32, 64, 128))
    fitted = fitted_runtime(setting(runtime=inherited), [made[0], made[4]], name="mine", title="t")
    found = replace(setting(runtime=inherited), runtime=fitted.runtime)
    errors = [predicted_us(found, row, None) / row.step_us - 1.0 for row in made]
    assert np.abs(errors).max() < 0.05


def test_draft_terms_are_what_is_left_beside_plain_runs():
    asked = truth(
        host_us_per_step=900.0,
        host_us_per_request=40.0,
        draft_us_per_step=700.0,
        draft_us_per_request=30.0,
        draft_us_per_pass=650.0,
    )
    made = made_rows(asked, (1, 8, 64), (0, 3))
    fitted = fitted_runtime(setting(), made, name="mine", title="t", drafter=eagle)
    assert max(abs(each.error) for each in fitted.rows) < 0.02
    found = replace(setting(), runtime=fitted.runtime)
    for drafts, within in (
        ((0, 2), 0.02),
        ((5,), 0.10),
    ):  # one number of drafts does not say what one more takes
        others = made_rows(asked, (4, 32), drafts)
        errors = [predicted_us(found, row, eagle) / row.step_us - 1.0 for row in others]
        assert np.abs(errors).max() < within
    assert {"draft_us_per_step", "draft_us_per_request", "draft_us_per_pass"} <= fitted.terms.keys()


def test_more_runs_narrow_the_bands():
    made = made_rows(truth(host_us_per_step=900.0, host_us_per_request=40.0), (1, 4, 8, 16, 32, 64))
    few = fitted_runtime(setting(), [made[0], made[-1]], name="mine", title="t").terms
    many = fitted_runtime(setting(), made, name="mine", title="t").terms
    assert many["host_us_per_step"].half_width < few["host_us_per_step"].half_width


def test_what_cannot_be_fitted_is_refused():
    made = made_rows(truth(), (1, 8), (0, 3))
    with pytest.raises(DataError, match="plain runs at 8 requests only"):
        fitted_runtime(setting(), [made[2]], name="mine", title="t")
    with pytest.raises(DataError, match="no run without speculation"):
        fitted_runtime(setting(), [made[1], made[3]], name="mine", title="t", drafter=eagle)
    with pytest.raises(UsageError, match="--drafter"):
        fitted_runtime(setting(), made, name="mine", title="t")
    with pytest.raises(UsageError, match="no serving engine"):
        fitted_runtime(setting(runtime="cuda-graph"), made, name="mine", title="t")


def test_the_runtime_is_found_by_name(tmp_path, monkeypatch):
    monkeypatch.setenv("MEDUSA_SIM_DATA_DIR", str(tmp_path))
    made = made_rows(truth(host_us_per_step=900.0, host_us_per_request=40.0), (1, 8, 64))
    fitted = fitted_runtime(setting(), made, name="mine", title="t")
    write_runtime(tmp_path, fitted, "vllm-0.11")
    read = load_runtime("mine").engine
    for name, term in fitted.terms.items():
        assert read.terms[name].value == term.value
        assert read.terms[name].band == term.band
    assert read.terms["draft_us_per_pass"].inherited_from
    for name in ("vllm", "vllm-0.11", "../x"):
        with pytest.raises(UsageError, match="--name"):
            check_runtime_name(name)
    check_runtime_name("mine")


def test_the_command_prints_every_run_and_writes_the_runtime(tmp_path):
    files = [str(FILES / f"vllm_serve_{kind}_b{b}.json") for kind in ("plain", "spec") for b in (1, 8, 64)]
    named = ["--gpu", "h100-sxm", "--model", "llama-3.1-8b", "--name", "mine", "--drafter", "eagle"]
    written = ["--data-dir", str(tmp_path), "--format", "csv"]
    arguments = ["calibrate", "engine", *named, *files, *written]
    result = answered(*arguments)
    table = pd.read_csv(pd.io.common.StringIO(result.stdout))
    assert len(table) == 6
    assert table["error"].abs().max() < 0.05
    assert table["leave_one_out_error"].notna().all()
    assert (tmp_path / "profiles" / "runtimes" / "mine.toml").exists()
    for missing in ("--model", "--name"):
        at = arguments.index(missing)
        refused = run(*(arguments[:at] + arguments[at + 2 :]))
        assert refused.exit_code == 2


@pytest.mark.parametrize(("model", "name"), [("llama-3.1-8b", "Llama-3.1-8B"), ("qwen3-14b", "Qwen3-14B")])
@pytest.mark.parametrize("inherited", ["vllm-0.11", "vllm-0.33"])
def test_measured_servers_are_given_within_five_percent(shared_data, model, name, inherited):
    """From 8 and 64 requests to 16, 32 and 128 (nobody measured one request)."""
    frame = pd.read_csv(shared_data / "engines" / "plain_decode_mlenergy.csv")
    frame = frame[frame["model"].str.contains(name) & (frame["tp"] == 1) & (frame["task"] == "lm-arena-chat")]
    rows = {
        int(each.max_num_seqs): BenchRow(
            source="ml.energy", tool="csv", concurrency=float(each.avg_batch),
            itl_us=1e3 * float(each.median_itl_ms), prompt=125.0, output=float(each.avg_output_len),
        )
        for each in frame.itertuples()
    }  # fmt: skip
    asked = setting(model, inherited)
    fitted = fitted_runtime(asked, [rows[8], rows[64]], name="mine", title="t")
    found = replace(asked, runtime=fitted.runtime)
    for size in (16, 32, 128):
        assert predicted_us(found, rows[size], None) == pytest.approx(rows[size].step_us, rel=0.05)


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
