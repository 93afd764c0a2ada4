"""`sweep`: columns, formats that agree, grids of any size, the report; defaults without warnings."""

import io
import re
import subprocess
import sys
from functools import partial
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from asking import answered, document, refused
from asking import frame as rows_of
from asking import run as asked_of
from click.testing import Result

from medusa_sim.operators.kinds import KIND_OF
from medusa_sim.report.document import html_page, markdown_page
from medusa_sim.report.sources import closing, sources
from medusa_sim.report.words.scenario import heldout_text
from medusa_sim.scenario.defaults import DEFAULT_CANDIDATES
from medusa_sim.scenario.scenario import Scenario
from medusa_sim.step.network import step_launches
from medusa_sim.step.workload import decode

COLUMNS = [
    "gpu", "model", "runtime", "scope", "latency_model", "baseline", "batch", "seq_len", "candidates",
    "drafts", "tokens_per_step", "decode_step_us", "verify_step_us", "overhead", "speedup", "tokens_per_s",
    "tokens_per_s_per_user", "bound", "source", "memory_bytes", "fits_memory",
]  # fmt: skip
SWEEP = ("sweep", "--latency", "roofline", "--runtime", "cuda-graph")
"""Kernels alone run trees, which most of what follows is about."""
DEFAULT_COUNTS = list(DEFAULT_CANDIDATES)


def run(*args: str, latency: str = "roofline") -> Result:
    return asked_of(*SWEEP, "--latency", latency, *args)


def frame(*args: str, latency: str = "roofline") -> pd.DataFrame:
    return rows_of(*SWEEP, "--latency", latency, *args)


def test_defaults_and_columns():
    result = answered("sweep", "--format", "csv")
    rows = pd.read_csv(io.StringIO(result.stdout))
    assert set(COLUMNS) <= set(rows.columns)
    assert list(rows["candidates"]) == DEFAULT_COUNTS
    assert set(rows["gpu"]) == {"a100-80gb-pcie"}
    assert set(rows["model"]) == {"vicuna-7b"}
    assert set(rows["seq_len"]) == {1024}
    assert set(rows["latency_model"]) == {"calibrated"}
    assert set(rows["runtime"]) == {"cuda-graph"}
    assert set(rows["source"]) == {"calibrated"}
    assert "candidates: 1 2 3 4 6 8 12 16 24 32 48 64 96 128" in result.stderr


def test_the_arithmetic_between_columns():
    rows = frame("--batch", "1..64", "--seq", "512,4096")
    assert len(rows) == 7 * 2 * len(DEFAULT_COUNTS)
    np.testing.assert_allclose(rows["overhead"], rows["verify_step_us"] / rows["decode_step_us"], rtol=1e-12)
    np.testing.assert_allclose(rows["speedup"], rows["tokens_per_step"] / rows["overhead"], rtol=1e-12)
    rate = rows["batch"] * rows["tokens_per_step"] / rows["verify_step_us"] * 1e6
    np.testing.assert_allclose(rows["tokens_per_s"], rate, rtol=1e-12)
    np.testing.assert_allclose(rows["tokens_per_s_per_user"], rate / rows["batch"], rtol=1e-12)
    plain = rows[rows["candidates"] == 1]
    assert (plain["speedup"] == 1.0).all()
    assert (rows["speedup_low"] <= rows["speedup"]).all()
    assert (rows["speedup"] <= rows["speedup_high"]).all()


def test_scope_block_has_no_throughput_and_no_memory():
    rows = frame("--scope", "block")
    for column in ("tokens_per_s", "tokens_per_s_per_user", "memory_bytes", "fits_memory"):
        assert rows[column].isna().all()


def test_a_fixed_baseline_divides_by_one_decode_step():
    rows = frame("--baseline", "fixed", "--batch", "1,4", "--seq", "1024,2048", "--scope", "block")
    one = rows[(rows["batch"] == 1) & (rows["seq_len"] == 1024)]["decode_step_us"].iloc[0]
    np.testing.assert_allclose(rows["baseline_overhead"], rows["verify_step_us"] / one, rtol=1e-12)
    over = rows["tokens_per_step"] / rows["baseline_overhead"]
    np.testing.assert_allclose(rows["baseline_speedup"], over, rtol=1e-12)
    np.testing.assert_allclose(rows["overhead"], rows["verify_step_us"] / rows["decode_step_us"], rtol=1e-12)


