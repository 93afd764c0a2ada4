"""The band of a step and those of its rows say the same."""

import numpy as np
import pytest

from medusa_sim.api import Scenario
from medusa_sim.step.breakdown import WAITING, breakdown
from medusa_sim.step.step import decode_step, speculative_step


@pytest.mark.parametrize("candidates", [1, 4])
@pytest.mark.parametrize("gpu", ["h100-sxm", "rtx-4090"])
def test_squared_half_widths_add_up_to_the_step_s(gpu, candidates):
    setting = Scenario(
        gpu=gpu, model="llama-3.1-8b", drafter="eagle3", runtime="vllm", acceptance=0.7
    ).setting
    rows = breakdown(setting, 128, 1024, candidates)
    sizes = (np.asarray(value) for value in (128, 1024, candidates))
    step = decode_step(setting, 128, 1024) if candidates == 1 else speculative_step(setting, *sizes)
    for end, whole in (("low_us", step.low_us), ("high_us", step.high_us)):
        squares = float(((rows[end] - rows["time_us"]) ** 2).sum())
        assert squares == pytest.approx((float(whole) - float(step.time_us)) ** 2, rel=1e-6)
    waiting = rows[rows["op"] == WAITING].iloc[0]
    assert waiting.low_us < waiting.time_us < waiting.high_us  # an engine's host has a band of its own
