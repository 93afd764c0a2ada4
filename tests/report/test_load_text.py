"""Numbers that answers about a load tell, by hand, of runs that were made up."""

from __future__ import annotations

import math
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from numbers_in_text import numbers

from medusa_sim.load.carried_rates import SURELY_STEADY
from medusa_sim.load.slos import Slos
from medusa_sim.report.load import page as load_page
from medusa_sim.report.load import screen as loaded
from medusa_sim.report.load import sentences as load_sentences
from medusa_sim.report.load import warnings as load_warnings
from medusa_sim.report.load.sentences import at_rate, ms_text, policy_text
from medusa_sim.report.load.warnings import _crowded_out, _cut, _unsteady


def test_policies_rates_and_times_have_words():
    assert [policy_text(name) for name in ("K=1", "K=3")] == ["1 draft a step", "3 drafts a step"]
    assert at_rate(SimpleNamespace(arrivals_per_s=3.25)) == " at 3.25 requests/s"
    assert at_rate(SimpleNamespace(arrivals_per_s=math.inf)) == ""
    assert ms_text(0.01234) == "12.3"


def run(
    policy: str = "none", rate: float = 2.0, *, steady: bool = False, half: float = 0.1, **mean: float
) -> Any:
    told = {"queue_growth_per_s": 0.5, "goodput_share_first": 0.9, "goodput_share_last": 0.4,
            "requests_decoding": 10.0, "e2e_mean_s": 0.5, "tpot_mean_s": 0.011, **mean}  # fmt: skip
    return SimpleNamespace(
        policy=policy, arrivals_per_s=rate, is_steady=steady, mean=told, half_width=lambda name: half,
        ratio_to=lambda other, name: (told[name] / other.mean[name], 0.5, 0.75),
    )  # fmt: skip


def test_a_queue_that_grows_is_shown_with_its_rise_its_shares_and_where_it_would_end():
    sure = f"{SURELY_STEADY:g}"
    text = _unsteady(run(), 5.0, has_slos=True)
    assert numbers(text) == [
        "2.00",
        "0.50",
        "95",
        "0.10",
        "90",
        "40",
        "5.00",
        sure,
        f"{5 * SURELY_STEADY:.2f}",
    ]
    assert numbers(_unsteady(run(half=math.nan), None, has_slos=False)) == ["2.00", "0.50"]
    assert "90 %" not in _unsteady(run(goodput_share_last=0.9), 5.0, has_slos=True)
    steady = numbers(_unsteady(run(steady=True), 5.0, has_slos=True))
    assert steady == ["2.00", "5.00", sure, f"{5 * SURELY_STEADY:.2f}"]


@pytest.mark.parametrize(
    ("drafts", "decoding", "told"),
    [
        (3, 128.0, []),
        (3, 129.0, ["129", "3", "50", "1024"]),
        (0, 900.0, []),
        (1, 400.0, ["400", "1", "78", "1024"]),
    ],
)
def test_prompts_wait_where_drafts_take_more_than_half_of_a_steps_tokens(drafts, decoding, told):
    """128 requests of 1 + 3 tokens take 512 of 1,024; 129 take 516; those of other policies do not count."""
    server = SimpleNamespace(
        name="plan", table=SimpleNamespace(drafts_max=drafts), limits=SimpleNamespace(token_budget=1024)
    )
    points = [run("plan", requests_decoding=decoding), run("none", requests_decoding=5000.0)]
    answer = SimpleNamespace(test=SimpleNamespace(servers=[server]), points=points)
    assert [numbers(line) for line in _crowded_out(answer)] == ([told] if told else [])


def carried(policy: str, largest: float | None, **more: Any) -> Any:
    return SimpleNamespace(**{
        "policy": policy, "largest_per_s": largest, "best_share": None, "saturated_per_s": 40.0,
        "loses": (), "off_from": None, "searched": True, **more,
    })  # fmt: skip