def known(column: pd.Series) -> list[object]:
    """Its values, None where it is empty."""
    return [None if empty else value for value, empty in zip(column.tolist(), column.isna(), strict=True)]


def test_all_formats_agree(tmp_path):
    args = ("--batch", "1,8", "--candidates", "1,64")
    from_csv = frame(*args)
    from_json = pd.DataFrame(document(*SWEEP, *args)["rows"])
    assert run("-o", str(tmp_path / "x.parquet"), *args).exit_code == 0
    from_parquet = pd.read_parquet(tmp_path / "x.parquet")
    for other in (from_json, from_parquet):
        assert list(other.columns) == list(from_csv.columns)
        for column in from_csv:
            assert known(other[column]) == known(from_csv[column]), column
    shown = run("--format", "md", *args).stdout
    assert shown.count("\n") == 2 + 4


def test_all_rows_on_request_and_json_says_where_it_comes_from():
    found = document(*SWEEP)
    assert found["schema"] == "medusa-sim/sweep/1"
    assert found["command"].startswith("medusa-sim sweep --latency roofline")
    assert found["sources"]["gpu a100-80gb-pcie"]["bandwidth_bytes_per_s"]
    shown = run("--batch", "1..64", "--all-rows").stdout.partition("\n--")[2]
    assert len(shown.splitlines()) == 1 + 7 * len(DEFAULT_COUNTS)
    answered("sweep", "--runtime", "vllm", "--candidates", "64", "--trees")  # refused without
    rows = frame("--gpu", "h100-sxm,a40", "--model", "llama-7b,llama-3-8b", "--candidates", "64")
    pairs = list(zip(rows["gpu"], rows["model"], strict=True))
    assert pairs == [
        ("h100-sxm", "llama-7b"), ("h100-sxm", "llama-3-8b"), ("a40", "llama-7b"), ("a40", "llama-3-8b"),
    ]  # fmt: skip


def test_json_and_reports_warn_as_the_table_does(tmp_path):
    line = "sweep --gpu l40s --model llama-3.1-8b --dtype fp8_block --drafter eagle3 --runtime tensorrt-llm"
    args = [*line.split(), "--batch", "1", "--candidates", "1,4"]
    shown, found = answered(*args, "--verbose"), document(*args)
    answered(*args, "--report", tmp_path)
    report = next(tmp_path.glob("*.md")).read_text()
    for words in ("nobody measured drafting in this engine", "borrowed from l40s:trtllm"):
        assert words in " ".join(shown.stdout.split())
        assert any(words in line for line in found["warnings"])
        assert words in report
    assert {row["source"] for row in found["rows"]} == {"borrowed"}


def test_chunks_do_not_show(monkeypatch):
    whole = run("--batch", "1..64:1", "--seq", "128..4096", "--format", "csv").stdout
    monkeypatch.setattr("medusa_sim.grid.sweep.sweep.__defaults__", (97,))
    assert run("--batch", "1..64:1", "--seq", "128..4096", "--format", "csv").stdout == whole


def test_a_table_leads_with_the_best_count_of_each_batch():
    result = run("--batch", "1..64")
    lines = [line.split() for line in result.stdout.splitlines()]
    rows = frame("--batch", "1..64", "--candidates", "1..256")
    best = rows.loc[rows.groupby("batch")["speedup"].idxmax()]
    shown = {int(line[0]): int(line[1]) for line in lines if len(line) > 5 and line[0].isdigit()}
    assert shown == dict(zip(best["batch"], best["candidates"], strict=True))
    assert "\x1b" not in result.stdout


