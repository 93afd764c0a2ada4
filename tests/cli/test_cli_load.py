"""`medusa-sim load`: what it prints, and the same numbers in Python."""

import pytest
from asking import answered, document, frame

import medusa_sim as ms
from medusa_sim.writing import RECORD

BASE = ("load", "--gpu", "h100-sxm", "--model", "llama-3.1-8b", "--drafter", "eagle3", "--policy", "none,3",
        "--requests", "250", "--seeds", "1", "--max-num-seqs", "64")  # fmt: skip


def test_the_sentence_comes_first():
    result = answered(*BASE, "--tpot-ms", "12", "--rate", "6", "--target-rate", "40")
    lines = [line for line in result.stdout.splitlines() if line]
    assert lines[1].startswith("With 3 drafts a step the server sustains ")
    assert "GPUs" in result.stdout
    assert max(map(len, lines[2:])) <= 200


def test_json_and_csv_and_python_say_the_same():
    found = document(*BASE, "--rate", "6", "--no-search")
    assert found["schema"] == "medusa-sim/load/1"
    rows = frame(*BASE, "--rate", "6", "--no-search").to_dict("records")
    ours = ms.simulate(
        ["none", "3"], rates=6.0, requests=250, seeds=1, max_num_seqs=64, search=False, gpu="h100-sxm",
        model="llama-3.1-8b", drafter="eagle3",
    ).frame  # fmt: skip
    for row, value, line in zip(rows, found["rows"], ours.to_dict("records"), strict=True):
        assert row["policy"] == value["policy"] == line["policy"]
        for name in ("ttft_p99_s", "tpot_mean_s", "tokens_per_s", "kv_share_most"):
            assert row[name] == value[name] == line[name]
        assert value["tpot_mean_s_half_width"] is None  # one seed


def test_entries_of_policies_have_commas_and_the_first_line_says_what_was_asked():
    result = answered(*BASE[:7], "--policy", "draft_len_schedule=4:3,8:2,none", "--users", "4", "--no-search",
                   "--requests", "20", "--cancelled", "0.1", "--prefix-hit-rate", "0.5",
                      "--prefix", "session")  # fmt: skip
    assert "50 % of prompts found in the cache (session); 10 % of requests cancelled" in result.stdout
    rows = [line.split()[1] for line in result.stdout.splitlines() if line.startswith("   - ")]
    assert rows == ["draft_len_schedule=4:3,8:2", "none"]


def test_rates_are_chosen_where_none_is_given():
    assert frame(*BASE)["rate_per_s"].nunique() == 4


def test_a_trace_runs_in_its_own_time(tmp_path):
    trace = tmp_path / "trace.csv"
    lines = [f"{0.05 * i:.3f},{100 + i},{20 + i % 7}" for i in range(80)]
    trace.write_text("TIMESTAMP,ContextTokens,GeneratedTokens\n" + "\n".join(lines) + "\n", encoding="utf-8")
    found = frame(*BASE, "--trace", trace, "--no-search")
    assert found["rate_per_s"][0] == pytest.approx(20.0)
    assert found["requests"][0] == 80
    answered(*BASE, "--trace", trace, "--max-num-batched-tokens", "64", "--no-search")


def test_the_timeline_is_rows_over_time():
    rows = frame(*BASE, "--rate", "6", "--timeline", "--no-search")
    assert set(rows["policy"]) == {"none", "K=3"}
    assert rows["time_s"][0] < rows["time_s"][1]


def test_the_report_has_plots(tmp_path):
    folder = tmp_path / "report"
    answered(*BASE, "--rate", "4,12", "--tpot-ms", "12", "--report", folder)
    assert {path.name for path in folder.iterdir()} == {
        "report.html", "report.md", "latency.png", "goodput.png", "timeline.png", RECORD,
    }  # fmt: skip
    html = (folder / "report.html").read_text(encoding="utf-8")
    assert html.count("<svg") == 3
    assert not {"<link", "<script", "@import"} & set(html.split())
