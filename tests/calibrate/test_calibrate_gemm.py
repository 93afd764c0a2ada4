"""Fitting the GEMM model, storing what was fitted, and the scores it is judged by."""

import stat
from pathlib import Path

import msgspec
import numpy as np
import pandas as pd
import pytest
from made_up import made_up_fit

from medusa_sim.calibrate.fit import Rows, choice_regret, mape, ratio_mape
from medusa_sim.calibrate.gemm import fit_gemm, gemm_start, merged_repeats
from medusa_sim.calibrate.rows import fitted_kernels, write_kernel
from medusa_sim.errors import DataError, OutputError, SpecError
from medusa_sim.latency.gemm import gemm_time
from medusa_sim.operators.columns import REQUIRED_COLUMNS
from medusa_sim.operators.kinds import KIND_OF
from medusa_sim.operators.operator import Gemm, Size
from medusa_sim.operators.table import check_rows
from medusa_sim.specs.gpu import load_gpu
from medusa_sim.specs.kernels import GemmKernel, GemmTile

GPU = load_gpu("a100-80gb-pcie")
TRUE = msgspec.structs.replace(
    GPU.kernels["torch"].gemm["fp16"], tiles=(GemmTile(m=64, n=128), GemmTile(m=128, n=128)), splits=(1, 2)
)
SMALL = GemmKernel(
    ramp_us=3.14159265,
    bandwidth_fraction=0.8,
    peak_fraction=0.9,
    load_ratio=5.0,
    tile_k=100.0,
    memory_norm=4.0,
    step_norm=6.0,
    split_us=2.0,
    splits=(1, 2),
    tiles=(GemmTile(m=64, n=64), GemmTile(m=128, n=128, selection_penalty=1.25)),
    fit=made_up_fit((64.0, 0.9, 1.1), rows=2, errors=(0.05, 0.06)),
)
FILE = """# a comment that stays
name = "x"

[sms]
value = 108  # so does this one
source = "a datasheet"

[kernels.torch.gemm.bf16]
ramp_us = 1.0
"""


def gemm(m: Size, n: Size, k: Size) -> Gemm:
    return Gemm(name="rows", m=np.asarray(m), n=np.asarray(n), k=np.asarray(k), dtype="fp16")


def made_rows(noise: float = 0.0) -> Rows[Gemm]:
    """Times of the known kernel TRUE on a grid of shapes."""
    m = np.array([1, 8, 16, 32, 64, 80, 96, 128, 160, 192, 256, 384, 512, 1024, 2048], dtype=float)
    shapes = [(n, k) for n in (1536, 4096, 8192, 22016) for k in (2048, 4096, 11008)]
    grid = np.array([(each, n, k) for n, k in shapes for each in m]).T
    time = gemm_time(GPU, TRUE, gemm(*grid)).time_us
    noisy = time * np.exp(noise * np.random.default_rng(3).normal(size=time.shape))
    return Rows(gemm(*grid), noisy)


def test_a_fit_recovers_the_times_of_a_known_kernel_on_held_out_shapes():
    start = msgspec.structs.replace(gemm_start("torch", "fp16", GPU), tiles=TRUE.tiles, splits=TRUE.splits)
    kernel = fit_gemm(made_rows(noise=0.02), GPU, source="made up", start=start)
    assert kernel.fit.source == "made up"
    assert kernel.fit.rows == 180
    # Noise of 2 % alone costs 1.6 % (the mean size of a normal).
    assert kernel.fit.fit_error == pytest.approx(0.016, abs=0.005)
    assert kernel.fit.heldout_error < 0.025
    assert [residual.size_max for residual in kernel.fit.residuals] == [
        float(edge) for edge in KIND_OF["gemm"].ranges
    ]
    assert all(0.9 < residual.low <= residual.high < 1.1 for residual in kernel.fit.residuals)


def test_a_fit_that_is_not_told_the_tiles_comes_near_and_is_deterministic():
    kernel = fit_gemm(made_rows(), GPU, source="made up")
    assert kernel.fit.heldout_error < 0.05  # most of it is smaller tiles that the made-up library lacks
    assert fit_gemm(made_rows(), GPU, source="made up") == kernel


