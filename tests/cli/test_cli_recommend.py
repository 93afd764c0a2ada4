"""`recommend` on the command line: the documented JSON, every form, and one-line errors."""

import json
from pathlib import Path

import pytest
from asking import HEADS, answered, document
from click.testing import Result

FAST = ("--latency", "roofline", "--batch", "1..8")


@pytest.fixture
def heads(tmp_path: Path) -> str:
    path = tmp_path / "heads.csv"
    path.write_text(HEADS)
    return str(path)


def run(*args: object) -> Result:
    return answered("recommend", *args)


def test_json_holds_what_was_promised(heads):
    values = document("recommend", *FAST, "--acceptance", heads, "--seq", "512,2048")
    assert {
        "enable", "reason", "break_even_batch", "break_even_seq_len", "required_tokens_per_step",
        "free_candidates_by_batch", "schedule", "schema", "version", "command",
    } <= set(values)  # fmt: skip
    assert values["schema"] == "medusa-sim/recommend/1"
    assert values["enable"] is True
    assert set(values["free_candidates_by_batch"]) == {str(batch) for batch in range(1, 9)}
    for row in values["schedule"]:
        assert {
            "batch_min", "batch_max", "seq_len", "candidates", "paths", "tokens_per_step", "speedup",
            "speedup_low", "speedup_high", "max_batch_without", "max_batch_with",
        } <= set(row)  # fmt: skip
        assert len(row["paths"]) == row["candidates"] - 1
        assert row["speedup_low"] < row["speedup"] < row["speedup_high"]  # the labels alone leave a band
    assert {row["seq_len"] for row in values["schedule"]} == {512, 2048}


def test_the_table_says_the_answer_first(heads):
    result = run(*FAST, "--acceptance", heads, "--prompt-tokens", "100", "--output-tokens", "50")
    asked, answer, table, *_ = result.stdout.split("\n\n")
    assert "vicuna-7b fp16 on a100-80gb-pcie" in asked
    assert answer.startswith("Enable speculation at batch 1..8: ")
    assert table.split()[0] == "batch"
    assert "warning: latency roofline" in result.stdout


def test_a_loss_is_a_plain_warning():
    result = run(*FAST, "--drafter", "draft-model", "--draft-model", "vicuna-7b", "--acceptance", "0.3")
    assert "Do not enable speculation" in result.stdout
    assert "LOSES" in result.stdout


def test_csv_markdown_and_files_are_written_whole(heads, tmp_path):
    result = run(*FAST, "--acceptance", heads, "--format", "csv")
    header, first, *_ = result.stdout.splitlines()
    assert header.startswith("batch_min,batch_max,seq_len,candidates,paths")
    assert first.startswith("1,")
    assert "| batch |" in run(*FAST, "--acceptance", heads, "--format", "md").stdout
    path = tmp_path / "answer.json"
    run(*FAST, "--acceptance", heads, "-o", path)
    assert json.loads(path.read_text())["gpu"] == "a100-80gb-pcie"


def test_export_writes_settings_and_notes_apart(heads):
    drafts = ("--drafter", "eagle3", "--acceptance", heads)
    result = run(*FAST, *drafts, "--export", "llama-cpp", "--draft-path", "me/draft.gguf")
    assert result.stdout.startswith("--spec-type draft-eagle3 --spec-draft-model me/draft.gguf ")
    assert "note: written for llama.cpp" in result.stderr
    assert "a tree of" in result.stderr


def test_a_curve_is_named_as_such():
    curve = ("--acceptance", "paper-fig4-sparse")
    result = run(*FAST, *curve)
    assert "is a curve" in result.stdout
    values = document("recommend", *FAST, *curve)
    assert {json.dumps(row["paths"]) for row in values["schedule"] if row["candidates"] > 1} == {"null"}


def test_every_batch_of_a_range_is_searched(heads):
    found = document("recommend", "--latency", "roofline", "--batch", "3,11", "--acceptance", heads)
    assert list(found["free_candidates_by_batch"]) == [str(b) for b in range(3, 12)]


