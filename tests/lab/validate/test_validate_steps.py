"""`validate decoder` on steps that the simulator itself predicts. No real timing is judged."""

import dataclasses
import json
from pathlib import Path

import msgspec
import numpy as np
import pytest
from asking import answered, document
from asking import run as invoke
from decoder_models import tiny_config
from step_meta import ENVIRONMENT, GPU, META

from medusa_sim.errors import UsageError
from medusa_sim.gpus.gpu import load_gpu
from medusa_sim.lab.measure.cells import StepRow, write_steps
from medusa_sim.lab.measure.predicted_step import decoder_step
from medusa_sim.lab.measure.record import write_meta
from medusa_sim.lab.validate.steps import validate_decoder
from medusa_sim.latency.calibrated import CalibratedLatency
from medusa_sim.latency.measurement import Meta, Rates
from medusa_sim.models.hf_config import model_from_config

KERNELS = {"kernels": "torch", "latency": "calibrated", "fallback": "calibrated"}


def measured_rows(factor: dict[int, float], *, wobble: float = 0.0) -> list[StepRow]:
    """Rows that the simulator itself predicts, times `factor` by candidates."""
    config = tiny_config(1000, hidden_size=1024, intermediate_size=2816, head_dim=128, num_attention_heads=8)
    config = dataclasses.replace(config, num_key_value_heads=8)
    path = Path(_folder) / "tiny" / "config.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(config.to_hf()), encoding="utf-8")
    model = dataclasses.replace(model_from_config(path), dtype="fp16", weight_dtype="fp16", kv_dtype="fp16")
    model = dataclasses.replace(model, activation_dtype="fp16")
    rows = []
    for batch in (1, 4):
        for candidates, share in factor.items():
            latency = CalibratedLatency(load_gpu(GPU), "torch", cold=False)
            depth = 0 if candidates == 1 else 3
            step = decoder_step(model, latency, batch, 64, candidates, depth)
            time_us = float(step.time_us)
            for repetition, sign in ((0, 1.0), (1, -1.0)):
                us = share * time_us * (1.0 + sign * wobble / 2.0)
                rows.append(
                    StepRow(
                        model="tiny", dtype="fp16", batch=batch, seq_len=64, candidates=candidates,
                        depth=depth, repetition=repetition, time_us=us, p10_us=us, p90_us=us, repeats=5,
                        tokens_per_step=1.0 + 0.5 * float(np.log(candidates)),
                    )
                )  # fmt: skip
    return rows


_folder = ""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(f"{__name__}._folder", str(tmp_path / "steps"))
    (tmp_path / "steps").mkdir()
    return tmp_path / "steps"


def test_what_the_simulator_predicts_is_met_exactly(folder):
    """Rows of its own: no gap is found, and no error is left."""
    write_steps(folder, META, measured_rows({1: 1.0, 16: 1.0, 64: 1.0, 128: 1.0}))
    found = validate_decoder(folder, load_gpu(GPU), **KERNELS)
    assert found.gaps["tiny"].plain_us == pytest.approx(0.0, abs=1e-3)  # six digits in the file
    by_name = {each.quantity: each for each in found.comparisons}
    assert set(by_name) == {"decode step", "verify step", "speedup"}
    assert (by_name["decode step"].cells, by_name["verify step"].cells) == (
        1,
        5,
    )  # the fitted ones are left out
    assert all(each.mean < 1e-4 and each.floor == 0.0 and each.within == 1.0 for each in found.comparisons)
    assert all(choice.grid_steps == 0 and choice.regret == 0.0 for choice in found.choices)


def test_plain_and_speculative_steps_have_gaps_of_their_own(folder):
    """300 us beside a plain step and 700 beside a speculative one are found, and their cells left out."""
    rows = [
        msgspec.structs.replace(row, time_us=row.time_us + (300.0 if row.candidates == 1 else 700.0))
        for row in measured_rows({1: 1.0, 16: 1.0, 64: 1.0})
    ]
    write_steps(folder, META, rows)
    found = validate_decoder(folder, load_gpu(GPU), **KERNELS)
    assert found.gaps["tiny"].plain_us == pytest.approx(300.0, rel=1e-3)
    assert found.gaps["tiny"].speculative_us == pytest.approx(700.0, rel=1e-3)
    counted = {each.quantity: (each.cells, each.worst) for each in found.comparisons}
    assert {name: cells for name, (cells, _) in counted.items()} == {
        "decode step": 1,
        "verify step": 3,
        "speedup": 3,
    }
    assert all(worst < 1e-3 for _, worst in counted.values())