def answered(*every: Any, points: list[Any] | None = None) -> Any:
    last = points or [run()]
    return SimpleNamespace(
        carried=every, last=last, points=last, at_rate_of=lambda point: last,
        test=SimpleNamespace(slos=Slos(tpot_s=0.02, share=0.9)),
    )  # fmt: skip


@pytest.mark.parametrize(
    ("answer", "told"),
    [
        # drafts carry 9.8, 2 % fewer than 10, or 9.95, no more
        (answered(carried("none", 10.0), carried("K=3", 9.8)), (["3", "20.0", "9.80", "10.0"], "fewer")),
        (answered(carried("none", 10.0), carried("K=3", 9.95)), (["3", "20.0", "9.95", "10.0"], "no more")),
        (answered(carried("none", 0.05), carried("K=3", 0.0505)),
        (["3", "20.0", "0.0505", "0.0500"], "no more")),
        # none keeps the limits; the nearest is told, with 0 % where no share is known
        (answered(carried("none", 0.0, best_share=0.06), carried("K=2", 0.0)),
        (["20.0", "90", "6.0"], "plain")),
        (answered(carried("none", 0.0, best_share=None), carried("K=2", 0.0, best_share=0.05)),
         (["20.0", "90", "5.0", "2"], "No policy")),
        (answered(carried("none", 0.0)), (["20.0", "90", "0.0"], "No policy")),
        (answered(carried("none", 12.0)), (["12.0", "20.0"], "plain decoding")),
        (answered(carried("none", 10.0), carried("K=3", None)), (["3", "20.0", "0", "10.0"], "fewer")),
        (answered(carried("none", None),
        carried("K=3", None, saturated_per_s=50.0, loses=((30.0, None),), off_from=9)),
         (["50.0", "3", "40.0"], "saturates")),
    ],
)  # fmt: skip
def test_the_first_line_of_a_load_tells_rates_limits_and_shares(answer, told):
    first = load_sentences.answer_lines(answer)[0]
    assert (numbers(first), told[1] in first) == (told[0], True)


def test_where_speculation_loses_is_shown_by_rate_and_requests_in_flight():
    losing = load_sentences._losing
    assert numbers(losing(carried("K=3", 1.0))) == ["40.0"]
    assert numbers(losing(carried("K=3", 1.0, off_from=9))) == ["40.0", "9"]
    assert numbers(losing(carried("K=3", 1.0, loses=((30.0, None),), off_from=9))) == ["30.0", "9"]
    assert losing(carried("K=3", 1.0, loses=((0.0, None),))).endswith("at every rate")
    assert losing(carried("K=3", 1.0, loses=((0.05, None),))).endswith("above 0.0500 requests/s")
    twice = losing(carried("K=3", 1.0, loses=((0.0, 2.0), (4.5, 6.0))))
    assert twice.endswith("below 2.00 and from 4.50 to 6.00 requests/s")


def test_requests_at_one_rate_are_compared_by_their_mean_time():
    """0.3 of 0.5 s is 0.6 times as long; the better of two policies is told."""
    points = [run("none"), run("K=2", e2e_mean_s=0.4), run("K=3", e2e_mean_s=0.3)]
    assert numbers(load_sentences._compared(points)) == ["0.60", "3", "2.00", "95", "0.50", "0.75"]
    assert numbers(load_sentences._compared(points[:1])) == ["500", "11.0"]


def test_a_schedule_is_shown_by_its_ends():
    assert loaded._entries([(1, 5), (9, 1), (17, 0)]) == "1-8 requests: 5 drafts; 9-16: 1; from 17: 0"
    assert loaded._entries([(1, 1)]) == "from 1 request: 1 draft"


@pytest.mark.parametrize(
    ("seeds", "searched", "told"), [(1, 500, ["1", "500"]), (3, 300, ["3", "500", "300"])]
)
def test_runs_are_counted(monkeypatch, seeds, searched, told):
    monkeypatch.setattr(loaded, "search_requests", lambda test: searched)
    test = SimpleNamespace(seeds=seeds, sample=SimpleNamespace(count=500))
    text = loaded.runs_text(test)
    assert (numbers(text), "runs of" in text) == (told, seeds > 1)


