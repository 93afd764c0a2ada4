"""Shared by all tests: one thread per process, quiet property tests, the data beside the checkout."""

import os
import sys
import tempfile
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

# Read when a test module imports numpy or torch: the test processes share the cores among them.
for _name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ.setdefault(_name, "1")
os.environ.setdefault("MPLBACKEND", "Agg")
# Processes of tests share what the first of them compiles, asserts that pytest rewrites included.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False
# Answers are as wide as in a pipe, whatever terminal the tests are started from.
os.environ.pop("COLUMNS", None)
# Names are listed while tests are collected, before the fixture below applies.
os.environ["MEDUSA_SIM_DATA_DIR"] = str(Path(tempfile.gettempdir()) / "medusa-sim-tests-have-no-user-data")

ROOT = Path(__file__).resolve().parents[1]

settings.register_profile(
    "ci", deadline=None, max_examples=60, derandomize=True, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "ci"))


@pytest.fixture(autouse=True)
def _own_data_dir(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    """No test reads or writes the user's own data folder."""
    monkeypatch.setenv("MEDUSA_SIM_DATA_DIR", str(tmp_path_factory.getbasetemp() / "user-data"))


@pytest.fixture(scope="session")
def shared_data() -> Path:
    """Folder of measured data that does not ship: $MEDUSA_SIM_DATA or ../shared/data; skips without it."""
    folder = Path(os.environ.get("MEDUSA_SIM_DATA", ROOT.parent / "shared" / "data"))
    if not folder.is_dir():
        pytest.skip(f"no measured data at {folder}; set MEDUSA_SIM_DATA to its folder")
    return folder


@pytest.fixture
def bare_gpu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """Name of a GPU with a datasheet and no kernels, its own or borrowed."""
    datasheet = (ROOT / "hardware" / "mi300x.toml").read_text(encoding="utf-8").partition("\n[kernels.")[0]
    file = tmp_path / "data" / "hardware" / "bare.toml"
    file.parent.mkdir(parents=True)
    file.write_text(datasheet.replace('name = "mi300x"', 'name = "bare"'), encoding="utf-8")
    monkeypatch.setenv("MEDUSA_SIM_DATA_DIR", str(tmp_path / "data"))
    return "bare"
