"""The band of a step and those of its rows say the same, and what is longest in it bounds it."""

from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest

from medusa_sim.api import Scenario
from medusa_sim.latency.operator_time import Bound, OperatorTime
from medusa_sim.step.breakdown import WAITING, _longest_bound, _mean_and_ends, breakdown
from medusa_sim.step.pass_times import bound_codes
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


def test_a_mean_over_cases_has_the_root_of_mean_squares_as_its_half_width():
    """Three quarters of 10 - 1 + 2 us and a quarter of 30 - 6 + 8 us: 15 us."""
    time = OperatorTime(
        time_us=np.array([10.0, 30.0]), low_us=np.array([9.0, 24.0]), high_us=np.array([12.0, 38.0]),
        bound=np.array([Bound.MEMORY, Bound.COMPUTE], np.int8), source=np.zeros(2, np.int8),
    )  # fmt: skip
    shares = np.array([0.75, 0.25])
    mean, low, high = _mean_and_ends(time, shares)
    assert mean == 15.0
    assert 15.0 - low == pytest.approx((0.75 * 1 + 0.25 * 36) ** 0.5)
    assert high - 15.0 == pytest.approx((0.75 * 4 + 0.25 * 64) ** 0.5)
    wide = replace(time, low_us=np.array([0.0, -20.0]))
    assert _mean_and_ends(wide, shares)[1] == 0.0  # 15 - (0.75 x 100 + 0.25 x 2500)^0.5 is below nothing
    assert _longest_bound(time, shares) == Bound.MEMORY  # 7.5 us of each: the first
    assert _longest_bound(time, np.array([0.7, 0.3])) == Bound.COMPUTE


@pytest.mark.parametrize(
    ("memory", "compute", "device", "host", "exposed", "bound"),
    [
        (6.0, 4.0, 10.0, 0.0, 0.0, Bound.MEMORY), (5.0, 5.0, 10.0, 0.0, 0.0, Bound.MEMORY),
        (4.0, 5.0, 10.0, 0.0, 0.0, Bound.COMPUTE), (3.0, 3.0, 9.0, 0.0, 0.0, Bound.MEMORY),
        (3.0, 3.0, 9.1, 0.0, 0.0, Bound.LATENCY), (6.0, 4.0, 10.0, 6.0, 4.0, Bound.MEMORY),
        (6.0, 4.0, 10.0, 6.0, 4.1, Bound.HOST), (1.0, 1.0, 10.0, 11.0, 0.0, Bound.HOST),
        # 4 us of ramps are fewer than of memory, or of arithmetic, and 5 more
        (5.0, 1.0, 10.0, 0.0, 0.0, Bound.MEMORY), (1.0, 5.0, 10.0, 0.0, 0.0, Bound.COMPUTE),
        (4.0, 1.0, 10.0, 0.0, 0.0, Bound.LATENCY), (1.0, 4.0, 10.0, 0.0, 0.0, Bound.LATENCY),
    ],
)  # fmt: skip
def test_a_step_is_bound_by_what_takes_longest(memory, compute, device, host, exposed, bound):
    cost = SimpleNamespace(device_us=np.array(device), host_us=np.array(host), exposed_us=np.array(exposed))
    waits = {Bound.MEMORY: np.array(memory), Bound.COMPUTE: np.array(compute)}
    assert int(bound_codes(waits, cost)) == bound
