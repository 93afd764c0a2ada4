"""What benchmarks/compare_validation.py takes to be measured between cells, and what its grid gives up."""

import numpy as np
import pandas as pd
import pytest
from compare_validation import TRAFFIC, filled, frontier_steps, least_given_up


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
