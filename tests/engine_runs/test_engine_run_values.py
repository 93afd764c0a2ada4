"""What each tool's file says, by hand: numbers of a made-up run on every reader's path."""

import json
from pathlib import Path

import numpy as np
import pytest
from left_out import numbers_left_out

from medusa_sim.acceptance.engine_counters import AcceptanceCounts
from medusa_sim.engine_runs.bench import is_bench, read_bench
from medusa_sim.engine_runs.bench_row import BenchRow, Shape, checked, with_shape
from medusa_sim.engine_runs.load_generators import rows_of_result
from medusa_sim.engine_runs.log import drafts_of, lines_of, logged
from medusa_sim.engine_runs.run import _of_counts, _of_row, _rows, engine_run, refuse_other_model, told_by
from medusa_sim.errors import DataError, UsageError
from medusa_sim.scenario.question import Measured
from medusa_sim.scenario.scenario import Scenario

SERVED = {
    "completed": 10, "max_concurrency": 4, "median_itl_ms": 20.0, "median_tpot_ms": 8.0,
    "total_input_tokens": 5000, "total_output_tokens": 2000, "output_throughput": 480.0,
}  # fmt: skip
FILES = Path(__file__).parents[1] / "data" / "engine"
WHERE, NOTHING = Path("run.json"), Shape()


def row_of(document: dict, shape: Shape = NOTHING) -> BenchRow:
    (row,) = rows_of_result(document, WHERE, shape)
    return row


def test_vllms_client_tells_steps_and_tokens_apart():
    drafted = {
        "spec_decode_num_drafts": 100, "spec_decode_draft_tokens": 300, "spec_decode_acceptance_length": 2.5,
    }  # fmt: skip
    row = row_of({**SERVED, **drafted})
    assert (row.concurrency, row.prompt, row.output, row.tokens_per_s) == (4.0, 500.0, 200.0, 480.0)
    assert (row.itl_us, row.tpot_us, row.step_us) == (20_000.0, 8_000.0, 20_000.0)
    assert (row.drafts, row.acceptance_length) == (3.0, 2.5)
    # fewer requests than slots: no more than all of them run at once
    assert row_of({**SERVED, "max_concurrency": 64}).concurrency == 10.0
    assert row_of({**SERVED, "max_concurrency": None}, Shape(concurrency=2.0)).concurrency == 2.0
    for broken in ({"completed": 0}, {"failed": 1}, {"max_concurrency": None}):
        with pytest.raises(DataError):
            row_of({**SERVED, **broken})
    assert row_of({**SERVED, "completed": 1}).prompt == 5000.0


def test_sglangs_client_has_no_steps_where_it_drafts():
    sglang = {**SERVED, "backend": "sglang-oai"}
    assert row_of(sglang).itl_us == 20_000.0
    assert row_of({**sglang, "accept_length": 1.0}, Shape(drafts=3)).itl_us == 20_000.0
    # one step in twenty kept a draft
    assert row_of({**sglang, "accept_length": 1.05}, Shape(drafts=3)).itl_us is None
    drafted = row_of({**sglang, "accept_length": 2.0}, Shape(drafts=3))
    assert (drafted.itl_us, drafted.drafts, drafted.acceptance_length) == (None, 3, 2.0)
    # two tokens a step of 8 ms each
    assert drafted.step_us == 16_000.0


def test_offline_runs_are_shared_out_among_their_tokens():
    shape = Shape(concurrency=8.0, prompt=100, output=50)
    # 50 tokens of each of 8 requests in 2 s; 4 requests of 50 tokens a second
    latency = row_of({"avg_latency": 2.0}, shape)
    assert (latency.tpot_us, latency.concurrency, latency.offline) == (40_000.0, 8.0, True)
    throughput = row_of({"requests_per_second": 4.0}, shape)
    assert (throughput.tokens_per_s, throughput.tpot_us, throughput.with_prompts) == (200.0, 40_000.0, True)


def benchmark(strategy: dict, model: str) -> dict:
    metrics = {
        "inter_token_latency_ms": {"successful": {"median": 10.0}},
        "prompt_token_count": {"successful": {"mean": 300.0}},
        "output_token_count": {"successful": {"mean": 100.0}},
        "output_tokens_per_second": {"successful": {"mean": 500.0}},
        "request_concurrency": {"successful": {"mean": 4.5}},
    }
    return {"metrics": metrics, "config": {"strategy": strategy, "backend": {"model": model}}}


