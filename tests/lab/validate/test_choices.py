"""What a measurement of limited accuracy says about a predicted choice."""

import pytest

from medusa_sim.lab.validate.comparison import CountChoice


@pytest.mark.parametrize(
    ("predicted", "regret", "gain", "floor", "verdict"),
    [
        (4, 0.0, 1.3, 0.25, "right"),
        (4, 0.0, 1.2, 0.25, "cannot be judged here"),
        (4, 0.0, 0.7, 0.25, "right"),
        (4, 0.0, 0.8, 0.25, "cannot be judged here"),
        (4, 0.0, None, 0.25, "right"),
        (8, 0.05, 1.5, None, "within 5 %"),
        (8, 0.051, 1.5, None, "wrong"),
        (8, 0.08, 1.5, 0.1, "cannot be judged here"),
        (8, 0.12, 1.5, 0.1, "wrong"),
    ],
)
def test_a_choice_is_judged_by_what_the_passes_tell_apart(predicted, regret, gain, floor, verdict):
    choice = CountChoice(
        model="m",
        batch=1,
        predicted=predicted,
        measured=4,
        grid_steps=1,
        regret=regret,
        gain=gain,
        floor=floor,
    )
    assert choice.verdict == verdict
