"""What benchmarks/compare_validation.py takes to be measured between cells, and what its grid gives up."""

import numpy as np
import pandas as pd
import pytest
from common.recipes import graphs_hold_prompts, with_graphed_prompts
from compare_validation import TRAFFIC, filled, frontier_steps, least_given_up, own_runtimes

from medusa_sim.engines.runtime import load_runtime


def test_numbers_of_requests_between_measured_ones_have_the_error_of_these():
    priced = pd.DataFrame(
        {"concurrency": [2, 4, 8, 16, 32, 64], "speculation": "none",
         "predicted_speed": [90.0, 80.0, 70.0, 60.0, 50.0, 40.0],
         "predicted_rate": [1.0, 2.0, 4.0, 8.0, 16.0, 32.0]}
    )  # fmt: skip
    known = pd.DataFrame(
        {"gpu": "b200", "speculation": "none", "concurrency": [4, 16], "speed": [88.0, 60.0],
         "rate": [2.0, 16.0]}
    )  # fmt: skip
    found = filled(known, priced)
    assert found.concurrency.tolist() == [2, 4, 8, 16, 32]  # 64 is four times the last
    assert set(found.gpu) == {"b200"}
    # 1.1 and 1 of the predictions, half way between them on the logarithm, the nearest one beyond
    assert found.speed.to_numpy() == pytest.approx([99.0, 88.0, 70.0 * np.sqrt(1.1), 60.0, 50.0])
    assert found.rate.to_numpy() == pytest.approx([1.0, 2.0, 4.0 * np.sqrt(2.0), 16.0, 32.0])


def test_a_grid_gives_up_what_its_frontier_steps_do_however_right_the_predictions_are():
    cells = pd.DataFrame(
        {"gpu": "b200", "weights": "fp8", "speculation": "none", "tp": 8, "ep": 1, "dp_attention": False,
         "concurrency": [4, 64, 32], "speed": [100.0, 50.0, 40.0], "rate": [1.0, 4.0, 2.0]}
    ).assign(**dict.fromkeys(TRAFFIC, 1024))  # fmt: skip
    assert frontier_steps(cells).tolist() == [0.75]  # 32 requests are beaten in both
    off = cells.assign(predicted_speed=[150.0, 25.0, 40.0], predicted_rate=[1.5, 2.0, 2.0])
    narrow, wide = (
        off.assign(
            predicted_speed_low=off.predicted_speed / half, predicted_speed_high=off.predicted_speed * half
        )
        for half in (1.001, 1.2)
    )
    assert "given up 0.0%, 0% at most" in next(least_given_up(narrow))
    assert "75% at most; a step along the measured frontier gives up 75%" in next(least_given_up(wide))


@pytest.mark.parametrize(
    ("precision", "traffic", "requests", "how", "graphed"),
    [
        ("fp4", (1024, 1024), 64, {"is_spread": True}, True),
        ("fp4", (1024, 1024), 64, {"is_spread": False}, False),
        ("fp4", (1024, 8192), 64, {"is_spread": True}, False),
        ("fp4", (1024, 8192), 64, {"is_spread": True, "drafts": True}, True),
        ("fp8", (8192, 1024), 64, {}, True),
        ("fp8", (8192, 1024), 16, {"drafts": True}, False),
        ("fp8", (8192, 1024), 17, {"drafts": True}, True),
        ("fp8", (1024, 1024), 256, {}, False),
        ("fp8", (1024, 1024), 64, {"splits": True}, False),
        ("fp8", (512, 512), 64, {}, False),
    ],
)
def test_recipes_have_graphs_for_prompts_at_some_numbers_of_requests(
    precision, traffic, requests, how, graphed
):
    how = {"drafts": False, "is_spread": False, "splits": False} | how
    assert graphs_hold_prompts(precision, traffic, requests, **how) is graphed


def test_a_runtime_of_ones_own_has_graphs_for_prompts_and_nothing_else_that_differs():
    name = "tensorrt-llm-1.2"
    own, shipped = load_runtime(name, own_runtimes(name).name), load_runtime(name)
    differs = {
        term: (own.engine.terms[term].value, value.value)
        for term, value in shipped.engine.terms.items()
        if own.engine.terms[term].value != value.value
    }
    assert differs == {"prompt_us_per_launch": (0.0, shipped.engine.prompt_us_per_launch.value)}
    assert with_graphed_prompts(shipped.engine).prompt_us_per_launch.value == 0.0
    assert (own.name, own.library) == (shipped.name, shipped.library)
