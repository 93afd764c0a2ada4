"""`medusa-sim specs` and `roofline`."""

from __future__ import annotations

import io
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from click.testing import CliRunner, Result

from medusa_sim.cli import cli
from medusa_sim.specs.gpu import gpu_names
from medusa_sim.specs.models import model_names


def run(*args: str) -> Result:
    return CliRunner().invoke(cli, list(args), catch_exceptions=False)


def test_the_overview_names_everything() -> None:
    text = run("specs").stdout
    for name in (*gpu_names(), *model_names(), "cuda-graph", "paper-fig21"):
        assert name in text


def test_every_number_has_its_source() -> None:
    rows = pd.read_csv(io.StringIO(run("specs", "--format", "csv").stdout), keep_default_na=False)
    assert set(rows["kind"]) == {"gpu", "model", "runtime", "acceptance", "price"}
    assert (rows["source"].str.len() > 5).all()


def test_one_name_in_detail() -> None:
    text = run("specs", "a40").stdout
    assert "696.0 GB/s" in text
    assert "datasheet" in text


def test_an_unknown_name_suggests_the_nearest() -> None:
    result = run("specs", "h100sxm")
    assert result.exit_code == 1
    assert "did you mean 'h100-sxm'" in result.stderr


def test_roofline_points_lie_on_the_roof() -> None:
    text = run("roofline", "--latency", "roofline", "--batch", "1,16", "--format", "csv").stdout
    rows = pd.read_csv(io.StringIO(text))
    assert set(rows["phase"]) == {"prefill", "decode", "verify"}
    intensity = rows["operational_intensity"]
    np.testing.assert_allclose(intensity, rows["flops"] / rows["bytes"], rtol=1e-12)
    np.testing.assert_allclose(rows["flops_per_s"], np.minimum(312e12, intensity * 1935e9), rtol=1e-9)


@pytest.mark.parametrize("suffix", ["png", "svg", "pdf"])
def test_roofline_is_drawn(suffix: str, tmp_path: Path) -> None:
    path = tmp_path / f"roof.{suffix}"
    args = ("roofline", "--latency", "roofline", "--runtime", "paper", "--plot", str(path))
    assert run(*args).exit_code == 0
    first = path.read_bytes()
    assert run(*args).exit_code == 0
    assert path.read_bytes() == first
    assert [p.name for p in tmp_path.iterdir()] == [path.name]


def test_a_plot_needs_a_known_suffix(tmp_path: Path) -> None:
    result = run("roofline", "--plot", str(tmp_path / "roof.jpeg2"))
    assert result.exit_code == 2
    assert ".png" in result.stderr