def test_report_is_self_contained_leads_with_the_answer_and_repeats_its_bytes(tmp_path):
    for name in ("b", "c"):
        assert run("--batch", "1..64", "--report", str(tmp_path / "a" / name)).exit_code == 0
    page, again = ((tmp_path / "a" / name / "report.html").read_text() for name in ("b", "c"))
    assert page.replace("/a/b", "/a/c") == again
    assert page.count("<svg") == 3
    assert not re.findall(r"(?:src|href)\s*=\s*[\"'](?!#|data:)", page)
    assert "@import" not in page
    assert page.index("Speculation gives") < page.index("<svg")
    text = (tmp_path / "a" / "b" / "report.md").read_text()
    for picture in re.findall(r"\]\(([^)]+\.png)\)", text):
        assert (tmp_path / "a" / "b" / picture).read_bytes().startswith(b"\x89PNG")
    for wanted in ("Sources", "How far to trust this", "free: candidates", "batch 64"):
        assert wanted in page
        assert wanted in text


def test_heads_decide_what_is_accepted():
    asked = ("--batch", "1", "--candidates", "8", "--acceptance", "medusa1-vicuna-7b", "--heads")
    few, every = (frame(*asked, heads)["tokens_per_step"][0] for heads in ("1", "5"))
    assert few < 2.0 < every


def test_batches_that_pay_are_shown_where_small_ones_do_not():
    model = Path(__file__).resolve().parents[2] / "benchmarks" / "models" / "llama-50m" / "config.json"
    text = run(
        *("--gpu", "cpu-emerald-rapids-50m", "--runtime", "kernel", "--dtype", "fp32"),
        *("--model", str(model), "--batch", "8", "--acceptance", "paper-fig4-sparse", "--heads", "5"),
        latency="calibrated",
    ).stdout
    assert re.search(
        r"By batch +(pays at batch .* and loses elsewhere|(loses|is uncertain) up to batch)", text
    )


def test_what_cannot_be_written_is_one_line():
    full = Path("/dev/full")
    if not full.exists():
        pytest.skip("no /dev/full here")
    with full.open("w") as out:
        found = subprocess.run(
            [sys.executable, "-c", "from medusa_sim.cli import main; main()", "sweep"],
            stdout=out,
            stderr=subprocess.PIPE,
            text=True,
            check=False,
        )
    assert found.returncode == 1
    assert found.stderr.splitlines()[-1].startswith("Error: the output cannot be written")
    assert "Traceback" not in found.stderr


@pytest.mark.parametrize(
    "arguments",
    [
        {"model": "vicuna-7b"},
        {"gpu": "h200-sxm", "tp": 8, "model": "deepseek-r1", "runtime": "sglang", "drafter": "mtp"},
        {"gpu": "h100-sxm", "model": "gpt-oss-20b", "drafter": "eagle3"},
        {
            "gpu": "h200-sxm", "tp": 8, "ep": 8, "model": "qwen3-30b-a3b", "drafter": "eagle",
            "acceptance": 0.7,
        },
        {"gpu": "h200-sxm", "model": "kimi-linear-48b-a3b", "drafter": "eagle3", "acceptance": 0.7},
        {"gpu": "b200", "tp": 8, "model": "deepseek-v3.2", "drafter": "mtp", "acceptance": 0.7},
    ],
)  # fmt: skip
def test_every_kind_of_kernel_of_a_step_names_its_source(arguments):
    scenario = Scenario(**arguments)
    step = step_launches(scenario.shard, decode(1, 1024), scenario.runtime, "model")
    kinds = {KIND_OF[launch.operator.kind].section for launch in step}
    told = next(facts for name, facts in sources([scenario]).items() if name.startswith("kernels "))
    assert kinds <= {name.partition(".")[0] for name in told}
    line = heldout_text(scenario)
    pages = [page(closing([scenario], (), "")) for page in (markdown_page, partial(html_page, "title"))]
    assert all(kind in line for kind in kinds)
    assert all(
        name in page and fit.source[:20] in page
        for name, fit in scenario.kernel_fits.by_key.items()
        for page in pages
    )


ROOT = Path(__file__).parents[2]
# what expanded grids stand for, how many rows were written, where prices come from: no warnings
_PLAIN = re.compile(r"(batch|seq_len|candidates|usd_per_million_tokens): |wrote ")
_DEMO = re.search(r"medusa-sim (sweep .*) --report out", (ROOT / "Makefile").read_text(encoding="utf-8"))
_README = re.findall(r"^medusa-sim (.+)$", (ROOT / "README.md").read_text(encoding="utf-8"), re.MULTILINE)