def test_streams_of_guidellm_are_asked_counted_or_one():
    strategies = ({"streams": 6}, {"type_": "synchronous"}, {"type_": "constant"})
    report = {"benchmarks": [benchmark(strategy, "served") for strategy in strategies]}
    rows = list(rows_of_result(report, WHERE, NOTHING))
    assert [row.concurrency for row in rows] == [6.0, 1.0, 4.5]
    assert {(row.tpot_us, row.prompt, row.output, row.tokens_per_s) for row in rows} == {
        (10_000.0, 300.0, 100.0, 500.0)
    }


def test_a_model_is_named_where_each_tool_names_it():
    row = row_of(AIPERF | {"input_config": {"endpoint": {"model_names": ["first", "second"]}}})
    assert (row.model, row.tpot_us, row.prompt, row.output) == ("first", 12_000.0, 300.0, 100.0)
    report = {"benchmarks": [benchmark({"streams": 6}, "served"), benchmark({"streams": 8}, "another")]}
    assert [row.model for row in rows_of_result(report, WHERE, NOTHING)] == ["served", "served"]
    assert row_of({**SERVED, "model": " ", "model_id": "of vllm"}).model == "of vllm"


AIPERF = {
    "inter_token_latency": {"avg": 12.0}, "concurrency": 2, "input_sequence_length": {"avg": 300.0},
    "output_sequence_length": {"avg": 100.0}, "output_token_throughput": {"avg": 150.0},
}  # fmt: skip


def test_aiperf_tells_what_its_server_accepted(tmp_path):
    """16 steps of 4 drafts that kept 0, 1, 2, 3, 4 in 2, 2, 4, 6, 2 of them: 36 tokens, 3.25 a step."""
    pooled = {"0": 2, "1": 2, "2": 4, "3": 6, "4": 2}
    drafted = AIPERF | {"pooled_spec_decode_acceptance_histogram": pooled}
    row = row_of(drafted)
    assert (row.drafts, row.acceptance_length, row.tells_drafts) == (4.0, 3.25, True)
    assert row.step_us == 39_000.0
    # a fifth draft that no step kept
    assert row_of(drafted | {"total_draft_tokens": {"avg": 80}}).drafts == 5.0
    path = tmp_path / "profile_export_aiperf.json"
    path.write_text(json.dumps(drafted))
    asked = Scenario(gpu="h100-sxm", model="llama-3.1-8b", drafter="eagle3")
    _, run = engine_run(asked, [path])
    assert run.accepted == (14 / 16, 12 / 16, 8 / 16, 2 / 16)
    assert not run.caveat


def test_results_that_cannot_tell_drafts_are_stated_to_be_read_as_plain(tmp_path):
    shape = Shape(concurrency=8.0, prompt=100, output=50)
    report = {"benchmarks": [benchmark({"streams": 6}, "served")]}
    untold = [AIPERF, {"avg_latency": 2.0}, {"requests_per_second": 4.0}, report]
    assert not any(row.tells_drafts for each in untold for row in rows_of_result(each, WHERE, shape))
    assert row_of(SERVED).tells_drafts
    path = tmp_path / "plain.json"
    path.write_text(json.dumps(AIPERF))
    asked = Scenario(gpu="h100-sxm", model="llama-3.1-8b", drafter="ngram", acceptance=0.5)
    _, run = engine_run(asked, [path])
    assert run.caveat.startswith("plain.json: does not say whether its server drafted")
    _, run = engine_run(asked, [path], given=Measured(drafts=0))
    assert not run.caveat


VLLM = (
    "Avg prompt throughput: {prompts} tokens/s, Avg generation throughput: {rate} tokens/s, Running: 8 reqs\n"
)


def test_a_log_counts_what_ran_and_who_read():
    """A tenth of a token a second is one, and so is a prompt's; none is none."""
    line = (VLLM.format(prompts=prompts, rate=rate) for prompts, rate in (("0.05", "0.05"), ("0.0", "0.0")))
    (one,) = lines_of("".join(line))
    assert (one.tokens_per_s, one.reads, one.running) == (0.05, True, 8)
    assert logged(VLLM.format(prompts="0.0", rate="4.0")).reads is False


SGLANG = (
    "Decode batch. #running-req: 16, accept len: {length:.2f}, accept rate: {share:.2f}, "
    "gen throughput (token/s): 9.0\n"
)


def test_drafts_of_sglangs_log_are_what_was_accepted_over_its_share():
    """1.41 more than one token at a rate of 0.47: three drafts."""
    for length, share, drafts in ((2.41, 0.47, 3), (1.0, 0.47, None), (1.05, 0.05, 1)):
        assert drafts_of(lines_of(SGLANG.format(length=length, share=share))) == drafts


