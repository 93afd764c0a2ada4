"""Which of several counts, batches and lengths a plan takes, by hand, of cells that were made up."""

from types import SimpleNamespace

import numpy as np
import pytest

from medusa_sim.arrays import Band
from medusa_sim.errors import CoverageError
from medusa_sim.grid.cell import best_cell
from medusa_sim.grid.cells import Cells
from medusa_sim.plan import break_even, capacity, schedule
from medusa_sim.plan.count_curves import CLIFF, cliffs
from medusa_sim.plan.measured_run import MeasuredRun, with_known_acceptance
from medusa_sim.plan.verdict import GAIN, LOSES, NO_GAIN, PAYS, odds_of
from medusa_sim.scenario.defaults import MAX_DRAFTS
from medusa_sim.scenario.scenario import Scenario

ORDERS = pytest.mark.parametrize("order", [1, -1])


@ORDERS
@pytest.mark.parametrize(
    ("gains", "fits", "odds"),
    [
        ((1.3, 1.2), (True, True), PAYS),  # 1.3 from 1.04
        ((1.3, 1.2), (False, True), GAIN),  # 1.2 from 0.96
        ((1.05, 0.7), (True, True), GAIN),
        ((0.99, 0.7), (True, True), NO_GAIN),
        ((1.0, 0.7), (True, True), NO_GAIN),
        ((0.8, 0.7), (True, True), LOSES),  # 0.8 to 1.0
        ((1.3, 0.7), (False, True), LOSES),
        ((1.3, 1.2), (False, False), LOSES),
    ],
)
def test_the_odds_of_a_cell_are_those_of_its_best_count_that_fits(order, gains, fits, odds):
    """Beside plain decoding, with a band from 0.8 to 1.25 times the speedup."""
    speedup = np.array([1.0, *gains[::order]]).reshape(1, 1, 3)
    by_count = SimpleNamespace(
        shape=speedup.shape, speedup=speedup, fits=np.array([True, *fits[::order]]).reshape(1, 1, 3),
        speedup_band=Band(0.8 * speedup, 1.25 * speedup), spread=np.asarray,
    )  # fmt: skip
    assert odds_of(SimpleNamespace(by_count=by_count)).tolist() == [[odds]]


@pytest.mark.parametrize("place", range(9))
@pytest.mark.parametrize(("times", "found"), [(2.02, True), (1.98, False)])
def test_a_cliff_is_twice_as_steep_as_the_two_steps_on_either_side(place, times, found):
    """At the ends there are two or three of them."""
    growth = np.full(9, 1.1 * CLIFF)
    growth[place] *= times
    assert cliffs(np.cumprod([1.0, *(1.0 + growth)])).tolist() == [place + 1] * found


@pytest.mark.parametrize(
    ("tokens_per_step", "drafts", "taken"), [(1.05, 3, True), (1.0, 3, False), (1.05, 2, False)]
)
def test_what_a_run_measured_stands_for_what_is_guessed_from_its_third_draft(tokens_per_step, drafts, taken):
    scenario = Scenario(
        gpu="h100-sxm", model="llama-3.1-8b", drafter="eagle3", acceptance="0.7,0.5", latency="roofline",
        runtime="vllm", max_drafts=4,
    )  # fmt: skip
    assert scenario.guessed_from in (None, 3)
    run = MeasuredRun(batch=1, seq_len=700, drafts=drafts, time_us=1.0, tokens_per_step=tokens_per_step)
    found, same = with_known_acceptance(scenario, run)
    assert bool(same.shorter_profile) is taken
    assert (found is scenario) is not taken


@pytest.mark.parametrize(
    ("drafter", "drafts", "tokens_per_step", "is_taken"),
    [("medusa", 7, 1.05, True), ("medusa", 7, 1.0, False), ("ngram", 7, 1.5, False),
     ("medusa", MAX_DRAFTS + 1, 1.5, False)],
)  # fmt: skip
def test_what_a_run_measured_stands_where_nothing_describes_it(drafter, drafts, tokens_per_step, is_taken):
    scenario = Scenario(
        gpu="h100-sxm", model="llama-3.1-8b", drafter=drafter, acceptance="0.7,0.5", latency="roofline",
        max_drafts=4,
    )  # fmt: skip
    run = MeasuredRun(batch=1, seq_len=700, drafts=drafts, time_us=1.0, tokens_per_step=tokens_per_step)
    if is_taken:
        assert with_known_acceptance(scenario, run)[1].shorter_profile
    else:
        with pytest.raises(CoverageError):
            with_known_acceptance(scenario, run)


def test_contexts_are_tried_four_to_an_octave(monkeypatch):
    given = {}
    monkeypatch.setattr(break_even, "longest_context", lambda *asked: 4 * break_even.SHORTEST_CONTEXT)
    monkeypatch.setattr(break_even, "at_few_counts", lambda options: options)
    monkeypatch.setattr(break_even, "_priced_odds", lambda scenario, batch, lengths, *of: [lengths])
    monkeypatch.setattr(break_even, "find_break_even", lambda known, at: given.update(known=known))
    break_even.break_even_context(SimpleNamespace(traffic=None), (), 1, 10**6)
    expected = break_even.SHORTEST_CONTEXT * 2.0 ** (np.arange(9) / 4)
    assert given["known"].values.tolist() == np.rint(expected).tolist()