def _asked(command: str) -> Result:
    return answered(*command.split())


@pytest.mark.parametrize(
    "command",
    [
        "sweep",
        _DEMO[1] if _DEMO else "",
        "recommend",
        "load --requests 60 --no-search --rate 2 --seeds 1",
        "roofline",
        # several GPUs are warned of, with reason
        *(line for line in _README if line.split()[0] in ("sweep", "recommend") and "--tp" not in line),
    ],
)
def test_a_default_is_no_reason_to_warn(command):
    result = _asked(command)
    assert [line for line in result.stderr.splitlines() if not _PLAIN.match(line)] == []
    warned = re.findall(r"^warning: .*(?:\n  .*)*", result.stdout, re.MULTILINE)
    # where a profile ends, what is guessed beyond it, and what is a toss-up are part of the answer
    answers = "more may pay|are a guess|is not certain"
    assert [line for line in warned if not re.search(answers, " ".join(line.split()))] == []


def test_the_default_sweep_shows_trees_their_knee_and_the_engines_chain():
    table = _asked("sweep --batch 1..64").stdout
    first = next(line for line in table.splitlines() if line.strip().startswith("1 "))
    assert first.split()[1] == "51"
    assert "2.16x" in first
    told = re.search(r"its chain gives ([0-9.]+)x", " ".join(table.split()))
    rows = rows_of("sweep", "--runtime", "vllm", "--candidates", "1..6")
    assert told
    assert told[1] == f"{rows['speedup'].max():.2f}"
    assert len(rows_of("sweep")) == 14


@pytest.mark.parametrize(("runtime", "unit"), [("cuda-graph", "heads"), ("vllm", "drafts")])
def test_sweep_and_recommend_name_a_thing_alike(runtime, unit):
    arguments = f"--runtime {runtime} --batch 1..2"
    tables = [_asked(f"{command} {arguments}").stdout for command in ("sweep", "recommend")]
    for table in tables:
        header = next(line for line in table.splitlines() if {"batch", "speedup"} <= set(line.split()))
        assert {"heads", "drafts"} & set(header.split()) == {unit}


@pytest.mark.parametrize("drafter", ["medusa", "ngram --acceptance 0.6"])
def test_a_load_says_that_it_runs_no_trees_where_trees_could_run(drafter):
    for policy in ("none", "none,2"):
        asked = f"load --drafter {drafter} --policy {policy} --requests 40 --no-search --rate 2 --seeds 1"
        first = " ".join(_asked(asked).stdout.split("\n\n")[0].split())
        assert ("trees are not simulated" in first) is (drafter == "medusa" and policy != "none")


def test_the_largest_batch_of_a_sweep_says_what_it_is_beyond():
    """SGLang was measured with at most 48 requests a step; a small batch beside them does not hide that."""
    line = "sweep --gpu h100-sxm --model llama-3.1-8b --drafter eagle3 --acceptance 0.7,0.5 --runtime sglang"
    words = "at most 48 requests"
    for batches, told in (("1,512", True), ("512", True), ("1,8", False)):
        found = document(*line.split(), "--batch", batches, "--candidates", "1,3")
        assert any(words in warning for warning in found["warnings"]) is told, batches


def test_a_share_without_parts_is_stated(tmp_path):
    told = answered("sweep", "--batch", "1,2", "--out", tmp_path / "grid", "--shard", "2/2").stderr
    assert "warning: --shard 2/2 has no part: this work is cut into 1" in told
    assert "has no part" not in answered("sweep", "--batch", "1,2", "--out", tmp_path / "all").stderr
    refused("as in 3/8", "sweep", "--out", tmp_path / "none", "--shard", "9/8", code=2)


def test_what_several_sweeps_warn_of_is_stated_once():
    asked = ("sweep", "--model", "llama-3-8b", "--drafter", "medusa", "--candidates", "1,4")
    told = " ".join(answered(*asked, "--gpu", "a100-80gb-pcie,h100-sxm", "--verbose").stdout.split())
    assert told.count("measured on another model than llama-3-8b") == 1
    assert told.index("on h100-sxm") < told.index("measured on another model")
