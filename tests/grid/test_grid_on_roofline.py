"""Numbers of sweeps on a roofline, where no fitted term has a part: means, and how many there are."""

import pytest
from asking import document
from leaf_means import moved
from tables import table

ANSWERS = table("grid_on_roofline")


@pytest.mark.parametrize("command", ANSWERS)
def test_an_answer_has_its_numbers(command):
    assert moved(document(*command.split(" ")), ANSWERS[command]) == {}