@ORDERS
def test_where_drafts_have_no_room_the_largest_batch_of_those_that_gain_is_planned(monkeypatch, order):
    """Three counts of drafts at four lengths: nine requests at the first, of which the second count is best
    of those that fit; one at the second, where none gains; none at the third; at the last drafts have room.
    """
    room = np.array([[50, 4, 9, 20], [50, 1, 1, 1], [50, 0, 0, 0], [50, 40, 40, 40]])
    cells = SimpleNamespace(
        surface=SimpleNamespace(
            seq_len=np.array([700, 90, 5000, 20]), max_batch=np.c_[room[:, :1], room[:, 1:][:, ::order]]
        ),
        contenders=SimpleNamespace(speedup=np.full((2, 4, 4), 1.05)),
        fits=np.array([[[True] + [s == 3] * 3 for s in range(4)]] * 2),
        speedup_at=lambda b, s: np.array([1.0, *[1.05, 1.02, 0.9][::order]]),
        configurations=SimpleNamespace(options=()),
    )  # fmt: skip
    asked = {}

    def price(scenario, batches, lengths, options):
        ((batch,), (length,)) = batches, lengths.tolist()
        asked[length] = batch
        fits, speedup = {9: ([1, 1, 0], [1.05, 1.08, 2.0]), 1: ([1, 1, 1], [0.9, 0.8, 0.7])}[batch]
        return SimpleNamespace(
            fits=np.array([[[True, *fits[::order]]]], dtype=bool),
            speedup_at=lambda b, s: np.array([1.0, *speedup[::order]]),
        )

    monkeypatch.setattr(schedule, "price", price)
    monkeypatch.setattr(schedule, "schedule_rows", lambda every, s, ranges, question: [(s, *ranges)])
    ((s, chosen),) = schedule.where_it_fits(None, cells, None)
    assert asked == {700: 9, 90: 1}
    assert (s, chosen.first, chosen.last, chosen.configuration) == (0, 0, 0, 2)


@ORDERS
@pytest.mark.parametrize(
    ("limit_us", "speculate", "rows", "best"),
    [
        (None, True, True, (2, 90.0)),  # 95 and 99 do not fit
        (30.0, True, True, (1, 80.0)),  # 90 takes 31 us a token, 80 takes the 30 that are allowed
        (None, True, [True, False, False], (0, 70.0)),
        (None, False, True, (1, 50.0)),
        (30.0, False, True, (0, 40.0)),
        (5.0, True, True, None),
    ],
)
def test_the_best_point_has_the_largest_rate_of_those_that_fit_in_time(
    order, limit_us, speculate, rows, best
):
    """Plain decoding and two counts at three batches; at another length all is half as fast."""
    rate = np.array([[40, 70, 60], [50, 80, 95], [99, 75, 90]], float)
    fits = np.array([[1, 1, 1], [1, 1, 0], [0, 1, 1]], bool)
    tpot = np.array([[30, 20, 20], [31, 30, 20], [20, 31, 31]], float)
    counts = [0, *(1, 2)[::order]]
    lengths = [1, 0.5][::order]
    by_count = SimpleNamespace(
        fits=np.stack([fits[:, counts]] * 2, axis=1),
        server=SimpleNamespace(tpot_us=np.stack([tpot[:, counts]] * 2, axis=1)),
        tokens_per_s=np.stack([rate[:, counts] * share for share in lengths], axis=1),
        spread=lambda values: np.broadcast_to(values, (3, 2, 3)),
    )  # fmt: skip
    asked = np.broadcast_to(rows, 3)[:, None, None] & ((np.arange(3) > 0) == speculate)
    allowed = asked & Cells.fits_in_time(by_count, limit_us)
    found = best_cell(by_count, allowed, by_count.tokens_per_s, lengths.index(1))
    assert (found and (found.b, by_count.tokens_per_s[found.b, found.s, found.k])) == best
    found = best_cell(by_count, allowed, by_count.tokens_per_s)  # at the faster of both lengths
    assert (found and (found.b, by_count.tokens_per_s[found.b, found.s, found.k])) == best


def test_batches_near_a_point_end_at_one_and_at_what_fits():
    near = capacity._NEAR
    assert capacity._batches_near(None, 9).size == 0
    around = capacity._batches_near(SimpleNamespace(batch=100), 500)
    assert (around[0], around[-1], around.size) == (100 - near, 100 + near, 2 * near + 1)
    assert capacity._batches_near(SimpleNamespace(batch=1), 500).tolist() == list(range(1, near + 2))
    assert capacity._batches_near(SimpleNamespace(batch=100), 100)[-1] == 100
    points = [SimpleNamespace(tokens_per_s=rate) for rate in (3.0, 5.0, 4.0)]
    assert (
        capacity._most_tokens_per_s(None, *points)
        is capacity._most_tokens_per_s(*points[::-1], None)
        is points[1]
    )
    assert capacity._most_tokens_per_s(None) is None