@pytest.mark.parametrize("drafts", [1, 2, 3, 5, 7, 15])
@pytest.mark.parametrize("more", [0, 1], ids=["today", "before"])
@pytest.mark.parametrize("rate", [0.3, 0.6])
def test_both_meanings_of_sglangs_accept_rate_give_the_drafts(drafts, more, rate):
    """Accepted of drafted, and before April 2026 (pull request 23530) each with one more."""
    accepted = [drafts * (rate + wobble) for wobble in (-0.04, 0.0, 0.03, 0.06)]
    lines = (SGLANG.format(length=1.0 + a, share=(a + more) / (drafts + more)) for a in accepted)
    assert drafts_of(lines_of("".join(lines))) == drafts


def test_three_lines_or_more_lose_the_first():
    def lines(*rates: float) -> str:
        return "".join(VLLM.format(prompts="0.0", rate=rate) for rate in rates)

    assert logged(lines(4.0, 8.0)).tokens_per_s == 6.0
    assert logged(lines(4.0, 8.0, 10.0)).tokens_per_s == 9.0
    # seven of eight running are fewer than 0.9 of them, nine of ten are not
    fewer = lines(4.0).replace("8 reqs", "7 reqs")
    assert logged(fewer + lines(8.0)).lines == 1
    both = lines(4.0).replace("8 reqs", "9 reqs") + lines(8.0).replace("8 reqs", "10 reqs")
    assert (logged(both).lines, logged(both).running) == (2, 9.5)


def made(**given: float) -> BenchRow:
    usual = {"concurrency": 4.0, "tpot_us": 1e4, "prompt": 50.0, "output": 60.0}
    return BenchRow(source="x", tool="csv", **{**usual, **given})


@pytest.mark.parametrize(
    ("given", "fits"),
    [
        ({"tpot_us": 49.9}, False), ({"tpot_us": 50.0}, True), ({"tpot_us": 60e6}, True),
        ({"tpot_us": 60.1e6}, False), ({"itl_us": 49.9}, False), ({"concurrency": 1.0}, True),
        ({"concurrency": 0.99}, False), ({"prompt": 1.0}, True), ({"prompt": 0.99}, False),
        ({"output": 0.99}, False), ({"acceptance_length": 0.99}, False),
        ({"acceptance_length": 4.0, "drafts": 3.0}, True), ({"drafts": -0.05}, False),
        ({"acceptance_length": 4.05, "drafts": 3.0}, False),
    ],
)  # fmt: skip
def test_numbers_that_cannot_be_are_refused(given, fits):
    """A step takes 50 us to a minute; requests, tokens of each and tokens a step are one or more."""
    if fits:
        assert checked(made(**given), WHERE) == made(**given)
    else:
        with pytest.raises(DataError):
            checked(made(**given), WHERE)


def test_a_run_that_kept_any_draft_made_those_that_are_stated():
    assert with_shape(made(acceptance_length=1.05), Shape(drafts=3)).drafts == 3
    assert with_shape(made(acceptance_length=1.0), Shape(drafts=3)).drafts == 0


def test_units_are_compared_by_steps_where_no_token_is_timed():
    """Four requests with two tokens in each step of 10 ms make 800 tokens/s; 4,000 are five times as many."""
    step = {"source": "x", "tool": "own", "concurrency": 4.0, "itl_us": 1e4, "acceptance_length": 2.0}
    assert checked(BenchRow(**step, drafts=3, prompt=9, output=9, tokens_per_s=3999.0), WHERE)
    with pytest.raises(DataError):
        checked(BenchRow(**step, drafts=3, prompt=9, output=9, tokens_per_s=4001.0), WHERE)


@pytest.mark.parametrize(("unit", "factor"), [("us", 1.0), ("ms", 1e3), ("s", 1e6), ("seconds", 1e6)])
def test_a_columns_unit_is_in_its_name(tmp_path, unit, factor):
    path = tmp_path / "own.csv"
    path.write_text(f"concurrency,prompt,output,itl_{unit}\n1,50,60,{9_000 / factor}\n")
    assert read_bench(path)[0].itl_us == pytest.approx(9_000.0, rel=1e-12)


