"""What benchmarks/compare_validation.py takes to be measured between measured numbers of requests."""

import numpy as np
import pandas as pd
import pytest
from compare_validation import filled


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
