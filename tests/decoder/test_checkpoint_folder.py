"""Saving touches its own files only: whatever a folder holds besides survives, and nothing is half there."""

import json
from pathlib import Path

import pytest
import torch
from asking import run
from decoder_models import tiny_heads, tiny_llama
from one_line import one_line

from medusa_sim.decoder import checkpoint
from medusa_sim.decoder.checkpoint import OWN_FILES, check_replaceable, load_checkpoint, save_checkpoint
from medusa_sim.errors import OutputError

MODEL = tiny_llama(dtype=torch.float32)
RECORD = {"recipe": {"method": "backbone"}}


def _contents(folder: Path) -> dict[str, bytes]:
    return {str(p.relative_to(folder)): p.read_bytes() for p in sorted(folder.rglob("*")) if p.is_file()}


def _foreign_folder(path: Path, names: list[str]) -> Path:
    path.mkdir()
    for name in names:
        (path / name).parent.mkdir(exist_ok=True)
        (path / name).write_text("{}")
    return path


@pytest.mark.parametrize(
    ("names", "told"),
    [
        (["config.json", "model.safetensors", "tokenizer.json", "training.json", "notes.md"], "'notes.md'"),
        (["config.json", ".git/HEAD"], "'.git'"),
        (["config.json", "a.txt", "b.txt"], "'a.txt' and 1 more"),
        (["model.safetensors/x"], "'model.safetensors'"),
        (["config.json", "model.safetensors"], "training did not write"),
        (["config.json", "training.json"], "training did not write"),
    ],
)
@pytest.mark.parametrize("overwrite", [False, True])
def test_a_folder_with_anything_else_is_refused_and_stays(tmp_path, names, told, overwrite):
    folder = _foreign_folder(tmp_path / "m", names)
    before = _contents(tmp_path)
    with one_line(OutputError, match=told):
        save_checkpoint(folder, MODEL, record=RECORD, overwrite=overwrite)
    assert _contents(tmp_path) == before
    arguments = ["train", "--method", "backbone", "--save", str(folder), "--steps", "1"]
    result = run(*arguments, *(["--overwrite"] if overwrite else []))
    assert result.exit_code == 1
    assert told in result.stderr
    assert _contents(tmp_path) == before


def test_a_link_among_the_files_is_foreign_and_one_to_an_empty_folder_is_filled(tmp_path):
    (tmp_path / "precious.json").write_text("{}")
    folder = _foreign_folder(tmp_path / "m", [])
    (folder / "config.json").symlink_to(tmp_path / "precious.json")
    with pytest.raises(OutputError, match=r"'config\.json'"):
        check_replaceable(folder, overwrite=True)
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "real")
    save_checkpoint(tmp_path / "link", MODEL, record=RECORD)
    assert (tmp_path / "link").is_symlink()
    assert set(_contents(tmp_path / "real")) == {"config.json", "model.safetensors", "training.json"}
    with pytest.raises(OutputError, match="is a file"):
        check_replaceable(tmp_path / "real" / "config.json")


def test_a_finished_checkpoint_is_replaced_only_when_asked_and_as_a_whole(tmp_path):
    folder = tmp_path / "m"
    save_checkpoint(folder, MODEL, tiny_heads(MODEL, count=2), record=RECORD, tokenizer_json="{}")
    with pytest.raises(OutputError, match="--overwrite"):
        save_checkpoint(folder, MODEL, record=RECORD)
    assert load_checkpoint(folder).heads is not None
    save_checkpoint(folder, MODEL, record=RECORD | {"again": True}, overwrite=True)
    assert load_checkpoint(folder).heads is None
    assert json.loads((folder / "training.json").read_text())["again"]
    assert not (folder / "tokenizer.json").exists()
    assert [path.name for path in tmp_path.iterdir()] == ["m"]


def test_the_old_checkpoint_comes_back_where_the_new_one_cannot_be_put(tmp_path, monkeypatch):
    folder = tmp_path / "m"
    save_checkpoint(folder, MODEL, record=RECORD)
    before = _contents(tmp_path)
    rename = Path.rename

    def fails_once(path: Path, target: Path) -> Path:
        if target == folder and not path.name.endswith(".old"):
            raise OSError(28, "No space left on device")
        return rename(path, target)

    monkeypatch.setattr(Path, "rename", fails_once)
    with pytest.raises(OutputError, match="No space left"):
        save_checkpoint(folder, MODEL, record=RECORD, overwrite=True)
    assert _contents(tmp_path) == before


def test_what_came_into_a_replaced_folder_is_not_deleted(tmp_path, monkeypatch):
    """A file that appears between the check and the swap outlives both."""
    folder = tmp_path / "m"
    save_checkpoint(folder, MODEL, record=RECORD)
    check = checkpoint.check_replaceable

    def then_a_file_appears(directory: Path, *, overwrite: bool = False) -> None:
        check(directory, overwrite=overwrite)
        (folder / "late.txt").write_text("kept")

    monkeypatch.setattr(checkpoint, "check_replaceable", then_a_file_appears)
    with pytest.raises(OutputError):
        save_checkpoint(folder, MODEL, record=RECORD, overwrite=True)
    assert [path.read_text() for path in tmp_path.rglob("late.txt")] == ["kept"]
    assert set(OWN_FILES) > {path.name for path in folder.iterdir()}


def test_no_module_of_the_package_removes_trees():
    package = Path(checkpoint.__file__).parents[1]
    assert not [path for path in package.rglob("*.py") if "rmtree" in path.read_text(encoding="utf-8")]
