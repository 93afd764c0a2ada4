"""Sessions: a request waits for the one before it, and finds in the cache what was said before."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from load_tables import constant_table, limits, requests

from medusa_sim.load.arrivals import Lengths, open_loop
from medusa_sim.load.policies import Fixed
from medusa_sim.load.requests import Requests
from medusa_sim.load.scheduler import run

STEP_S = 0.01


def in_sessions(count: int, sessions: int, rate: float, seed: int, pause_s: float) -> Requests:
    random = np.random.default_rng(seed)
    lengths = Lengths(prompt_tokens=30, output_tokens=20)
    return replace(
        open_loop(rate, lengths, count=count, seed=seed, most=150),
        session=random.integers(-1, sessions, count),
        pause_s=random.random(count) * pause_s,
        warm=0,
    )


@settings(max_examples=50)
@given(
    seed=st.integers(0, 1000), count=st.integers(1, 80), sessions=st.integers(1, 30),
    rate=st.floats(0.5, 500.0), pause_s=st.sampled_from([0.0, 0.5]), most=st.integers(1, 8),
    ahead=st.booleans(), drafts=st.integers(0, 2),
)  # fmt: skip
def test_a_request_comes_when_the_one_before_it_has_finished(
    seed, count, sessions, rate, pause_s, most, ahead, drafts
):
    asked = in_sessions(count, sessions, rate, seed, pause_s)
    table = constant_table(STEP_S, rates=(0.7, 0.4), steps_ahead=int(ahead), server_s=0.002)
    found = run(asked, table, limits(max_requests=most, kv_blocks=40), Fixed(drafts), seed)
    assert np.isfinite(found.finish_s).all()
    assert found.emitted == asked.output_tokens.sum()
    before = asked.before
    follows = before >= 0
    expected = asked.arrival_s.copy()
    sent_s = found.finish_s[before] + asked.pause_s
    expected[follows] = np.maximum(expected, sent_s)[follows]
    np.testing.assert_allclose(found.arrival_s, expected)
    assert (found.first_token_s > found.arrival_s).all()


def test_sessions_of_one_request_change_nothing():
    table = constant_table(STEP_S, rates=(0.7,))
    asked = open_loop(30.0, Lengths(prompt_tokens=30, output_tokens=20), count=300)
    alone = replace(asked, session=np.arange(300))
    found, other = (run(each, table, limits(max_requests=8), Fixed(1)) for each in (asked, alone))
    np.testing.assert_array_equal(found.finish_s, other.finish_s)


def test_one_session_is_served_one_after_the_other():
    asked = requests([0.0, 0.0, 0.0], prompt=[4, 4, 4], output=[3, 2, 1])
    asked = replace(asked, session=np.zeros(3, dtype=np.int64), pause_s=np.array([9.0, 1.0, 0.0]))
    found = run(asked, constant_table(STEP_S), limits(max_requests=4), Fixed(0))
    assert found.finish_s.tolist() == pytest.approx([0.03, 1.05, 1.06])


def test_a_session_finds_what_it_said_before_and_its_first_request_nothing():
    asked = requests([0.0, 0.0, 0.0], prompt=[100, 300, 300], output=[20, 2, 2])
    asked = replace(asked, session=np.zeros(3, dtype=np.int64))
    computed = [
        run(asked, constant_table(STEP_S), limits(prefix_hit_rate=0.9, shares_prefix=kind), Fixed(0))
        for kind in (False, True)
    ]
    assert computed[0].prompt_tokens == 100 + (300 - 120) + (300 - 270)
    assert computed[1].prompt_tokens == 10 + 30 + 30  # one text of all requests
