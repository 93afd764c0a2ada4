"""Numbers of drafts that policies choose, by hand."""

import numpy as np
import pytest
from load_tables import MOST_TOKENS, constant_table, limits, prompt_times, requests

from medusa_sim.load.policies import Adaptive, Budget, BySize, Policy, State, ThroughputAware
from medusa_sim.load.serving_loop import run


def seen(accepted: float | None, drafts: int = 3, requests: int = 1, steps: int = 5) -> State:
    return State(now_s=0.0, requests=requests, unadmitted=0, mean_length=100.0, kv_share=0.1, drafts=drafts,
                 accepted=accepted, steps=steps)  # fmt: skip


@pytest.mark.parametrize(
    ("accepted", "tiers"),
    [
        ([2.6, 2.6, 2.6], [3, 3, 7]),  # above 3 - 0.5, after more than ten steps
        ([2.4, 2.4, 2.4], [3, 3, 3]),
        ([0.25, 0.25, 0.25], [3, 3, 1]),  # at most 1 - 0.5 - 0.25
        ([0.26, 0.26, 0.26], [3, 3, 3]),
        ([1.0, 1.0, 3.0, 3.0], [3, 3, 3, 7]),  # averages of 2.34 and 2.79 with 0.8 a step
    ],
)
def test_sglangs_tiers_by_hand(accepted, tiers):
    policy = Adaptive()
    assert policy.drafts(seen(None)) == 3
    assert [policy.drafts(seen(value)) for value in accepted] == tiers


def test_sglangs_tiers_change_as_often_as_they_are_asked():
    class Hasty(Adaptive):
        hold_steps = 2

    policy = Hasty(warmup=3)
    assert [policy.drafts(seen(2.6, steps=2)) for _ in range(2)] == [3, 7]
    policy = Adaptive(warmup=3)
    assert [policy.drafts(seen(2.6, steps=2)) for _ in range(3)] == [3, 3, 7]


def test_sglangs_costs_by_hand():
    # of drafts accepted at one rate r a step of K emits 1 + r + ... + r^K tokens
    step_s = np.array([1.0, 1.2, 1.4, 1.6, 1.8, 2.0, 2.2, 2.4])[:, None] * np.ones((1, 2))
    for accepted, expected in ((0.2, 1), (1.2, 3), (2.8, 7)):
        assert ThroughputAware(step_s=step_s).drafts(seen(accepted)) == expected
    policy = ThroughputAware(step_s=step_s)
    policy.drafts(seen(2.8))
    # 1.2 drafts of 3 are a rate of 0.61, 2.8 are 0.97: the average of 0.73 asks for three
    assert policy.drafts(seen(1.2)) == 3


class Counting(Policy):
    """Notes at which steps and numbers of requests it is asked."""

    name = "counting"
    hold_steps = 4

    def __init__(self) -> None:
        self.asked: list[tuple[float, int, float | None, int]] = []

    def drafts(self, state: State) -> int:
        self.asked.append((round(state.now_s, 6), state.requests, state.accepted, state.steps))
        return 1


class Patient(Counting):
    """Asked by steps alone."""

    asked_on_change = False


def test_a_policy_is_asked_when_its_answer_is_old_or_requests_come_and_go():
    table = constant_table(0.01, (1.0,))
    asked = requests([0.0, 0.055], prompt=[4, 4], output=[21, 5])
    policy, patient = Counting(), Patient()
    for each in (policy, patient):
        found = run(asked, table, limits(), each)
        assert found.whole.emitted == 26
    # the second joins after the step that ends at 0.07, and leaves two steps later
    assert [moment for moment, *_ in policy.asked] == [0.01, 0.05, 0.07, 0.09]
    assert [number for _, number, *_ in policy.asked] == [1, 1, 2, 1]
    assert policy.asked[0][2:] == (None, 0)
    assert policy.asked[1][2:] == (1.0, 4)
    assert [moment for moment, *_ in patient.asked] == [0.01, 0.05, 0.09]


def test_drafts_by_size_end_and_begin_at_their_entries():
    policy = BySize(((1, 5), (4, 2), (9, 0)))
    assert [policy.drafts(seen(None, requests=b)) for b in (1, 3, 4, 8, 9, 100)] == [5, 5, 2, 2, 0, 0]


@pytest.mark.parametrize(("match_rate", "rows"), [(1.0, 12), (0.5, 8), (0.25, 6)])
def test_prompts_ride_on_the_rows_that_were_found(match_rate, rows):
    linear_s = 1e-6 * np.arange(MOST_TOKENS) ** 1.5
    table = constant_table(0.01, (0.2, 0.1), prompts=prompt_times(linear_s=linear_s), match_rate=match_rate)
    assert table.prompts_s(2, 4, [(30, 30), (20, 50)]) == pytest.approx(linear_s[rows + 50] - linear_s[rows])


def test_a_budget_knows_that_a_loaded_drafter_makes_plain_steps_longer():
    """20 % more tokens for 25 % more time: drafting pays where the plain step is 10 % longer."""
    step_s = np.array([0.01, 0.0125])[:, None, None] * np.ones((2, 257, 2))
    for idle, expected in ((0.0, 0), (0.03, 0), (0.06, 1)):
        table = constant_table(0.01, (0.2,), step_s=step_s, idle_share=np.full(257, idle))
        assert Budget.from_table(table).drafts(seen(None, requests=4)) == expected


def test_a_policy_of_tiers_drafts_at_most_its_highest():
    assert ThroughputAware(step_s=np.ones((8, 4)), tiers=(1, 7, 3)).longest == 7


def test_sglangs_rate_is_a_moving_average_over_the_steps_since_it_was_asked():
    """Of one draft the rate is what is accepted: 0.8, then 0.64 of it and 0.36 of 0.2 after two steps."""
    policy = ThroughputAware(step_s=np.ones((2, 2)), tiers=(1,))

    def asked(accepted: float, steps: int) -> float:
        policy.drafts(seen(accepted, drafts=1, steps=steps))
        return float(policy._rate)

    assert asked(0.8, 1) == pytest.approx(0.8)
    assert asked(0.2, 2) == pytest.approx(0.64 * 0.8 + 0.36 * 0.2)
    before = policy._rate
    assert asked(0.5, 1) == pytest.approx(0.8 * before + 0.2 * 0.5)
