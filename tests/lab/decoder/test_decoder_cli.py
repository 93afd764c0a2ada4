"""The commands `train` and `decode`: what they print, and one line for what they refuse."""

import importlib.util
import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from asking import answered, document, frame
from asking import run as _run
from decoder_models import noisy_copy, tiny_config, tiny_heads

from medusa_sim.errors import install
from medusa_sim.lab.decoder.checkpoint import load_checkpoint
from medusa_sim.lab.decoder.checkpoint_folder import save_checkpoint
from medusa_sim.lab.decoder.model import random_llama
from medusa_sim.lab.decoder.tokenizer import train_tokenizer

pytestmark = pytest.mark.filterwarnings("ignore")
KEYS = {
    "method", "rule", "prompt", "token_ids", "text", "new_tokens", "steps", "tokens_per_step",
    "accepted_lengths", "tokens_per_s", "prefill_s", "decode_s",
}  # fmt: skip


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny target with heads, and a draft that resembles it, with one tokenizer."""
    path = tmp_path_factory.mktemp("checkpoints")
    text = "def f(x):\n    return x + 1\n\n\nclass A:\n    pass\n"
    tokenizer = train_tokenizer([text] * 5, vocab=270).to_str()
    config = tiny_config(270, num_hidden_layers=1, tie_word_embeddings=True)
    model = random_llama(config, seed=3, std=0.3)
    save_checkpoint(
        path / "target", model, tiny_heads(model, count=4), dtype=torch.float32, tokenizer_json=tokenizer
    )
    save_checkpoint(path / "draft", noisy_copy(model), dtype=torch.float32, tokenizer_json=tokenizer)
    other = random_llama(tiny_config(13, num_hidden_layers=1))
    save_checkpoint(path / "other", other, dtype=torch.float32, tokenizer_json=tokenizer)
    return path


@pytest.mark.parametrize("method", ["ar", "medusa"])
def test_a_text_of_one_token_has_no_steps_and_no_rates(folder, method):
    """Prefill gives the one token that was asked for (0.1 s)."""
    asked = ("decode", "--checkpoint", folder / "target", "--prompt", "def ", "--max-new-tokens", "1")
    asked = (*asked, "--method", method, *(("--tree", "2-2") if method == "medusa" else ()))
    row = document(*asked)["rows"][0]
    assert (row["steps"], row["tokens_per_step"], row["tokens_per_s"]) == (0, None, None)
    lines = answered(*asked).stdout.splitlines()
    (line,) = (line for line in lines if line.startswith(f"{method} "))
    assert line.split()[-7:-4] == ["0", "-", "-"]


@pytest.mark.parametrize("temperature", ["0", "0.8"])
@pytest.mark.parametrize(
    ("method", "tree"),
    [
        ("medusa", "3-2-1"), ("sd", "3"), ("specinfer", "2-2"), ("spectr", "3x2"), ("rsd-c", "2-2"),
        ("rsd-s", "3x2"), ("ngram", "3"), ("ar", None),
    ],
)  # fmt: skip
def test_decode_json_has_the_promised_keys(folder, method, tree, temperature):
    report = document(
        *("decode", "--checkpoint", folder / "target", "--draft", folder / "draft"),
        *("--prompt", "def ", "--prompt", "class A", "--method", method, "--temperature", temperature),
        *("--max-new-tokens", "12"),
        *(("--tree", tree) if tree else ()),
    )
    rows = report["rows"]
    assert [row["method"] for row in rows] == ([method] * 2 + ["ar"] * 2 if method != "ar" else ["ar"] * 2)
    for row in rows:
        assert row.keys() >= KEYS
        assert row["new_tokens"] == len(row["token_ids"]) == 12
        assert row["new_tokens"] == 1 + row["steps"] + sum(row["accepted_lengths"])
        assert row["steps"] == len(row["accepted_lengths"])
        assert row["tokens_per_step"] == pytest.approx(11 / row["steps"])
        assert row["tokens_per_s"] == pytest.approx(11 / row["decode_s"])
    if temperature == "0":
        assert rows[0]["rule"] == "greedy"
        if method != "ar":
            assert rows[0]["token_ids"] == rows[2]["token_ids"]
    assert report["schema"].startswith("medusa-sim/decode")


def test_decode_table_shows_both_methods_side_by_side(folder):
    result = answered(
        "decode", "--checkpoint", folder / "target", "--prompt", "def ", "--tree", "2-2", "--max-new-tokens",
        "9",
    )  # fmt: skip
    headline, _, shown = result.stdout.partition("\n\n")
    assert "plain decoding" in headline
    assert shown.startswith("def ")
    for word in ("medusa", "ar", "tokens/step", "tokens/s", "accepted draft tokens per step"):
        assert word in result.stdout
    assert "(medusa): " in result.stdout
    assert "(ar): " not in result.stdout  # plain decoding has no drafts


def test_decode_reads_a_tree_file_and_head_files(folder, tmp_path):
    (tmp_path / "tree.json").write_text("[[0], [1], [0, 0], [0, 0, 2]]")
    options = ("--prompt", "def ", "--max-new-tokens", "6", "--format", "json")
    for tree in (tmp_path / "tree.json", "8"):
        answered("decode", "--checkpoint", folder / "target", "--tree", tree, *options)


@pytest.mark.parametrize(
    ("arguments", "told", "kind"),
    [
        ((), "needs a prompt", 2),
        (("--prompt", "x", "--tree", "2-2-2-2-2"), "5 deep, the checkpoint has 4 Medusa heads", 2),
        (("--prompt", "x", "--tree", "nowhere.json"), "no such file", 1),
        (("--prompt", "x", "--method", "rsd-s", "--tree", "3"), "beams x depth", 2),
        (("--prompt", "x", "--method", "sd", "--tree", "0"), "whole number from 1", 2),
        (("--prompt", "x", "--method", "rsd-c", "--tree", "2-0"), "branching", 2),
        (("--prompt", "x " * 600), "positions", 2),
        (("--prompt", "x", "--device", "cuda:9"), "--device cuda:9", 2),
        (("--prompt", ""), "empty", 2),
        (("--prompt", "x", "--tree", "100000"), "1 to 1024", 2),
        (("--prompt", "x", "--method", "rsd-c", "--tree", "100-100-100"), "at most 1024", 2),
        (("--prompt", "x", "--method", "rsd-s", "--tree", "99999x99999"), "more than 1024 nodes", 2),
    ],
)
def test_decode_refuses_in_one_line(folder, arguments, told, kind):
    result = _run("decode", "--checkpoint", folder / "target", "--draft", folder / "draft", *arguments)
    assert result.exit_code == kind
    assert result.stderr.startswith("Error: ")
    assert told in result.stderr
    assert result.stderr.count("\n") == 1
    assert result.stdout == ""


def test_checkpoints_that_do_not_fit_are_refused(folder):
    for arguments, told in (
        (("--checkpoint", "nowhere"), "no such folder"),
        (("--checkpoint", folder / "draft"), "has no Medusa heads"),
        (("--checkpoint", folder / "target", "--method", "sd", "--draft", folder / "other"), "one tokenizer"),
    ):
        result = _run("decode", "--prompt", "x", *arguments)
        assert result.exit_code in (1, 2)
        assert told in result.stderr


def test_a_missing_extra_is_one_line(monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", _without_torch(importlib.util.find_spec))
    for arguments in (("decode", "--prompt", "x"), ("train", "--method", "backbone", "--save", "x")):
        result = _run(*arguments)
        assert result.exit_code == 2
        assert install("decoder") in result.stderr


def _without_torch(find: Callable[[str], object]) -> Callable[[str], object]:
    return lambda name: None if name == "torch" else find(name)


def test_train_writes_a_checkpoint_that_decode_runs(tmp_path):
    library = tmp_path / "library"
    library.mkdir()
    for i in range(60):
        (library / f"file{i}.py").write_text(f"def f{i}(x):\n    return x + {i}\n" * 30)
    small = ("--text", library, "--steps", "4", "--batch", "2", "--length", "32")
    shape = (
        "--vocab", "270", "--hidden", "32", "--intermediate", "48", "--layers", "1", "--attention-heads", "2",
        "--kv-heads", "1",
    )  # fmt: skip
    base, one, two = tmp_path / "base", tmp_path / "one", tmp_path / "two"
    (row,) = document("train", "--method", "backbone", "--save", base, *shape, *small)["rows"]
    assert row["steps"] == 4
    assert row["parameters"] == load_checkpoint(base).model.config.parameter_count
    (row,) = document(
        *("train", "--method", "medusa-1", "--checkpoint", base, "--save", one),
        *("--medusa-heads", "3", "--plot", tmp_path / "loss.svg", *small),
    )["rows"]
    drawn = (tmp_path / "loss.svg").read_text()
    assert "<svg" in drawn
    assert "head_2_loss" in drawn
    assert "heldout_top1_head_2" in row
    answered(
        *("train", "--method", "medusa-2", "--checkpoint", one, "--save", two),
        *("--data", "self", "--responses", "4", *small),
    )
    assert json.loads((two / "training.json").read_text())["recipe"]["data"] == "self"
    heads = load_checkpoint(two).heads
    assert heads.count == 3
    answered("decode", "--checkpoint", two, "--prompt", "def ", "--tree", "2-1-1", "--max-new-tokens", "5")
    assert not list(tmp_path.glob("*.state.safetensors"))


def test_csv_holds_lists_as_json(folder):
    asked = ("--checkpoint", folder / "target", "--prompt", "x", "--max-new-tokens", "4")
    row = frame("decode", *asked).iloc[0]
    assert len(json.loads(row["token_ids"])) == row["new_tokens"]


def test_a_prompt_file_that_is_no_text_is_one_line(folder, tmp_path):
    path = tmp_path / "prompt"
    path.write_bytes(b"\xff\xfe\x00")
    result = _run("decode", "--checkpoint", folder / "target", "--prompt-file", path)
    assert result.exit_code == 1
    assert "not UTF-8 text" in result.stderr
