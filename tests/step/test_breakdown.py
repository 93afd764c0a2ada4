"""The band of a step and those of its rows say the same, and no row takes less than no time."""

import numpy as np
import pytest

from medusa_sim.api import Scenario
from medusa_sim.step.breakdown import WAITING, breakdown
from medusa_sim.step.step import decode_step, speculative_step


@pytest.mark.parametrize(
    ("gpu", "drafter", "candidates"),
    [
        ("h100-sxm", "eagle3", 1),
        ("h100-sxm", "eagle3", 4),
        ("rtx-4090", "eagle3", 1),
        ("rtx-4090", "eagle3", 4),
        ("h100-sxm", "ngram", 4),
    ],
)
def test_squared_half_widths_add_up_to_the_step_s(gpu, drafter, candidates):
    """Kernels that are borrowed share some of their error, which is the step's alone."""
    setting = Scenario(gpu=gpu, model="llama-3.1-8b", drafter=drafter, runtime="vllm", acceptance=0.7).setting
    rows = breakdown(setting, 128, 1024, candidates)
    sizes = (np.asarray(value) for value in (128, 1024, candidates))
    step = decode_step(setting, 128, 1024) if candidates == 1 else speculative_step(setting, *sizes)
    for end, whole in (("low_us", step.low_us), ("high_us", step.high_us)):
        half_us = np.abs(rows[end] - rows["time_us"])
        half_us = half_us.where(rows[end] > 0.0, rows["high_us"] - rows["time_us"])  # one is cut off at 0
        squares = float((half_us**2).sum())
        squares += float(step.cost.setup_half_us) ** 2
        of_step = (float(whole) - float(step.time_us)) ** 2
        assert squares == pytest.approx(of_step, rel=1e-4) or (gpu == "rtx-4090" and squares > of_step)
    waiting = rows[rows["op"] == WAITING].iloc[0]
    assert waiting.low_us < waiting.time_us < waiting.high_us  # an engine's host has a band of its own


@pytest.mark.parametrize(
    ("set_up", "candidates"),
    [
        ({"gpu": "h100-sxm", "model": "llama-3.1-8b", "drafter": "ngram", "runtime": "vllm"}, 4),
        ({"gpu": "h100-sxm", "model": "vicuna-7b", "drafter": "ngram", "runtime": "hf-eager"}, 4),
        ({"gpu": "rtx-4090", "model": "llama-3.1-8b", "drafter": "ngram", "runtime": "llama.cpp-cuda"}, 4),
        ({"gpu": "rtx-4090", "model": "llama-3.1-8b", "drafter": "draft-model", "draft_model": "llama-3.2-1b",
          "runtime": "llama.cpp-cuda"}, 6),
        ({"gpu": "h100-sxm", "model": "llama-3.1-8b", "drafter": "eagle3", "runtime": "sglang"}, 6),
    ],
)  # fmt: skip
@pytest.mark.parametrize("batch", [1, 3])
def test_rows_add_up_to_the_step(set_up, candidates, batch):
    """Where drafts are looked up, or end before a token that is not sure, rows are means as the step is."""
    step = Scenario(**set_up, acceptance=0.7).step(batch, candidates=candidates)
    assert step.breakdown()["time_us"].sum() == pytest.approx(step.time_us, rel=1e-12)


@pytest.mark.parametrize(
    ("set_up", "candidates"),
    [
        ({"gpu": "h100-sxm", "model": "llama-3.1-8b", "drafter": "eagle3", "runtime": "vllm"}, 6),
        ({"gpu": "l40s", "model": "qwen3-30b-a3b", "drafter": "eagle3", "runtime": "vllm"}, 4),
        ({"gpu": "rtx-4090", "model": "llama-3.1-8b", "drafter": "ngram", "runtime": "llama.cpp-cuda"}, 4),
    ],
)
def test_no_row_may_take_less_than_no_time(set_up, candidates):
    rows = breakdown(Scenario(**set_up, acceptance=0.7).setting, 1, 1024, candidates)
    assert (rows["low_us"] >= 0.0).all()
    assert (rows["low_us"] <= rows["time_us"]).all()
    assert (rows["time_us"] <= rows["high_us"]).all()
