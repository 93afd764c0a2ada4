"""Files appear whole, and a folder's that somebody changed stay as they are."""

import hashlib
import json
import os
import stat

import pytest

from medusa_sim.errors import OutputError
from medusa_sim.writing import RECORD, check_folder, check_writable, write_folder, write_text


def test_a_link_stays_a_mode_is_kept_and_a_new_file_has_that_of_the_mask(tmp_path):
    target, link = tmp_path / "target.txt", tmp_path / "link.txt"
    target.write_text("before")
    target.chmod(0o640)
    link.symlink_to(target)
    check_writable(link)
    write_text(link, "after")
    assert link.is_symlink()
    assert target.read_text() == "after"
    assert stat.S_IMODE(target.stat().st_mode) == 0o640
    dangling = tmp_path / "dangling.txt"
    dangling.symlink_to(tmp_path / "new.txt")
    write_text(dangling, "new")
    assert (tmp_path / "new.txt").read_text() == "new"
    (tmp_path / "other.txt").touch()
    assert (tmp_path / "new.txt").stat().st_mode == (tmp_path / "other.txt").stat().st_mode
    (tmp_path / "other.txt").unlink()
    assert sorted(p.name for p in tmp_path.iterdir()) == ["dangling.txt", "link.txt", "new.txt", "target.txt"]


def test_a_signal_that_ends_a_process_as_a_file_appears_leaves_nothing(tmp_path, monkeypatch):
    opened = os.open

    def interrupted(*given: object, **mode: int) -> int:
        os.close(opened(*given, **mode))
        raise SystemExit(1)

    monkeypatch.setattr(os, "open", interrupted)
    with pytest.raises(SystemExit):
        write_text(tmp_path / "part.txt", "half")
    assert not [*tmp_path.iterdir()]


def test_a_folder_is_written_whole_and_foreign_files_stay(tmp_path):
    folder = tmp_path / "out" / "report"
    check_folder(folder)
    assert not folder.exists()
    written = {"a.txt": b"1", "b.txt": b"2"}
    assert write_folder(folder, written) == (folder / "a.txt", folder / "b.txt")
    record = json.loads((folder / RECORD).read_text(encoding="utf-8"))
    assert record == {name: hashlib.sha256(text).hexdigest() for name, text in written.items()}
    (folder / "mine.txt").write_text("mine")
    assert write_folder(folder, {"a.txt": b"3"}) == (folder / "a.txt",)
    held = {p.name: p.read_text() for p in folder.iterdir() if p.name != RECORD}
    assert held == {"a.txt": "3", "b.txt": "2", "mine.txt": "mine"}
    for changed in ("mine.txt", "b.txt"):
        (folder / changed).write_text("mine")
        with pytest.raises(OutputError, match=f"{changed}.*--overwrite"):
            write_folder(folder, {"a.txt": b"4", changed: b"4"})
        with pytest.raises(OutputError, match="--overwrite"):
            check_folder(folder, [changed], overwrite=False)
        assert (folder / "a.txt").read_text() == "3"
    write_folder(folder, {"b.txt": b"2"}, overwrite=True)
    write_folder(folder, {"b.txt": b"5"})
    assert (folder / "b.txt").read_bytes() == b"5"
    (folder / "c.txt").mkdir()
    with pytest.raises(OutputError, match=r"c\.txt: it is a folder"):
        write_folder(folder, {"a.txt": b"4", "c.txt": b"4"})
    assert (folder / "a.txt").read_text() == "3"
    assert [p.name for p in folder.parent.iterdir()] == ["report"]
