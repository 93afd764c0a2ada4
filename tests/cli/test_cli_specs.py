"""`medusa-sim specs` and `roofline`."""

import numpy as np
import pytest
from asking import frame, run

from medusa_sim.specs.gpu import gpu_names
from medusa_sim.specs.models import model_names


def test_the_overview_names_everything_with_its_source():
    text = run("specs").stdout
    for name in (*gpu_names(), *model_names(), "cuda-graph", "paper-fig21"):
        assert name in text
    rows = frame("specs")
    assert set(rows["kind"]) == {"gpu", "model", "runtime", "acceptance", "price"}
    assert (rows["source"].str.len() > 5).all()
    text = run("specs", "a40").stdout
    assert "696.0 GB/s" in text
    assert "datasheet" in text


def test_roofline_points_lie_on_the_roof():
    rows = frame("roofline", "--latency", "roofline", "--batch", "1,16")
    assert set(rows["phase"]) == {"prefill", "decode", "verify"}
    intensity = rows["operational_intensity"]
    np.testing.assert_allclose(intensity, rows["flops"] / rows["bytes"], rtol=1e-12)
    np.testing.assert_allclose(rows["flops_per_s"], np.minimum(312e12, intensity * 1935e9), rtol=1e-9)


@pytest.mark.parametrize("suffix", ["png", "svg", "pdf"])
def test_roofline_is_drawn(suffix, tmp_path):
    path = tmp_path / f"roof.{suffix}"
    args = ("roofline", "--latency", "roofline", "--runtime", "paper", "--plot", str(path))
    assert run(*args).exit_code == 0
    first = path.read_bytes()
    assert run(*args).exit_code == 0
    assert path.read_bytes() == first
    assert [p.name for p in tmp_path.iterdir()] == [path.name]