def test_repeats_become_their_median_and_too_little_to_fit_is_an_error():
    repeated = Rows(gemm([2, 1, 1, 1], [8, 8, 8, 8], [4, 4, 4, 4]), np.array([5.0, 10.0, 99.0, 11.0]))
    rows = merged_repeats(repeated)
    assert rows.operator.m.tolist() == [1.0, 2.0]
    assert rows.time_us.tolist() == [11.0, 5.0]
    with pytest.raises(DataError, match="one weight shape"):
        fit_gemm(Rows(gemm([1, 2], [8, 8], [4, 4]), np.array([1.0, 2.0])), GPU, source="made up")


def test_storing_keeps_everything_else_reads_back_and_twice_is_once(tmp_path):
    path = tmp_path / "x.toml"
    path.write_text(FILE)
    path.chmod(0o644)
    write_kernel(path, "torch", "gemm", "fp16", SMALL)
    text = path.read_text()
    assert text.startswith(FILE.rstrip())
    assert stat.S_IMODE(path.stat().st_mode) == 0o644
    stored = msgspec.toml.decode(text)["kernels"]["torch"]["gemm"]["fp16"]
    back = msgspec.convert(stored, GemmKernel)
    assert back == msgspec.structs.replace(SMALL, ramp_us=3.14159)
    defaults = {field.name: field.default for field in msgspec.structs.fields(GemmKernel)}
    assert not [name for name in stored if stored[name] == defaults[name]]
    assert [each.name for each in tmp_path.iterdir()] == ["x.toml"]
    path = tmp_path / "x.toml"
    path.write_text(FILE)
    write_kernel(path, "torch", "gemm", "fp16", SMALL)
    once = path.read_text()
    write_kernel(path, "torch", "gemm", "fp16", SMALL)
    assert path.read_text() == once


def test_store_says_what_it_cannot_read_or_write(tmp_path, monkeypatch):
    with pytest.raises(SpecError, match=r"missing\.toml"):
        write_kernel(tmp_path / "missing.toml", "torch", "gemm", "fp16", SMALL)
    broken = tmp_path / "broken.toml"
    broken.write_text("[sms\n")
    with pytest.raises(SpecError, match=r"broken\.toml"):
        write_kernel(broken, "torch", "gemm", "fp16", SMALL)
    path = tmp_path / "x.toml"
    path.write_text(FILE)

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "replace", full)
    with pytest.raises(OutputError, match=r"x\.toml"):
        write_kernel(path, "torch", "gemm", "fp16", SMALL)
    assert path.read_text() == FILE
    assert sorted(each.name for each in tmp_path.iterdir()) == ["broken.toml", "x.toml"]


def test_errors_are_relative_and_those_of_ratios_forgive_a_common_factor():
    assert mape(np.array([1.1, 0.9]), np.array([1.0, 1.0])) == pytest.approx(0.1)
    assert mape(np.array([2.0]), np.array([1.0])) == pytest.approx(1.0)
    m, shape = np.array([1, 64, 1, 64]), np.array([0, 0, 1, 1])
    measured = np.array([10.0, 20.0, 5.0, 6.0])
    assert ratio_mape(1.3 * measured, measured, m, shape) == pytest.approx(0.0, abs=1e-12)
    steeper = measured * np.array([1.0, 1.2, 1.0, 1.0])
    assert ratio_mape(steeper, measured, m, shape) == pytest.approx(0.1)
    assert np.isnan(ratio_mape(measured[1:2], measured[1:2], m[1:2], shape[1:2]))


def test_choice_regret_is_what_the_wrong_count_gives_away():
    counts, tokens = np.array([1, 64, 128]), np.array([1.0, 3.0, 3.3])
    measured = np.array([[10.0, 11.0, 20.0], [10.0, 11.0, 11.5]])
    right = choice_regret(measured, measured, counts, tokens)
    assert right.mean == right.worst == 0.0
    assert right.best.tolist() == [64, 128]
    flat = choice_regret(np.ones_like(measured), measured, counts, tokens)  # always takes 128
    assert flat.chosen.tolist() == [128, 128]
    assert flat.worst == pytest.approx(1.0 - (3.3 / 20.0) / (3.0 / 11.0))
    assert flat.mean == pytest.approx(flat.worst / 2)


def test_a_single_row_does_not_replace_what_was_measured():
    frame = pd.DataFrame([{"op": "up_proj", "m": 1, "n": 4096, "k": 4096, "dtype": "fp16", "time_us": 20.0}])
    rows = check_rows(frame.reindex(columns=[*REQUIRED_COLUMNS, "time_us"]), "one.csv")
    with pytest.raises(DataError, match="1 rows of gemm"):
        list(fitted_kernels(rows, load_gpu("a100-80gb-pcie"), "one.csv"))
