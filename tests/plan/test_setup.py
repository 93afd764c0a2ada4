"""From names to a sweep: defaults, kernel sets by dtype, and names that do not exist."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from medusa_sim.errors import SpecError, UsageError
from medusa_sim.latency.by_name import latency_model
from medusa_sim.plan.scenario import drafter_of, sweep_settings
from medusa_sim.specs.gpu import gpu_names, load_gpu
from medusa_sim.specs.models import model_names


def test_defaults_are_those_of_the_command_line() -> None:
    (item,) = sweep_settings()
    assert item.gpu.name == "a100-80gb-pcie"
    assert item.setting.model.name == "vicuna-7b"
    assert item.setting.runtime.name == "cuda-graph"
    assert item.setting.latency.name == "calibrated"
    assert item.setting.scope == "model"
    assert item.acceptance.name == "paper-fig4-sparse"
    assert item.baseline == "same"
    assert item.kernels == "torch"


def test_the_kernel_set_follows_the_dtype() -> None:
    kernels = {
        item.setting.model.dtype: item.kernels for item in sweep_settings(models=("llama-7b", "llama-3-8b"))
    }
    assert kernels == {"fp16": "torch", "bf16": "sglang"}
    assert sweep_settings(gpus=("h100-sxm",), dtype="fp8")[0].kernels == "sglang"
    assert sweep_settings(models=("llama-7b",), runtime="paper", scope="block")[0].kernels == "paper"
    assert sweep_settings(latency="roofline")[0].kernels == "none"


@pytest.mark.parametrize("gpu", [name for name in gpu_names() if not name.startswith("cpu-")])
@pytest.mark.parametrize("dtype", ["fp16", "bf16"])
def test_every_gpu_sweeps_by_default(gpu: str, dtype: str) -> None:
    from medusa_sim.plan.sweep import sweep
    from medusa_sim.step.grid import Grid

    settings = sweep_settings(gpus=(gpu,), dtype=dtype)
    table = next(sweep(settings, Grid.of([1, 8], [1024], [1, 64])))
    assert (table.numbers["verify_step_us"] >= table.numbers["decode_step_us"] * 0.999).all()
    assert (table.numbers["verify_low_us"] <= table.numbers["verify_step_us"]).all()


@pytest.mark.parametrize("gpu", [name for name in gpu_names() if name.startswith("cpu-")])
def test_every_cpu_sweeps_in_the_dtype_that_it_was_measured_in(gpu: str) -> None:
    from medusa_sim.plan.sweep import sweep
    from medusa_sim.step.grid import Grid

    settings = sweep_settings(gpus=(gpu,), dtype="fp32", runtime="kernel")
    table = next(sweep(settings, Grid.of([1, 8], [1024], [1, 64])))
    assert (table.numbers["verify_step_us"] >= table.numbers["decode_step_us"] * 0.999).all()
    with pytest.raises(SpecError, match="no gemm kernel for 'fp16'"):
        next(sweep(sweep_settings(gpus=(gpu,)), Grid.of([1], [1024], [1])))


@pytest.mark.parametrize("model", model_names())
def test_every_model_sweeps_by_default(model: str) -> None:
    from medusa_sim.plan.sweep import sweep
    from medusa_sim.step.grid import Grid

    table = next(sweep(sweep_settings(models=(model,)), Grid.of([1], [512], [1, 16])))
    assert table.rows == 2


def test_a_config_json_is_a_model(tmp_path: Path) -> None:
    shipped = Path(__file__).resolve().parents[2] / "docs" / "example_config.json"
    path = tmp_path / "config.json"
    path.write_text(json.dumps({**json.loads(shipped.read_text()), "num_key_value_heads": 8}))
    (item,) = sweep_settings(models=(str(path),))
    assert item.setting.model.kv_heads == 8


@pytest.mark.parametrize(
    ("names", "error", "told"),
    [
        ({"gpus": ("a100",)}, SpecError, "a100-40gb"),
        ({"models": ("vicuna",)}, SpecError, "vicuna-7b"),
        ({"runtime": "cuda"}, SpecError, "cuda-graph"),
        ({"acceptance": "fig21"}, SpecError, "paper-fig21"),
        ({"kernels": "trtllm"}, SpecError, "torch"),
        ({"drafter": "medusae"}, UsageError, "medusa"),
        ({"heads": 0}, UsageError, "whole numbers"),
        ({"latency": "guess"}, UsageError, "calibrated"),
        ({"gpus": ("a40",), "dtype": "fp8"}, SpecError, "fp8"),
    ],
)
def test_unknown_names_are_told_with_what_is_known(
    names: dict[str, object], error: type[Exception], told: str
) -> None:
    with pytest.raises(error, match=told) as refused:
        list(_computed(names))
    assert "\n" not in str(refused.value)


def _computed(names: dict[str, object]) -> object:
    """Some errors show only when a dtype is looked up."""
    from medusa_sim.plan.sweep import sweep
    from medusa_sim.step.grid import Grid

    return sweep(sweep_settings(**names), Grid.of([1], [128], [1, 8]))  # type: ignore[arg-type]


def test_the_measured_model_refuses_or_falls_back_by_choice() -> None:
    from medusa_sim.errors import CoverageError
    from medusa_sim.operators.operator import Gemm

    gpu = load_gpu("a100-80gb-pcie")
    far = Gemm(name="far", m=8, n=128, k=128, dtype="fp16")
    with pytest.raises(CoverageError, match="measure"):
        latency_model(gpu, "measured", "torch").time(far)
    found = latency_model(gpu, "measured", "torch", outside="calibrated").time(far)
    assert found.time_us > 0.0


def test_drafters_by_name() -> None:
    assert drafter_of("medusa", 3).name == "medusa"
    assert drafter_of("ngram").name == "ngram"