def test_what_an_engine_counts_is_the_run_where_no_client_timed_it():
    """Of 100 drafts at two positions 80 and 50 were kept: 2.3 tokens a step, of 8 ms a token."""
    counts = AcceptanceCounts(
        engine="vllm", model="", steps=100, tried=np.array([100, 80]), accepted=np.array([80, 50]),
        tpot_us=8_000.0, running=3.6,
    )  # fmt: skip
    own = {"drafts": 2, "accepted_by_position": (0.8, 0.5), "tokens_per_step": pytest.approx(2.3)}
    assert _of_counts(counts, {}) == {**own, "tpot_ms": 8.0, "batch": 4}
    assert _of_counts(counts, {"itl_ms": 9.0, "batch": 2}) == own


def csv(folder: Path, *lines: str) -> Path:
    path = folder / "own.csv"
    path.write_text("concurrency,prompt,output,drafts,acceptance_length,itl_ms\n" + "\n".join(lines))
    return path


def test_a_runs_plain_one_is_that_of_as_many_requests(tmp_path):
    path = csv(tmp_path, "4,500,200,0,1,8", "8,500,200,0,1,9", "8,500,200,3,2.5,12", "16,500,200,3,2.5,14")
    rows = read_bench(path)
    assert [row.source.rpartition(" ")[2] for row in rows] == ["2", "3", "4", "5"]
    scenario = Scenario(gpu="h100-sxm", model="llama-3.1-8b", drafter="eagle3", acceptance=0.7)
    _, row, plain = _rows([path], {"batch": 8.0}, scenario)
    assert (row.drafts, row.itl_us, plain.itl_us) == (3.0, 12_000.0, 9_000.0)
    assert _of_row(row, plain) == {
        "batch": 8, "drafts": 3, "tokens_per_step": 2.5, "itl_ms": 12.0, "plain_tpot_ms": 9.0,
    }  # fmt: skip
    with pytest.raises(UsageError, match="2 runs"):
        _rows([path], {}, scenario)
    with pytest.raises(UsageError, match="no run at 5"):
        _rows([path], {"batch": 5.0}, scenario)
    _, alone, nothing = _rows([path], {"batch": 4.0}, scenario)
    assert (alone.drafts, nothing) == (0.0, None)
    # as many within 2 %
    near = csv(tmp_path, "50,500,200,0,1,8", "51,500,200,3,2.5,12")
    assert _rows([near], {}, scenario)[2].concurrency == 50.0
    assert _rows([csv(tmp_path, "50,500,200,0,1,8", "52,500,200,3,2.5,12")], {}, scenario)[2] is None
    with pytest.raises(UsageError, match=r"no run at 2\."):
        _rows([csv(tmp_path, "2,500,200,0,1,8")], {"batch": 2.05}, scenario)


def test_a_table_names_the_model_of_each_row(tmp_path):
    """As `validate served` reads it; other columns of its are left alone."""
    path = tmp_path / "runs.csv"
    path.write_text("model,tp,concurrency,prompt,output,tpot_ms\nqwen3-8b,4,1,500,200,8\n,4,2,500,200,9\n")
    named, unnamed = read_bench(path, Shape())
    assert (named.model, unnamed.model) == ("qwen3-8b", "")
    refuse_other_model("qwen3-8b", named)
    refuse_other_model("llama-3.1-8b", unnamed)
    with pytest.raises(UsageError, match="give --model qwen3-8b"):
        refuse_other_model("llama-3.1-8b", named)


def test_files_of_two_models_are_refused(tmp_path):
    paths = []
    for name in ("meta-llama/Llama-3.1-8B-Instruct", "Qwen/Qwen3-8B"):
        paths.append(tmp_path / f"{len(paths)}.json")
        paths[-1].write_text(json.dumps({**SERVED, "model_id": name}))
    assert all(map(is_bench, paths))
    assert told_by(paths[:1]) == {"model": "llama-3.1-8b", "drafter": "ngram"}
    with pytest.raises(UsageError, match=r"llama-3\.1-8b and qwen3-8b"):
        told_by(paths)


@pytest.mark.parametrize("name", ["vllm.log", "vllm_serve_spec_b8.json"])
def test_what_each_position_accepted_is_read_from_the_run_itself(name):
    """Both files say 70, 42 and 21 %."""
    scenario = Scenario(
        gpu="h100-sxm", model="llama-3.1-8b", drafter="eagle3", acceptance=0.7, runtime="vllm"
    )
    _, run = engine_run(scenario, [FILES / name])
    assert run.accepted == pytest.approx((0.7, 0.42, 0.21), abs=1e-3)
    assert (run.batch, run.drafts) == (8, 3)


def test_what_is_left_out_is_nothing_but_for_these():
    """Factors and counts are one, sizes those that most have."""
    assert numbers_left_out("engine_runs") == {
        "BenchRow.acceptance_length": 1.0,
    }
