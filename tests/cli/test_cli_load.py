"""`medusa-sim load` and `check`: what they print, and the same numbers in Python."""

import json
from pathlib import Path
from typing import Any

import pytest
from asking import answered, document, frame, refused, run

import medusa_sim as ms
from medusa_sim.writing import RECORD

BASE = ("load", "--gpu", "h100-sxm", "--model", "llama-3.1-8b", "--drafter", "eagle3", "--policy", "none,3",
        "--requests", "250", "--seeds", "1", "--max-num-seqs", "64")  # fmt: skip


def test_the_sentence_comes_first():
    result = answered(*BASE, "--tpot-ms", "12", "--rate", "6", "--target-rate", "40")
    lines = [line for line in result.stdout.splitlines() if line]
    assert lines[1].startswith("With 3 drafts a step the server sustains ")
    assert "GPUs" in result.stdout


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
    assert "50 % of prompts found in the cache (session)" in result.stdout
    assert "10 % of requests cancelled" in result.stdout
    lines = result.stdout.splitlines()
    rule = next(place for place, line in enumerate(lines) if line.startswith("---"))
    assert [line.split()[0] for line in lines[rule + 1 : rule + 3]] == ["draft_len_schedule=4:3,8:2", "none"]
    assert "rate" not in lines[rule - 1].split()  # a closed loop has none


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


FILES = Path(__file__).resolve().parents[1] / "data" / "engine"
SET_UP = [
    "--gpu", "h100-sxm", "--model", "llama-3.1-8b", "--drafter", "eagle3", "--acceptance", "0.7,0.42,0.21",
]  # fmt: skip


def checked(*more: object) -> Any:
    """What a check says in JSON, whether it found something outside or not."""
    return json.loads(run("check", *SET_UP, *more, "--format", "json").stdout)


def test_files_of_a_benchmark_say_all_and_what_is_outside_exits_3(tmp_path):
    """Rounds of an engine that takes half as long again."""
    spec, plain = (
        json.loads((FILES / f"vllm_serve_{kind}_b8.json").read_text()) for kind in ("spec", "plain")
    )
    slower = spec | {
        name: 1.5 * value for name, value in spec.items() if name.endswith(("_tpot_ms", "_itl_ms"))
    }
    files = [tmp_path / "spec.json", tmp_path / "plain.json"]
    for path, content in zip(files, (slower, plain), strict=True):
        path.write_text(json.dumps(content))
    result = run("check", *SET_UP, "--bench", *files, "--format", "json")
    assert result.exit_code == 3
    assert "outside" in result.stderr
    found = json.loads(result.stdout)
    assert (found["batch"], found["drafts"], found["seq_len"]) == (8, 3, 384)
    assert found["measured_accepted"] == pytest.approx([0.7, 0.42, 0.21])
    assert found["off"] == ["round"]
    assert found["measured_us"] == pytest.approx(1.5 * 4657.522254996032, rel=1e-12)


def test_what_a_check_predicts_by_hand_is_inside_when_a_file_says_it(tmp_path):
    hand = ["--batch", "8", "--seq", "384", "--accepted-by-position", "0.7,0.42,0.21"]
    hand += ["--prompt-tokens", "128", "--output-tokens", "512"]
    predicted_us = checked(*hand, "--measured-tpot-ms", 9)["predicted_us"]
    path = tmp_path / "mine.csv"
    path.write_text(
        f"concurrency,tpot_us,prompt,output,drafts,acceptance_length\n8,{predicted_us!r},128,512,3,2.33\n"
    )
    found = document("check", *SET_UP, "--bench", path)
    assert found["inside"] is True
    assert found["predicted_us"] == pytest.approx(found["measured_us"], rel=1e-12)
    assert found["position"] is None


def test_a_metrics_page_tells_acceptance_speed_and_batch(tmp_path):
    page = (FILES / "vllm_metrics_after.txt").read_text()
    name = 'vllm:request_time_per_output_token_seconds_{}{{engine="0",model_name="m"}} {}'
    labels = page[page.index('model_name="') + 12 :].split('"')[0]
    lines = [
        name.format(part, value).replace('"m"', f'"{labels}"')
        for part, value in (("sum", 1.0), ("count", 200))
    ]
    path = tmp_path / "after.txt"
    path.write_text(page + "\n" + "\n".join(lines) + "\n")
    found = checked("--counters", path, "--seq", 600)
    assert found["batch"] == 8
    assert found["measured_us"] == pytest.approx(5000.0)
    assert found["measured_accepted"] == pytest.approx([0.7, 0.42, 0.21])
    told = 'vllm:request_{}_tokens_sum{{engine="0",model_name="{}"}} {}'
    lengths = [told.format(*one) for one in (("prompt", labels, 110_000), ("generation", labels, 51_200))]
    path.write_text("\n".join([path.read_text().rstrip(), *lengths, ""]))
    served = checked("--counters", path)
    assert served["seq_len"] == 550 + 128  # the page's own prompts and half their answers
    assert served["predicted_us"] > found["predicted_us"]


def test_several_runs_are_told_apart_and_a_plain_run_is_not_taken_for_one_with_drafts():
    plain, files = FILES / "vllm_serve_plain_b8.json", sorted(FILES.glob("vllm_serve_*.json"))
    refused("no drafts", "check", *SET_UP, "--bench", plain, "--drafts", 3, code=2)
    refused("--batch", "check", *SET_UP, "--bench", *files, code=2)
    assert checked("--bench", plain)["drafts"] == 0
    found = checked("--bench", *files, "--batch", 64)
    assert found["batch"] == 64
    assert {row["part"] for row in found["rows"]} == {"acceptance", "round", "plain"}
    hand = ("--batch", 8, "--drafts", 3, "--tokens-per-step", 2.33, "--measured-itl-ms", 90)
    result = run("check", *SET_UP, *hand)
    assert "\n\nOutside the band" in result.stdout
    assert "round" in result.stdout