def test_errors_floors_and_choices_are_counted(folder):
    """Steps of 64 that take 3 times as long, and passes that differ by 8 %."""
    rows = measured_rows({1: 1.0, 16: 1.0, 64: 3.0}, wobble=0.08)
    write_steps(folder, META, rows)
    found = validate_decoder(folder, load_gpu(GPU), **KERNELS)
    by_name = {each.quantity: each for each in found.comparisons}
    verify = by_name["verify step"]
    assert by_name["decode step"].cells == 1
    assert verify.floor == pytest.approx(0.08, rel=1e-3)
    errors = 1.0 / 0.98 - 1.0, 1.0 - 1.0 / (3.0 * 0.98)  # the lower quartile of two passes
    assert verify.mean == pytest.approx((errors[0] + 2.0 * errors[1]) / 3.0, rel=1e-3)  # the first is fitted
    assert verify.worst == pytest.approx(max(errors), rel=1e-3)
    assert "64 candidates" in verify.worst_at
    assert verify.within == pytest.approx(1.0 / 3.0)
    assert by_name["speedup"].floor == pytest.approx(0.0, abs=1e-4)  # drifts hit both steps of a ratio
    assert by_name["speedup"].worst == pytest.approx(2.0, rel=1e-3)
    for choice in found.choices:
        assert choice.measured == 16
        assert choice.grid_steps == (choice.predicted == 64)


def test_do_not_enable_comes_out(folder):
    """Where every verification step costs ten decoding steps, the best count is 1, measured and predicted."""
    rows = [
        msgspec.structs.replace(row, tokens_per_step=1.0 + 0.001 * (row.candidates > 1))
        for row in measured_rows({1: 1.0, 16: 1.0, 64: 1.0})
    ]
    write_steps(folder, META, rows)
    found = validate_decoder(folder, load_gpu(GPU), **KERNELS)
    assert [(choice.predicted, choice.measured) for choice in found.choices] == [(1, 1), (1, 1)]


def test_other_devices_are_refused(folder, tmp_path):
    write_steps(folder, META, measured_rows({1: 1.0, 16: 1.0}))
    with pytest.raises(UsageError, match=r"name 'a100-80gb-sxm' and 'h100-sxm'.*--allow-different"):
        validate_decoder(folder, load_gpu("a100-80gb-sxm"), **KERNELS)
    assert validate_decoder(folder, load_gpu("a100-80gb-sxm"), **KERNELS, allow_different=True).comparisons
    profile = tmp_path / "data" / "profiles" / "operators" / GPU
    profile.mkdir(parents=True)
    slower = msgspec.structs.replace(ENVIRONMENT, clocks_mhz={"sm": 1200.0})
    rates = Rates(copy_bytes_per_s=1e12, read_bytes_per_s=1e12, flops_per_s={}, launch_eager_us=5.0)
    meta = Meta(schema=1, title="t", method="m", models=(), dtypes=("bf16",), environment=slower, rates=rates)
    write_meta(profile, meta)
    with pytest.raises(UsageError, match=r"sm clock 1200 and 1980 MHz; dtype bf16 and fp16"):
        validate_decoder(folder, load_gpu(GPU), **KERNELS, data_dir=tmp_path / "data")
    write_meta(profile, msgspec.structs.replace(meta, environment=ENVIRONMENT, dtypes=("fp16",)))
    assert validate_decoder(folder, load_gpu(GPU), **KERNELS, data_dir=tmp_path / "data").comparisons


def test_command_prints_scores_and_fails_above(folder):
    write_steps(folder, META, measured_rows({1: 1.0, 16: 1.0, 64: 1.5}))
    table = answered("validate", "decoder", "--gpu", GPU, folder)
    assert "verify step" in table.stdout
    assert "candidates to choose" in table.stdout
    assert "0 us a plain step" in table.stderr
    markdown = invoke("validate", "decoder", "--gpu", GPU, folder, "--format", "md")
    assert markdown.stdout.count("| ---") >= 2
    found = document("validate", "decoder", "--gpu", GPU, folder)
    assert len(found["rows"]) == 6
    assert {each["quantity"] for each in found["comparisons"]} == {"decode step", "verify step", "speedup"}
    assert len(found["choices"]) == 2
    failed = invoke("validate", "decoder", "--gpu", GPU, folder, "--fail-above", 5)
    assert failed.exit_code == 3
    assert "verify step: mean error" in failed.stderr
    assert invoke("validate", "decoder", "--gpu", GPU, folder, "--fail-above", 60).exit_code == 0
    other = invoke("validate", "decoder", "--gpu", "a40", folder)
    assert other.exit_code == 2
    assert "not of one device" in other.stderr
