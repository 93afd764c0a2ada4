"""Logs of vLLM and SGLang: the steady lines of each are one run, whichever door reads them."""

from pathlib import Path

import pytest
from click.testing import CliRunner
from one_line import one_line

import medusa_sim as ms
from medusa_sim.cli import cli
from medusa_sim.engine_runs.bench import is_bench, read_bench
from medusa_sim.engine_runs.bench_row import Shape
from medusa_sim.engine_runs.log import lines_of, logged
from medusa_sim.errors import DataError

FILES = Path(__file__).parents[1] / "data" / "engine"
OLDER = (
    "[gpu=0] Decode batch. #running-req: 16, #token: 100, token usage: 0.12, accept len: 2.41, "
    "gen throughput (token/s): 1650.20, #queue-req: 0"
)


@pytest.mark.parametrize(("name", "tokens_per_s"), [("vllm", 2100.0), ("sglang", 2200.0)])
def test_steady_lines_are_a_run(name: str, tokens_per_s: float) -> None:
    path = FILES / f"{name}.log"
    assert is_bench(path)
    (row,) = read_bench(path)
    assert (row.engine, row.concurrency, row.drafts) == (name, 8.0, 3.0)
    assert row.tokens_per_s == pytest.approx(tokens_per_s)
    assert row.tpot_us == pytest.approx(8.0 / tokens_per_s * 1e6)
    assert row.acceptance_length == pytest.approx(2.33, abs=0.005)


def test_the_beginning_and_the_end_are_left_out() -> None:
    text = (FILES / "sglang.log").read_text()
    every, steady = lines_of(text), logged(text)
    assert steady is not None
    assert [line.running for line in every] == [8, 8, 8, 3]
    assert steady.lines == 2
    one = logged(OLDER)
    assert one is not None
    assert (one.lines, one.running, one.tokens_per_s, one.length) == (1, 16.0, 1650.2, 2.41)
    assert logged("nothing of an engine") is None
    assert logged(OLDER.replace("1650.20", "0.00")) is None


VLLM = (
    "Engine 000: Avg prompt throughput: {prompts:.1f} tokens/s, "
    "Avg generation throughput: {rate:.1f} tokens/s, Running: 8 reqs, Waiting: 0 reqs, KV cache: 0.4%\n"
)


def test_requests_that_read_their_prompts_are_no_slower_tokens(tmp_path: Path) -> None:
    """vLLM counts them among the running: a simulated server's log is what is predicted of that server."""
    server = {"prompt_tokens": 30_000, "output_tokens": 500}
    scenario = ms.Scenario(gpu="h100-sxm", model="llama-3.1-8b", drafter="eagle3", runtime="vllm", **server)
    run = scenario.simulate("none", users=8, requests=200, seeds=1, search=False, **server).frame
    rate, path = float(run["tokens_per_s"].iloc[0]), tmp_path / "vllm.log"
    line = VLLM.format(prompts=60 * rate, rate=rate)
    path.write_text(4 * line)
    own = scenario.check(path).answer
    assert (own.run.timed_by, own.run.batch) == ("rate", 8)
    assert own.run.time_us == pytest.approx(own.predicted_us, rel=0.02)
    quiet = VLLM.format(prompts=0.0, rate=1.07 * rate)
    path.write_text(line + 3 * quiet + line)
    steps = scenario.check(path).answer.run
    assert steps.timed_by == "tpot"
    assert steps.time_us == pytest.approx(8e6 / (1.07 * rate), rel=1e-3)


def test_older_logs_are_asked_for_their_drafts(tmp_path: Path) -> None:
    path = tmp_path / "older.log"
    path.write_text(OLDER)
    with one_line(DataError, match="does not say how many drafts; add --drafts K"):
        read_bench(path)
    (row,) = read_bench(path, Shape(drafts=3))
    assert (row.drafts, row.acceptance_length) == (3.0, 2.41)
    path.write_text(OLDER.replace("accept len: 2.41, ", ""))
    (plain,) = read_bench(path)
    assert (plain.drafts, plain.acceptance_length) == (0.0, 1.0)


@pytest.mark.parametrize("name", ["vllm", "sglang"])
def test_check_takes_a_log(name: str) -> None:
    words = ["check", "--gpu", "h100-sxm", "--model", "llama-3.1-8b", "--drafter", "eagle3"]
    result = CliRunner().invoke(
        cli, [*words, "--runtime", name, str(FILES / f"{name}.log"), "--format", "csv"]
    )
    assert result.exit_code in (0, 3), result.output
    assert "round" in result.stdout
    other = {"vllm": "sglang", "sglang": "vllm"}[name]
    refused = CliRunner().invoke(cli, [*words, "--runtime", other, str(FILES / f"{name}.log")])
    assert f"is a run of {name}" in refused.output


def test_a_line_that_says_nothing_of_prompts_reads_none() -> None:
    (line,) = lines_of("Avg generation throughput: 100.0 tokens/s, Running: 8 reqs, Waiting: 0 reqs\n")
    assert (line.reads, line.running, line.tokens_per_s) == (False, 8, 100.0)
