"""What a run adds up to over time, and the numbers that load tests are made of, by hand."""

from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
from load_tables import requests

from medusa_sim.load.largest_rate import with_interval
from medusa_sim.load.lengths import _log_normal
from medusa_sim.load.limits import SchedulerLimits
from medusa_sim.load.policies import _emitted, _one_rate
from medusa_sim.load.prompt_table import between, geometric
from medusa_sim.load.recorder import Recorder, Span, _stalls, _window
from medusa_sim.load.run_result import RunResult
from medusa_sim.load.saturation import Saturation
from medusa_sim.load.sources import _ramp


def _span(start_s: float, span_s: float, requests: int, **other: object) -> Span[float]:
    given = {"steps": 10, "drafts": 0, "not_decoding": 1, "kv_tokens": 100.0 * requests,
             "emitted": 10 * requests, "prompts_s": 0.0, "prompt_tokens": 0, "accepted": 0.0,
             "joined": 0, "sent": 1, "finished": 1, "served": 1.0}  # fmt: skip
    return Span(start_s=start_s, span_s=span_s, requests=requests, **{**given, **other})


def _recorded(*spans: Span[float]) -> RunResult:
    recorder = Recorder(requests([0.0], [10], [10]), 3, 8)
    for span in spans:
        recorder.add(span)
    return recorder.result(np.zeros(1), preemptions=0, kv_blocks_most=0)


@pytest.mark.parametrize(
    ("end_s", "bin_s", "last_s"), [(10.0, 0.02, 0.02), (20.01, 0.04, 0.01), (40.0, 0.08, 0.08)]
)
def test_a_timeline_has_means_over_bins_that_double_until_512_hold_the_run(end_s, bin_s, last_s):
    """Two requests in the first half and six in the second; the last bin may be a part of one."""
    half_s = end_s / 2.0
    line = _recorded(_span(0.0, half_s, 2), _span(half_s, half_s, 6)).timeline
    bins = round((end_s - last_s) / bin_s) + 1
    assert line.time_s == pytest.approx((np.arange(bins) + 0.5) * bin_s)
    first = int(half_s / bin_s)
    assert line.requests[:first] == pytest.approx(2.0)
    assert line.requests[first + 1 :] == pytest.approx(6.0)
    assert line.not_decoding == pytest.approx(1.0)
    assert line.kv_tokens[-1] == pytest.approx(600.0)
    assert line.tokens_per_s[[0, -1]] == pytest.approx([20.0 / half_s, 60.0 / half_s])


def test_a_record_adds_up_steps_by_drafts_and_requests_and_their_prompts():
    """4 s of 10 steps with 2 requests and 3 drafts, 1 s of them prompts; 2 s of 5 plain steps of 4."""
    found = _recorded(
        _span(0.0, 4.0, 2, drafts=3, prompts_s=1.0, prompt_tokens=30, accepted=25.0),
        _span(4.0, 2.0, 4, steps=5),
    )
    sums = found.whole
    assert (sums.steps_s[3, 2], sums.prompts_s[3, 2], sums.steps_s[0, 4]) == (3.0, 1.0, 2.0)
    assert sums.steps_s.sum() + sums.prompts_s.sum() == sums.busy_s == 6.0
    assert (sums.steps, sums.emitted, sums.prompt_tokens) == (15, 60, 30)
    assert (sums.speculated, sums.accepted) == (20, 25.0)
    assert found.in_system_s == 4.0 * 3 + 2.0 * 5
    # 20 gaps of 0.4 s in each half
    assert sums.gap_mean_s == pytest.approx(0.4)
    assert sums.gap_quantile_s(0.5) == pytest.approx(0.4, rel=2 / 512)  # classes of a 512th of a doubling


@pytest.mark.parametrize(("first", "last"), [(1.0, 3.0), (3.0, 1.0), (2.0, 2.5)])
def test_arrivals_of_a_ramp_are_the_integral_of_a_rate_that_goes_linearly(first, last):
    unit = np.linspace(0.0, 8.0, 17)
    at_s, length_s = _ramp(unit, first, last), 2 * 8.0 / (first + last)
    assert at_s[-1] == pytest.approx(length_s)
    assert first * at_s + (last - first) / length_s * at_s**2 / 2 == pytest.approx(unit)
    assert _ramp(np.zeros(1), first, last).tolist() == [0.0]


@pytest.mark.parametrize("drafts", [1, 2, 3, 7])
@pytest.mark.parametrize("rate", [0.0, 0.05, 0.5, 0.93, 1.0])
def test_one_rate_at_every_position_accepts_as_many(rate, drafts):
    accepted = sum(rate**k for k in range(1, drafts + 1))
    assert _one_rate(accepted, drafts) == pytest.approx(rate, abs=1e-6)
    assert _emitted(rate, drafts) == pytest.approx(
        [1.0 + sum(rate**k for k in range(1, n + 1)) for n in range(drafts + 1)]
    )


@pytest.mark.parametrize(
    ("given", "nodes"),
    [
        ((1, 100, 2.0), [1, 2, 3, 6, 10, 18, 32, 56, 100]), ((0, 64, 2.0, 8), [0, 8, 13, 23, 38, 64]),
        ((5, 5, 2.0), [5]), ((0, 4, 2.0, 8), [0, 4]), ((1, 4, 4.0), [1, 2, 4]),
    ],
)  # fmt: skip
def test_nodes_grow_by_a_ratio_at_most_between_both_ends(given, nodes):
    """From 1 to 100 seven doublings, in eight steps of 100^(1/8) = 1.78."""
    assert geometric(*given).tolist() == nodes