def test_the_default_acceptance_is_the_models_own_if_one_ships():
    for asked, acceptance in (
        (("vicuna-13b",), "medusa1-vicuna-13b"),
        (("llama-2-7b",), "medusa1-vicuna-7b"),
        (("llama-3.1-8b", "--drafter", "eagle"), "eagle3-llama-3.1-8b"),
    ):
        result = run(*FAST, "--model", *asked, "--format", "json")
        assert json.loads(result.stdout)["acceptance"] == acceptance
        assert ("measured on another model" in result.stderr) == ("llama-2-7b" in asked)


def answer_of(*words: str) -> str:
    """The answer on one line."""
    return " ".join(run(*words).stdout.split("\n\n")[1].split())


def test_latencies_that_only_speculation_or_nothing_meets_are_stated_first():
    limit = ("--objective", "throughput", "--max-latency-ms", "5")
    assert "without it no batch stays within memory and 5 ms a token" in answer_of(*FAST, *limit)
    none = ("--max-latency-ms", "0.001")
    for more in (("--objective", "throughput"), ("--acceptance", "medusa1-vicuna-7b")):
        assert answer_of(*FAST, *more, *none).startswith("No batch stays within 0.001 ms a token")
    words = ("--latency", "roofline", "--batch", "1..64", "--drafter", "eagle", "--max-latency-ms", "6")
    decision = answer_of(*words)
    first = decision.split("batch 1..")[1].split(":")[0]
    assert f"Batch {int(first) + 1}..64 takes longer than 6 ms a token" in decision


def test_an_answer_has_one_number_of_drafts_in_the_engines_word(heads):
    """6 drafts, draft length 13 and 14 candidates stood in one output."""
    chains = run(
        "--latency", "roofline", "--batch", "1..64", "--drafter", "eagle", "--acceptance", "0.9", "--verbose"
    )
    (row,) = (line.split() for line in chains.stdout.splitlines() if line.lstrip().startswith("1.."))
    assert f"with {row[1]} drafts" in " ".join(chains.stdout.split())
    assert f"the schedule takes {row[1]}" in " ".join(chains.stdout.split())
    assert "candidates" not in chains.stdout
    trees = run(*FAST, "--acceptance", heads, "--runtime", "cuda-graph", "--verbose").stdout
    assert "x with 1 head," in trees
    assert "candidates" in trees


@pytest.mark.parametrize("form", ["table", "md", "csv", "json"])
def test_a_warning_is_stated_once(form, heads):
    line = f"--model llama-2-7b --drafter eagle3 --runtime tensorrt-llm --format {form}"
    result = run(*FAST, *line.split(), "--acceptance", heads, "--verbose")
    said = result.stdout if form in ("table", "md") else result.stderr
    count = " ".join(said.split()).count("nobody measured drafting in this engine")
    assert count == 1


@pytest.mark.parametrize("more", [("--by-count", "--format", "csv"), ()])
def test_batches_that_were_left_out_are_counted(more):
    words = ("--latency", "roofline", "--drafter", "eagle", "--verbose", *more)
    every = run(*words, "--batch", "200..256")
    assert "were searched" not in every.output
    few = run(*words, "--batch", "100..528")
    assert "of 429 batches were searched" in few.output


def test_a_report_answers_first_and_counts_drafts_of_chains(tmp_path: Path) -> None:
    chain = ("--gpu", "h100-sxm", "--model", "llama-3.1-8b", "--drafter", "eagle3", "--batch", "1..4")
    result = run(*chain, "--report", str(tmp_path / "out"))
    page = (tmp_path / "out" / "report.md").read_text(encoding="utf-8")
    assert page.startswith("# Does speculation pay for llama-3.1-8b on h100-sxm?\n\nEnable speculation at")
    assert "Batch and drafts" in page
    assert page.split("\n\n")[1].strip() in " ".join(result.stdout.split())