@pytest.mark.parametrize(("cut", "told"), [(0, []), (5, []), (6, ["6", "100", "9000", "512", "256"])])
def test_requests_that_were_cut_are_shown_where_they_are_more_than_one_in_twenty(cut, told):
    drawn = SimpleNamespace(
        cut=cut, count=100, prompt_tokens=np.array([256, 768]), output_tokens=np.array([128, 384])
    )
    test = SimpleNamespace(
        sample=drawn, drafts_max=3,
        limits=lambda drafts: SimpleNamespace(longest_request=lambda drafts: 9000 if drafts == 3 else 1),
    )  # fmt: skip
    assert [each for line in _cut(test) for each in numbers(line)] == told  # type: ignore[arg-type]


@pytest.mark.parametrize(("decoding", "most"), [((10.4, 3.0), 10), ((0.2,), 1), ((), 1)])
def test_a_run_is_doubted_at_the_most_requests_that_decoded_and_lost_caches_are_counted(
    monkeypatch, decoding, most
):
    asked: list[Any] = []
    monkeypatch.setattr(load_warnings, "scenario_doubts", lambda scenario, count: [f"drafts {count}"])
    monkeypatch.setattr(load_warnings, "answer_doubts", lambda *given: asked.append(given) or [])
    monkeypatch.setattr(load_warnings, "first_token_doubts", lambda scenario: ["first tokens"])
    monkeypatch.setattr(load_warnings, "_cut", lambda test: [])
    points = [
        run(rate=2.0, steady=True, requests_decoding=each, preemptions=place * 7.0)
        for place, each in enumerate(decoding)
    ]
    for place, point in enumerate(points):
        point.dropped = place * 4

    def warned(**limits: float) -> list[str]:
        answer = SimpleNamespace(
            points=points, is_steady=lambda point: True, full_per_s={},
            test=SimpleNamespace(
                scenario="it", drafts_max=3, mean_length=511.6, servers=[], slos=Slos(share=0.9, **limits)
            ),
        )  # fmt: skip
        return load_warnings.warnings(answer)  # type: ignore[arg-type]

    lines = warned(tpot_s=0.02)
    assert asked == [("it", 512, (1, most))]
    assert lines[0] == "drafts 4"  # three drafts are four candidates
    assert [numbers(line) for line in lines[1:]] == ([["2.00", "7"], ["4"]] if len(points) > 1 else [])
    assert "first tokens" not in lines
    assert "first tokens" in warned(tpot_s=0.02, ttft_s=1.0)
    assert "first tokens" in warned(tpot_s=0.02, e2e_s=1.0)


@pytest.mark.parametrize(
    ("rates", "limits", "names"),
    [
        ((2.0, 4.0), True, ["latency", "goodput", "timeline"]), ((2.0, 4.0), False, ["latency", "timeline"]),
        ((4.0,), True, ["timeline"]), ((2.0, math.inf), True, ["timeline"]),
    ],
)  # fmt: skip
def test_a_page_of_a_load_draws_rates_where_there_are_several_and_time_at_the_last(
    monkeypatch, rates, limits, names
):
    titled: list[str] = []
    monkeypatch.setattr(load_page, "rate_chart", lambda *given: None)
    monkeypatch.setattr(load_page, "time_chart", lambda points, field, title="": titled.append(title))
    points = [run(rate=rate) for rate in rates]
    answer = SimpleNamespace(
        points=points, last=points[-1:], test=SimpleNamespace(slos=SimpleNamespace(given=limits))
    )
    pictures = load_page._plots(answer, "made")  # type: ignore[arg-type]
    assert [picture.name for picture in pictures] == names
    whole, *others = titled  # above the first of the charts in time alone
    assert whole.startswith("made")
    assert numbers(whole) == ([f"{rates[-1]:.2f}"] if math.isfinite(rates[-1]) else [])
    assert set(others) == {""}
