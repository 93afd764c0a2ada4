"""Where specifications are found: the user's data first, then what was shipped."""

import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from medusa_sim import data
from medusa_sim.errors import SpecError

ROOT = Path(__file__).resolve().parents[1]


@pytest.fixture(autouse=True)
def _no_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(data.DATA_DIR_VARIABLE, raising=False)


def test_the_users_data_comes_first_and_nothing_found_is_none(tmp_path):
    assert data.data_roots(tmp_path) == (tmp_path, data.shipped_dir())
    assert (data.shipped_dir() / "hardware").is_dir()
    assert data.find("hardware", "nothing.toml", tmp_path) is None


def test_the_option_wins_over_the_variable_and_that_over_the_platform(monkeypatch, tmp_path):
    platform = data.user_data_dir()
    assert platform.name == "medusa-sim"
    monkeypatch.setenv(data.DATA_DIR_VARIABLE, str(tmp_path / "variable"))
    assert data.user_data_dir() == tmp_path / "variable"
    assert data.user_data_dir(tmp_path / "option") == tmp_path / "option"
    monkeypatch.setenv(data.DATA_DIR_VARIABLE, "")
    assert data.user_data_dir() == platform


def test_a_folder_may_not_exist_yet_and_the_users_file_is_found_first_and_listed_once(tmp_path):
    assert (
        data.find("hardware", "a40.toml", tmp_path / "later") == data.shipped_dir() / "hardware" / "a40.toml"
    )
    file = tmp_path / "file"
    file.write_text("")
    with pytest.raises(SpecError, match=r"--data-dir .* is a file; give a folder"):
        data.data_roots(file)
    folder = tmp_path / "hardware"
    folder.mkdir()
    for name in ("a40.toml", "mine.toml", ".hidden.toml", "note.txt"):
        (folder / name).write_text("")
    assert data.find("hardware", "a40.toml", tmp_path) == folder / "a40.toml"
    names = data.stems("hardware", (".toml",), tmp_path)
    assert names.count("a40") == 1
    assert "mine" in names
    assert not {".hidden", "note", "note.txt"} & set(names)
    assert list(names) == sorted(names)


@pytest.mark.parametrize("name", ["", "../x", "a/b", "/etc/passwd", ".toml", "a\nb", "a\\b"])
def test_a_name_cannot_leave_its_folder(tmp_path, name):
    (tmp_path / "hardware").mkdir()
    (tmp_path / "x").write_text("")
    assert data.find("hardware", name, tmp_path) is None


def test_an_incomplete_installation_says_so(monkeypatch, tmp_path):
    monkeypatch.setattr(data, "_PACKAGE", tmp_path / "medusa_sim")
    data.shipped_dir.cache_clear()  # it is looked up once
    with pytest.raises(SpecError, match="installation is incomplete"):
        data.shipped_dir()


@pytest.mark.slow
def test_a_wheel_holds_every_specification_and_finds_it(tmp_path):
    builder = pytest.importorskip("hatchling.builders.wheel", reason="hatchling is needed to build a wheel")
    wheel = next(builder.WheelBuilder(str(ROOT)).build(directory=str(tmp_path), versions=["standard"]))
    site = tmp_path / "site"
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(site)
    for source, target in (
        ("hardware", "_data/hardware"),
        ("profiles", "_data/profiles"),
        ("medusa_sim/specs", "specs"),
        ("docs", "_data/docs"),
    ):
        shipped = {
            path.relative_to(ROOT / source)
            for path in (ROOT / source).rglob("*")
            if path.suffix in (".toml", ".csv", ".json") and path.is_file()
        }
        held = {
            path.relative_to(site / "medusa_sim" / target)
            for path in (site / "medusa_sim" / target).rglob("*.*")
        }
        assert shipped <= held
    code = (
        "from medusa_sim.gpus.gpu import load_gpu\nfrom medusa_sim.gpus.gpu_names import gpu_names\n"
        "from medusa_sim.models.named import load_model\n"
        "from medusa_sim.engines.runtime import load_runtime\n"
        "import medusa_sim\n"
        "gpus = [load_gpu(name) for name in gpu_names()]\n"
        "load_model('vicuna-7b'), load_runtime('cuda-graph')\n"
        "print(len(gpus), gpus[0].path, medusa_sim.__file__)\n"
    )
    out = subprocess.run(
        [sys.executable, "-c", code],
        cwd=tmp_path,
        env={"PYTHONPATH": str(site), data.DATA_DIR_VARIABLE: str(tmp_path / "none"), "PATH": ""},
        capture_output=True,
        text=True,
        check=True,
    ).stdout.split()
    assert int(out[0]) == len(list((ROOT / "hardware").glob("*.toml")))
    assert out[1].startswith(str(site))
    assert out[2].startswith(str(site))
