"""Numbers of a search over rates by hand: which are tried, what is carried, where drafts lose."""

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

from medusa_sim.arrays import Halves
from medusa_sim.load import largest_rate, losses
from medusa_sim.load.carried_rates import CarriedRates, find_carried, rates_to_try
from medusa_sim.load.largest_rate import LargestRate
from medusa_sim.load.load_test import load_test
from medusa_sim.load.point import half_width
from medusa_sim.load.saturation import Saturation
from medusa_sim.scenario.scenario import Scenario

SCENARIO = Scenario(
    gpu="h100-sxm", model="llama-3.1-8b", runtime="vllm-0.11", drafter="eagle3", acceptance="0.8,0.6,0.4"
)


def test_rates_are_tried_on_both_sides_of_a_knee_below_saturation():
    def known(largest: float) -> list[CarriedRates]:
        return [CarriedRates(policy="none", saturated_per_s=36.0, saturated_tokens_per_s=1.0,
                        largest_per_s=largest, off_from=None)]  # fmt: skip

    assert rates_to_try(36.0, known(34.0)) == (17.0, 30.0, 34.0)  # 0.9 of it; 0.97 of 36
    assert rates_to_try(36.0, known(36.0)) == (18.0, 25.0, 32.0)  # 0.7 and 0.9 of 36
    assert rates_to_try(36.0) == (9.0, 18.0, 27.0, 32.0)
    assert rates_to_try(0.2) == (0.05, 0.1, 0.15, 0.18)
    assert rates_to_try(0.0) == ()


def test_the_interval_of_a_carried_rate_is_that_of_its_seeds_where_steps_have_none():
    """80 % of 95 %: 1.2816 over 1.96, to two digits."""
    test = load_test(SCENARIO, policies=("none",), requests=220, seeds=2, tpot_ms=9.0, max_num_seqs=48)
    test.table = replace(test.table, halves=Halves(*np.zeros_like(test.table.halves)))
    (found,) = find_carried(test)
    assert found.largest_per_s < 0.97 * found.saturated_per_s
    down = np.log(found.largest_per_s / found.largest_low_per_s)
    assert down == pytest.approx(0.65 * found.largest_half_width / found.largest_per_s, rel=0.02)


def test_every_span_of_rates_in_which_drafts_lose_is_found(monkeypatch):
    """To 2 %: of one crossing, as of a dense model, and of several, as of a mixture with experts to wake."""
    test = load_test(Scenario(model="llama-3.1-8b"), policies=("none",), requests=8, seeds=1)
    plain, drafting = test.servers[0], replace(test.servers[0])

    def spans(loses: Callable[[float], bool]) -> list[float | None]:
        def metrics_at(of: object, server: object, rate: float, advance: object) -> dict[str, float]:
            return {"e2e_mean_s": 1.0 if server is plain else 0.5 + loses(rate)}

        monkeypatch.setattr(losses, "trial_metrics", metrics_at)
        return [end for span in losses.spans_lost(test, drafting, plain, 100.0, None) for end in span]

    assert spans(lambda rate: rate > 40.0) == [pytest.approx(40.0, rel=0.02), None]
    assert spans(lambda rate: 3.0 < rate < 15.0 or rate > 50.0) == [
        pytest.approx(3.0, rel=0.02), pytest.approx(15.0, rel=0.02), pytest.approx(50.0, rel=0.02), None,
    ]  # fmt: skip
    assert spans(lambda rate: rate < 15.0) == [0.0, pytest.approx(15.0, rel=0.02)]
    assert spans(lambda rate: rate > 100.0) == []
    assert spans(lambda rate: True) == [0.0, None]


def test_a_span_between_two_compared_rates_is_found_where_one_of_them_is_nearly_even(monkeypatch):
    """Rates 2 % of 100 and 4.4 %: drafts win by 4 % at the first, lose from 2.5 to 3.5."""
    test = load_test(Scenario(model="llama-3.1-8b"), policies=("none",), requests=8, seeds=1)
    plain, drafting = test.servers[0], replace(test.servers[0])

    def spans(won: float) -> list[float | None]:
        def metrics_at(of: object, server: object, rate: float, advance: object) -> dict[str, float]:
            return {"e2e_mean_s": 1.0 if server is plain else 1.02 if 2.5 < rate < 3.5 else 1.0 - won}

        monkeypatch.setattr(losses, "trial_metrics", metrics_at)
        return [end for span in losses.spans_lost(test, drafting, plain, 100.0, None) for end in span]

    assert spans(0.04) == [pytest.approx(2.5, rel=0.02), pytest.approx(3.5, rel=0.02)]
    assert spans(0.2) == []  # nothing hints at it


