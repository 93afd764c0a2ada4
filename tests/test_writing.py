"""Files appear whole, and a folder's that somebody changed stay as they are."""

import hashlib
import json

import pytest

from medusa_sim.errors import OutputError
from medusa_sim.writing import RECORD, write_folder, write_text


def test_a_file_keeps_its_mode_and_another_is_made_as_the_mask_says(tmp_path):
    old = tmp_path / "old"
    old.write_text("before", encoding="utf-8")
    old.chmod(0o640)
    write_text(old, "after")
    assert (old.read_text(encoding="utf-8"), old.stat().st_mode & 0o777) == ("after", 0o640)
    write_text(tmp_path / "new", "text")
    other = tmp_path / "other"
    other.touch()
    assert (tmp_path / "new").stat().st_mode == other.stat().st_mode
    assert {path.name for path in tmp_path.iterdir()} == {"old", "new", "other"}


def test_files_that_were_written_here_are_replaced_and_none_that_somebody_changed(tmp_path):
    folder = tmp_path / "out"
    assert write_folder(folder, {"a": b"1", "b": b"2"}) == (folder / "a", folder / "b")
    record = json.loads((folder / RECORD).read_text(encoding="utf-8"))
    assert record == {name: hashlib.sha256(text).hexdigest() for name, text in (("a", b"1"), ("b", b"2"))}
    (folder / "own").write_bytes(b"mine")
    write_folder(folder, {"a": b"3"})
    assert {path.name: path.read_bytes() for path in folder.iterdir() if path.name != RECORD} == {
        "a": b"3", "b": b"2", "own": b"mine",
    }  # fmt: skip
    (folder / "b").write_bytes(b"changed")
    for name in ("b", "own"):
        with pytest.raises(OutputError, match=name):
            write_folder(folder, {"a": b"4", name: b"5"})
    assert (folder / "a").read_bytes() == b"3"
    write_folder(folder, {"b": b"6"}, overwrite=True)
    write_folder(folder, {"b": b"7"})
    assert (folder / "b").read_bytes() == b"7"