@pytest.mark.parametrize(
    ("value", "place", "share"),
    [(3.0, 1, 0.5), (0.5, 0, -0.5), (6.0, 1, 2.0), (2.0, 1, 0.0), (1.0, 0, 0.0), (4.0, 1, 1.0)],
)
def test_a_size_lies_a_share_of_the_way_between_two_nodes(value, place, share):
    assert between([1.0, 2.0, 4.0], value) == (place, share)


@pytest.mark.parametrize(
    ("filled", "held"), [(0.0, 0.0), (0.5, 0.5), (1.5, 2.0), (2.0, 3.0), (2.25, 4.0), (3.0, 7.0), (9.0, 7.0)]
)
def test_blocks_of_layers_with_windows_are_held_on_a_line_between_whole_numbers(filled, held):
    """1, 3 and 7 blocks held for 1, 2 and 3 filled; a request of 16 tokens fills two with its next one."""
    limits = SchedulerLimits(kv_blocks=100, positions=4096, held=np.array([0.0, 1.0, 3.0, 7.0]))
    assert limits.held_of(filled) == held
    assert limits.blocks_of(16) == 3
    assert limits.blocks_of(15) == 1
    assert replace(limits, held=None).held_of(filled) == filled


@pytest.mark.parametrize(("rate", "grows"), [(8.0, 0.5), (10.0, 1.0), (11.0, 1.0)])
@pytest.mark.parametrize("half", [None, 0.4])
def test_a_rate_is_as_sure_as_the_step_over_what_it_grows_with_the_rate(rate, grows, half):
    """Of steps within -10 and +20 %; at saturation, 10 a second, as sure as the step itself."""
    metrics = {"queue_share": 0.5, "step_slower": 0.1, "step_faster": 0.2}
    full = Saturation(requests_per_s=10.0, tokens_per_s=1.0, slower=0.1, faster=0.2)
    found = with_interval(rate, metrics, half, 0.95, full)
    chance = 0.65 * (half or 0.0) / rate
    assert found.largest_low_per_s == pytest.approx(rate / np.exp(np.hypot(0.1 / grows, chance)))
    most = min(rate * np.exp(np.hypot(0.2 / grows, chance)), 10.0 * np.exp(0.2))
    assert found.largest_high_per_s == pytest.approx(most)
    assert (found.largest_per_s, found.best_share, found.largest_half_width) == (rate, 0.95, half)
    flat = with_interval(8.0, {**metrics, "queue_share": 0.0}, None, 0.95, full)
    assert flat.largest_low_per_s == pytest.approx(8.0 * np.exp(-0.1 / 0.1))


@pytest.mark.parametrize(("mean", "cv"), [(200.0, 0.5), (1000.0, 1.0)])
def test_drawn_lengths_have_their_mean_and_spread(mean, cv):
    """20,000 of them: standard errors of 0.7 % of the mean at most, 3 % of the spread."""
    found = _log_normal(np.random.default_rng(1), mean, cv, 20_000)
    assert found.mean() == pytest.approx(mean, rel=0.02)
    assert found.std() / found.mean() == pytest.approx(cv, rel=0.06)
    assert _log_normal(np.random.default_rng(1), 1.0, 2.0, 100).min() == 1


@pytest.mark.parametrize(
    ("users", "warm", "count", "marked"),
    [
        (None, 0, 50, [0, 50]), (None, 10, 50, [10, 49]),  # the first after the warm-up, the last that comes
        (4, 0, 8, [0, 8]), (4, 0, 9, [4, 5]), (4, 0, 50, [4, 46]),  # once all were served; no one begins
    ],
)  # fmt: skip
def test_a_run_is_measured_from_a_server_that_is_full_until_it_empties(users, warm, count, marked):
    """A request comes with each span of a second, and finishes in it."""
    number = np.arange(float(count))
    spans = Span(*np.zeros((len(Span._fields), count)))._replace(
        start_s=number, span_s=np.ones(count), sent=number + 1, finished=number + 1
    )
    asked = SimpleNamespace(users=users, warm=warm, count=count)
    part, span_s, window_s = _window(asked, spans, number)  # type: ignore[arg-type]
    assert [part.start, part.stop] == marked
    assert span_s == marked[1] - marked[0]
    assert window_s == tuple(marked)


def test_requests_wait_for_the_passes_of_prompts_before_a_step_but_for_those_that_these_read():
    """Two passes of 1 and 2 s that read 1 and 2 prompts, a step of 5 requests, a pass, and two steps."""
    takes = np.array([0.0, 0.0, 1.0, 0.0, 1.0, 1.0])
    spans = Span(*np.zeros((len(Span._fields), 6)))._replace(
        steps=takes, span_s=np.array([1.0, 2.0, 0.5, 4.0, 0.5, 0.5]), requests=np.full(6, 5.0),
        joined=np.array([1.0, 2.0, 9.0, 7.0, 9.0, 9.0]),
    )  # fmt: skip
    stalled_s, joined = _stalls(spans)
    assert stalled_s.tolist() == [0.0, 0.0, 3.0, 0.0, 4.0, 0.0]
    assert joined.tolist() == [0.0, 0.0, 3.0, 0.0, 5.0, 0.0]  # no more than there are