def test_seeds_cross_a_wanted_share_each_at_a_rate_of_its_own():
    """At 2, and a seventh of the way from 2 to 4; a share that rises again counts as what it fell to."""
    tried = {4.0: np.array([0.5, 0.6]), 1.0: np.array([1.0, 1.0]), 2.0: np.array([0.9, 0.95])}
    crossings = np.array([2.0, 2.0 + 2.0 / 7.0])
    assert largest_rate.half_of_seeds(tried, 0.9) == pytest.approx(half_width(crossings))
    again = tried | {6.0: np.array([0.95, 0.95])}
    assert largest_rate.half_of_seeds(again, 0.9) == pytest.approx(half_width(crossings))
    assert largest_rate.half_of_seeds({1.0: np.array([1.0])}, 0.9) is None


def searched(
    monkeypatch: pytest.MonkeyPatch, knee: float, below: float = 1.0
) -> tuple[LargestRate, list[float]]:
    """What a search of one seed finds between 0 and 100, and the rates that it tried; 90 % are wanted."""
    test = load_test(Scenario(model="llama-3.1-8b"), policies=("none",), requests=8, seeds=1, tpot_ms=9.0)
    tried: list[float] = []

    def metrics_at(of: object, server: object, rate: float, advance: object, seed: int) -> dict[str, float]:
        tried.append(rate)
        share = below if rate <= knee else 0.0
        return {"goodput_share": share, "queue_share": 1.0, "step_slower": 0.0, "step_faster": 0.0}

    monkeypatch.setattr(largest_rate, "trial_metrics", metrics_at)
    full = Saturation(requests_per_s=100.0, tokens_per_s=1.0, slower=0.0, faster=0.0)
    return largest_rate.largest_rate(test, test.servers[0], full, None), tried


def test_the_largest_rate_is_bracketed_then_closed_in_on_by_halving_an_end_that_stays(monkeypatch):
    """All keep the limits up to 40 and none beyond: an excess of 0.1 below, of -0.9 above.

    After 100 and 50, 12.5 keeps them: half way by the logarithm is 25, which does, then 35.36. From there the
    bracket is narrower than two: a tenth (0.1 / (0.1 + 0.9)) of the way up, then 0.1 / (0.1 + 0.9 / 2), a
    weight that halves while the upper end stays; where the lower one stays, its own does.
    """
    found, tried = searched(monkeypatch, 40.0)
    expected, low, high, weights, moved = [100.0, 50.0, 12.5], 12.5, 50.0, [0.1, 0.9], 0
    while high / low > 1.01:
        part = min(max(weights[0] / sum(weights), 0.1), 0.9) if high / low < 2.0 else 0.5
        middle = low * (high / low) ** part
        expected.append(middle)
        if middle <= 40.0:
            weights = [0.1, weights[1] / 2 if moved > 0 else weights[1]]
            low, moved = middle, 1
        else:
            weights = [weights[0] / 2 if moved < 0 else weights[0], 0.9]
            high, moved = middle, -1
    assert tried == pytest.approx(expected)
    assert tried[3:5] == pytest.approx([25.0, 25.0 * 2**0.5])
    assert found.largest_per_s == pytest.approx(low)
    assert 40.0 / 1.01 < low <= 40.0
    assert found.best_share == 1.0


@pytest.mark.parametrize(
    ("knee", "below", "largest", "share", "trials"),
    [(100.0, 0.95, 100.0, 0.95, [100.0]), (0.1, 0.5, 0.0, 0.0, [100.0, 50.0, 12.5, 100.0 / 256])],
)
def test_a_search_ends_at_saturation_or_where_a_256th_of_it_is_too_much(
    monkeypatch, knee, below, largest, share, trials
):
    found, tried = searched(monkeypatch, knee, below)
    assert (found.largest_per_s, tried) == (largest, trials)
    assert found.best_share == pytest.approx(share)
