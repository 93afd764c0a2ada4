"""`tree` and `acceptance` on the command line: the documented keys, round trips, one-line errors."""

import json
import shutil
from pathlib import Path

import pytest
from asking import document, frame, run

from medusa_sim.acceptance.profile import acceptance_path, load_acceptance

ACCURACY = {0: (0.6, 0.1, 0.05), 1: (0.4, 0.1, 0.05)}
HEADS = "head,rank,accuracy,labels\n" + "".join(
    f"{head},{rank},{value},500\n" for head, values in ACCURACY.items() for rank, value in enumerate(values)
)


@pytest.fixture
def heads(tmp_path: Path) -> str:
    path = tmp_path / "heads.csv"
    path.write_text(HEADS)
    return str(path)


def built(heads: str, *args: str) -> dict:
    return document("tree", "build", "--head-accuracy", heads, "--candidates", "5", *args)


def test_build_prints_the_promised_keys_and_the_best_tree(heads, tmp_path):
    values = built(heads)
    # gains: 0.6, 0.6 x 0.4, then 0.1 (head 0, rank 1) and 0.6 x 0.1
    assert values["paths"] == [[0], [1], [0, 0], [0, 1]]
    assert values["candidates"] == 5
    assert values["depth"] == 2
    assert values["tokens_per_step"] == pytest.approx(1 + 0.6 + 0.24 + 0.1 + 0.06)
    assert values["tokens_per_step_low"] < values["tokens_per_step"] < values["tokens_per_step_high"]
    values = document("tree", "build", "--head-accuracy", heads, "--heads", "1", "--candidates", "3")
    assert values["paths"] == [[0], [1]]
    path = tmp_path / "tree.json"
    run("tree", "build", "--head-accuracy", heads, "--candidates", "5", "-o", str(path))
    scored = document("tree", "score", "--tree", path, "--head-accuracy", heads)
    assert scored["tokens_per_step"] == pytest.approx(2.0)


@pytest.mark.parametrize("form", ["paths", "leaves", "json", "tensorrt-llm", "successors"])
def test_every_form_reads_back(form, heads, tmp_path):
    path, other = tmp_path / "tree.json", tmp_path / "other.json"
    run("tree", "build", "--head-accuracy", heads, "--candidates", "5", "-o", str(path))
    assert run("tree", "convert", "--tree", str(path), "--to", form, "-o", str(other)).exit_code == 0
    again = ["--leaves-only"] if form == "leaves" else []
    back = run("tree", "convert", "--tree", str(other), *again)
    assert json.loads(back.stdout) == [[0], [1], [0, 0], [0, 1]]


def test_tails_beyond_the_measured_ranks(heads, tmp_path):
    path = tmp_path / "wide.json"
    path.write_text("[[0], [4]]")
    score = ("tree", "score", "--tree", path, "--head-accuracy", heads)
    assert run(*score).exit_code == 1
    zeros, fitted = (document(*score, "--tail", tail)["tokens_per_step"] for tail in ("zeros", "fit"))
    assert zeros == pytest.approx(1.6)
    assert 1.6 < fitted < 1.65


def test_draw(heads, tmp_path):
    path = tmp_path / "tree.json"
    run("tree", "build", "--head-accuracy", heads, "--candidates", "5", "-o", str(path))
    text = run("tree", "draw", "--tree", str(path), "--head-accuracy", heads)
    assert "root" in text.stdout
    own = tmp_path / "own" / "profiles" / "acceptance"
    own.mkdir(parents=True)
    shutil.copy(acceptance_path("medusa1-vicuna-7b"), own / "ours.toml")
    named = ("tree", "draw", "--tree", str(path), "--head-accuracy", "ours", "--data-dir", tmp_path / "own")
    assert run(*named).exit_code == 0
    for suffix, start in (("svg", b"<svg"), ("png", b"\x89PNG")):
        picture = tmp_path / f"tree.{suffix}"
        assert run("tree", "draw", "--tree", str(path), "-o", str(picture)).exit_code == 0
        assert picture.read_bytes().startswith(start)


def test_show_and_fit(heads, tmp_path):
    own, tree = tmp_path / "own.toml", tmp_path / "tree.json"
    tree.write_text("[[0], [0, 0]]")
    measured = ("--tree", str(tree), "--tokens-per-step", "1.9")  # independent heads give 1.84
    fit = ("acceptance", "fit", "--head-accuracy", heads, "--source", "a test")
    assert run(*fit, *measured, "-o", str(own)).exit_code == 0
    profile = load_acceptance(own)
    assert profile.heads.correlation > 0.0
    assert profile.source == "a test"
    rows = document("acceptance", "show", own, "--candidates", "1,3")["rows"]
    assert [row["candidates"] for row in rows] == [1, 3]
    assert rows[1]["tokens_per_step"] == pytest.approx(1.9, abs=1e-3)
    assert run(*fit, "--tree", str(tree), "-o", str(own)).exit_code == 2
    assert run(*fit, "-o", str(tmp_path / "own.csv")).exit_code == 2


@pytest.mark.parametrize(("rates", "has_interval"), [("0.7,0.6", False), ("eagle3-llama-3.1-8b", True)])
def test_rates_that_nobody_says_how_often_were_tried_have_no_interval(rates, has_interval):
    assert ("80 %" in run("acceptance", "show", rates).stdout) == has_interval
    assert "80 %" in run("acceptance", "show", rates, "--candidates", "1").stdout


def test_predict_adds_columns_and_keeps_the_others(tmp_path):
    seen, wanted = tmp_path / "seen.csv", tmp_path / "wanted.csv"
    # RSD paper, table 1, Llama-2 7B with the 115M draft on XSum: chains of 2 to 4
    seen.write_text("decoder,spec,block_efficiency\nSD,2,2.166\nSD,3,2.465\nSD,4,2.728\n")
    wanted.write_text("decoder,spec,note\nSD,5,a\nRSD-S,3x2,b\n")
    rows = frame("acceptance", "predict", "--observations", seen, "--targets", wanted)
    assert rows["note"].tolist() == ["a", "b"]
    values = rows["predicted_block_efficiency"]
    assert values[0] == pytest.approx(2.865, rel=0.06)  # table 1; the method's own error is about 3 %
    assert values[1] == pytest.approx(2.432, rel=0.05)  # table 1
    assert ((rows["low"] < values) & (values < rows["high"])).all()
