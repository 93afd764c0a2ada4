"""Whole runs of the decoder: the grid, its file, and what the simulator says about it."""

import dataclasses
import json
from pathlib import Path

import pytest
from asking import answered, document, run
from decoder_models import tiny_config

from medusa_sim.acceptance.heads import (
    expected_tokens_per_step,
    optimal_order,
)
from medusa_sim.acceptance.profile import load_acceptance
from medusa_sim.errors import DataError
from medusa_sim.gpus.gpu import load_gpu
from medusa_sim.lab.measure.cells import RunRow, StepRow, read_runs, write_runs
from medusa_sim.lab.measure.disagreement import speedups_differ
from medusa_sim.lab.measure.predicted_step import decoder_model, decoder_step
from medusa_sim.lab.validate.generations import validate_runs
from medusa_sim.latency.calibrated import CalibratedLatency

GPU, PROFILE = "h100-sxm", "medusa1-vicuna-7b"
KERNELS = {"kernels": "torch", "latency": "calibrated", "fallback": "calibrated"}
COUNTS, BATCHES = (1, 2, 16, 64), (1, 8)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Runs that the simulator itself predicts, 200 us beside a plain and 500 beside a speculative step."""
    config = tiny_config(1000, hidden_size=1024, intermediate_size=2816, head_dim=128, num_attention_heads=8)
    config = dataclasses.replace(config, num_key_value_heads=8)
    (tmp_path / "tiny").mkdir()
    (tmp_path / "tiny" / "config.json").write_text(json.dumps(config.to_hf()), encoding="utf-8")
    write_runs(tmp_path, rows(tmp_path))
    return tmp_path


def rows(folder: Path, gain: float = 1.0) -> list[RunRow]:
    model = decoder_model(folder, "tiny", "fp16")
    latency = CalibratedLatency(load_gpu(GPU), "torch", cold=False)
    heads = load_acceptance(PROFILE).heads
    assert heads is not None
    order = optimal_order(heads, max(COUNTS))
    found = []
    for batch in BATCHES:
        for count in COUNTS:
            depth = order.tree(count).depth if count > 1 else 0
            us = float(decoder_step(model, latency, batch, 128, count, depth).device_us)
            tokens = gain * expected_tokens_per_step(order.tree(count), heads) if count > 1 else 1.0
            found += [
                RunRow(
                    model="tiny", dtype="fp16", acceptance=PROFILE, batch=batch, candidates=count,
                    depth=depth, seq_len=128, repetition=repetition, steps=50,
                    step_us=us + (200.0 if count == 1 else 500.0), tokens_per_step=tokens,
                )
                for repetition in (0, 1)
            ]  # fmt: skip
    return found


def test_what_the_simulator_predicts_is_met_exactly(folder):
    found = validate_runs(folder, load_gpu(GPU), **KERNELS)
    by_name = {each.quantity: each for each in found.comparisons}
    assert by_name["tokens per step"].cells == len(COUNTS) - 1
    assert by_name["speedup, wall clock"].cells == len(BATCHES) * (len(COUNTS) - 1) - 1  # one is fitted
    assert all(each.worst < 1e-4 for each in found.comparisons)
    assert all(choice.grid_steps == 0 for choice in found.choices)


def test_what_cannot_be_compared_is_left_out_or_refused(folder):
    """The only tree is fitted, so that no speedup is left to score; without plain runs nothing is."""
    one = [row for row in rows(folder) if row.batch == 1 and row.candidates in (1, 16)]
    write_runs(folder, one)
    found = validate_runs(folder, load_gpu(GPU), **KERNELS)
    assert [each.quantity for each in found.comparisons] == ["tokens per step"]
    for count in (1, 16):
        write_runs(folder, [row for row in one if row.candidates == count])
        with pytest.raises(DataError, match="tiny: runs of a tree"):
            validate_runs(folder, load_gpu(GPU), **KERNELS)


def test_fewer_tokens_than_predicted_are_an_error_of_both(folder):
    write_runs(folder, rows(folder, gain=0.8))
    found = validate_runs(folder, load_gpu(GPU), **KERNELS)
    for each in found.comparisons:
        assert each.bias == pytest.approx(0.25, rel=1e-3)


def test_the_command_prints_both_tables_and_fails_above(folder):
    write_runs(folder, rows(folder, gain=0.8))
    words = ["validate", "decoder", "--gpu", GPU, "--kernels", "torch", str(folder)]
    shown = answered(*words)
    assert "speedup, wall clock" in shown.stdout
    assert "candidates to choose" in shown.stdout
    told = document(*words)
    assert told["schema"] == "medusa-sim/validate-runs/1"
    assert len(told["rows"]) == len(COUNTS) * len(BATCHES)
    assert run(*words, "--fail-above", "10").exit_code == 3


def test_bad_files_are_named(folder):
    assert len(read_runs(folder)) == 2 * len(COUNTS) * len(BATCHES)
    path = folder / "runs.csv"
    text = path.read_text(encoding="utf-8")
    for bad, told in (
        (text.replace("batch", "b", 1), "columns model, dtype"),
        (text.split("\n")[0] + "\n", "no rows"),
        (text.replace(",128,", ",x,", 1), "row 1: seq_len: given 'x'"),
    ):
        path.write_text(bad, encoding="utf-8")
        with pytest.raises(DataError, match=told):
            read_runs(folder)
    path.unlink()
    with pytest.raises(DataError, match="medusa-sim measure runs"):
        read_runs(folder)


def test_passes_of_a_model_differ_by_the_mean_over_its_trees():
    """Times of two passes, halves of one each: gains of 2.0 and 1.0, of 1.0 and 1.0 at another count."""
    times = {1: (100.0, 100.0), 4: (50.0, 100.0), 8: (100.0, 100.0)}
    found = [
        StepRow(
            model="tiny", dtype="fp16", batch=1, seq_len=128, candidates=count, depth=2, repetition=place,
            time_us=us, p10_us=us, p90_us=us, repeats=3, tokens_per_step=1.0,
        )
        for count, both in times.items() for place, us in enumerate(both)
    ]  # fmt: skip
    assert speedups_differ(found) == pytest.approx((2 * (2.0 - 1.0) / (2.0 + 1.0) + 0.0) / 2)


def test_the_first_plain_and_the_first_tree_say_what_runs_cost_beside_kernels(folder):
    found = validate_runs(folder, load_gpu(GPU), **KERNELS)
    fitted = [(cell.batch, cell.candidates) for cell in found.cells if cell.is_fitted]
    assert fitted == [(1, 1), (1, 2)]
