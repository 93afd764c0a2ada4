"""Numbers of answers on a roofline, where no fitted term has a part: means, and how many there are."""

import pytest
from asking import document
from leaf_means import leaf_means
from tables import table

ANSWERS = table("plan_on_roofline")


@pytest.mark.parametrize("command", ANSWERS)
def test_an_answer_has_its_numbers(command):
    found = leaf_means(document(*command.split(" ")))
    assert found.keys() == ANSWERS[command].keys()
    for place, expected in ANSWERS[command].items():
        assert found[place] == pytest.approx(expected, rel=1e-6), place
