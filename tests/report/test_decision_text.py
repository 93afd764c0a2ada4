"""Which of several an answer tells, in both orders, by hand, of answers that were made up."""

from types import SimpleNamespace
from typing import Any

import pandas as pd
import pytest
from numbers_in_text import numbers

from medusa_sim.arrays import Span
from medusa_sim.load.slos import Slos
from medusa_sim.plan.break_even import BreakEven
from medusa_sim.plan.verdict import Stretch
from medusa_sim.report.check.screen import next_text
from medusa_sim.report.compare import screen as compare_warnings
from medusa_sim.report.compare import screen as compared_tables
from medusa_sim.report.compare import sentences as compared
from medusa_sim.report.load.sentences import answer_lines
from medusa_sim.report.recommend import sentences
from medusa_sim.report.recommend import warnings as recommend_warnings
from medusa_sim.report.specs.rows import SpecRow
from medusa_sim.report.specs.tables import shown_value
from medusa_sim.report.words.break_even import break_even_text
from medusa_sim.setups.question import SetupQuestion

ORDERS = pytest.mark.parametrize("order", [1, -1])


UNSURE = BreakEven(known=(Stretch(1, 13, "pays"), Stretch(14, 64, "uncertain")), spans=(Span(1, 64),))


def schedule_row(batch_min: int, batch_max: int, **more: Any) -> Any:
    given = {
        "seq_len": 512, "candidates": 1, "fits_memory": True, "meets_latency": None, "verdict": "loses",
        "uncertain": None, "interval_low": 0.5, "speculative_speedup": 0.9, "speculative_speedup_low": 0.8,
        "speculative_speedup_high": 1.1, "speculative_candidates": 4, "max_batch_without": 0,
        "required_acceptance_factor": None,
    }  # fmt: skip
    at = {"batch_min": batch_min, "batch_max": batch_max, "span": Span(batch_min, batch_max)}
    return SimpleNamespace(**at, **{**given, **more})


def recommended(*rows: Any, **more: Any) -> Any:
    question = SimpleNamespace(
        seq_len=(512, 900), batch_min=1, batch_max=64, max_latency_ms=20.0, max_latency_us=20e3,
        objective="speedup",
    )  # fmt: skip
    given = {"schedule": rows, "question": question, "scenario": None, "cells": None, "shortfall": None,
             "chains": True, "where_it_fits": (), "enable": False,
             "break_even_batches": (UNSURE, UNSURE)}  # fmt: skip
    return SimpleNamespace(**{**given, **more})


@pytest.mark.parametrize(
    ("rows", "apart"),
    [
        ([(13, 20, (14, 20))], False),  # as uncertain as the best count
        ([(13, 20, (13, 20))], True),
        ([(1, 8, (7, 8)), (9, 20, (9, 20))], True),
        ([(1, 8, (7, 8))], True),  # the best count is certain there
    ],
)
def test_batches_of_the_best_count_are_shown_as_such_where_a_row_is_uncertain_at_others(rows, apart):
    made = [schedule_row(first, last, candidates=4, uncertain=unsure) for first, last, unsure in rows]
    told = [text.split(" at length")[0] for text in sentences.by_batch(recommended(*made))]
    assert told[-1] == break_even_text(UNSURE, "batch")  # of a length without rows
    assert (told[0] != told[-1]) == apart


@ORDERS
def test_warnings_tell_the_best_of_what_loses_and_the_worst_of_what_is_uncertain(monkeypatch, order):
    for name in ("grave_doubts", "_model_warnings", "slower_format_text", "more_requests_text"):
        monkeypatch.setattr(recommend_warnings, name, lambda _: [])
    rows = [
        schedule_row(1, 2, speculative_speedup=0.7), schedule_row(3, 4, speculative_speedup=0.8),
        schedule_row(5, 6, verdict="pays"), schedule_row(7, 7, verdict="pays"),
        schedule_row(8, 9, verdict="uncertain", speculative_speedup=1.01),
        schedule_row(10, 12, verdict="uncertain", speculative_speedup=1.02),
        schedule_row(13, 14, candidates=4, uncertain=(13, 13), interval_low=0.97),
        schedule_row(15, 20, candidates=4, uncertain=(17, 20), interval_low=0.93),
        schedule_row(21, 25, fits_memory=False, max_batch_without=20, meets_latency=False),
        schedule_row(26, 30, fits_memory=False, meets_latency=False),
    ]  # fmt: skip
    told = recommend_warnings.warnings(recommended(*rows[::order]))
    expected = [
        ["0.80"], [], ["1.02", "12", "80", "0.80", "1.10"], ["80", "0.93"], ["20"], ["20"],
    ]  # fmt: skip
    assert [numbers(line.partition(": ")[2]) for line in told] == expected


@pytest.mark.parametrize(
    ("drafts", "told"),
    [((1, 4, 4), "At batch 4..64 "), ((1, 1, 4), "At batch 9..64 "), ((4, 1, 4), "At batch 1..3, 9..64 ")],
)
def test_where_drafts_still_shorten_a_token_is_shown_where_they_are_not_advised(monkeypatch, drafts, told):
    monkeypatch.setattr(sentences, "_decision", lambda answer: [])
    places = ((1, 3), (4, 8), (9, 64))
    rows = [schedule_row(*at, candidates=count) for at, count in zip(places, drafts, strict=True)]
    assert sentences.answer_text(recommended(*rows)).startswith(told)
    late = [schedule_row(*at, candidates=4, meets_latency=False) for at in places]
    assert sentences.answer_text(recommended(*late)) == ""


@ORDERS
def test_the_fastest_is_shown_where_no_row_keeps_the_limit(order):
    rows = [schedule_row(1, 4, candidates=4, meets_latency=False), schedule_row(5, 9, meets_latency=False)]
    fastest = SimpleNamespace(batch=1, seq_len=900, candidates=4, tpot_us=25e3)
    (text,) = sentences._decision(recommended(*rows[::order], fastest_stream=fastest))
    assert numbers(text) == ["20", "25.0", "1", "900", "3"]


def test_batches_are_shown_once_where_every_length_has_the_same():
    first, other = (BreakEven(known=(Stretch(1, to, "pays"),), spans=(Span(1, to),)) for to in (64, 32))
    (once,) = sentences.by_batch(recommended(break_even_batches=[first, first]))
    assert "length" not in once
    twice = sentences.by_batch(recommended(break_even_batches=[first, other]))
    assert [line.rpartition(" ")[2] for line in twice] == ["512", "900"]
    assert twice[0].startswith(once)


def test_the_next_step_about_acceptance_depends_on_the_first_position_that_is_off():
    part = SimpleNamespace(name="acceptance", is_slow=True)
    unknown, first, second, third = (
        next_text(SimpleNamespace(position=at, scenario=SimpleNamespace(backend=None)), part)
        for at in (None, 0, 1, 2)
    )
    assert second == third
    assert len({unknown, first, second}) == 3


@ORDERS
@pytest.mark.parametrize(
    ("limits", "told"),
    [
        ({"tokens_per_s_per_user": 500.0}, ["122"]), ({"tpot_ms": 1.0}, ["122"]),
        ({"ttft_ms": 1.0}, ["20.0"]), ({"e2e_ms": 1.0}, ["334"]),
        ({"tpot_ms": 1.0, "ttft_ms": 1.0, "e2e_ms": 1.0}, ["122", "20.0", "334"]),
    ],
)  # fmt: skip
def test_the_best_of_any_is_shown_for_each_limit_where_no_set_up_keeps_them(monkeypatch, order, limits, told):
    monkeypatch.setattr(compared, "workload", lambda question: "")
    speeds, firsts, wholes = [90.0, 121.6, 100.0], [40.0, 20.0, 30.0], [334.4, 400.0, 350.0]
    table = pd.DataFrame({"tokens_per_s_per_user": speeds, "ttft_ms": firsts, "e2e_ms": wholes})[::order]
    answer = SimpleNamespace(table=table, model=SimpleNamespace(name=""), question=SetupQuestion(**limits))
    assert numbers(compared.none_text(answer)) == told


def test_what_all_set_ups_share_stands_once_beside_the_table():
    names = ["8 x a, TP 8, fp8, vllm", "1 x a, fp8, vllm", "2 x a, TP 2, fp8, KV in fp8, vllm"]
    apart = (["8 x a, TP 8", "1 x a", "2 x a, TP 2, KV in fp8"], "fp8, vllm")
    assert compared_tables._apart(names) == apart
    assert compared_tables._apart(names[:1]) == (names[:1], "")


@pytest.mark.parametrize(("scenarios", "told"), [(5, ["2"]), (4, ["1"]), (3, [])])
def test_set_ups_that_are_not_shown_are_counted(monkeypatch, scenarios, told):
    """Three are shown: the chosen one, which is on the frontier too, the plain one and another."""
    monkeypatch.setattr(compare_warnings, "_about_the_chosen", lambda answer: [])
    monkeypatch.setattr(compare_warnings, "price_notes", lambda answer: [])
    monkeypatch.setattr(compare_warnings, "name_of", lambda row: row["at"])
    answer = SimpleNamespace(
        chosen={"at": "a"}, chosen_plain={"at": "b"}, frontier=pd.DataFrame({"at": ["a", "c"]}),
        key=lambda row: row["at"], scenarios=range(scenarios),
        warnings_of={"a": ["far", "old"], "b": ["old"], "c": ["old"]}.__getitem__,
    )  # fmt: skip
    first, second, *others = compare_warnings.warnings(answer)
    assert (first, second) == ("far (a)", "old (all shown)")
    assert [numbers(line) for line in others] == ([told] if told else [])


@pytest.mark.parametrize(
    ("busy", "gpus", "rate", "told"),
    [
        (0.85, 10_000, 2.0, []), (0.851, 10_000, 2.0, [["85"]]),
        (None, 10_001, None, [["10,001", "70,000"]]),
        (0.9, 12_000, 2_500.0, [["90"], ["12,000", "2,500"]]),
    ],
)  # fmt: skip
def test_copies_that_are_nearly_full_and_more_than_any_fleet_are_warned_of(busy, gpus, rate, told):
    answer = SimpleNamespace(
        chosen={"gpus": gpus}, busy=lambda row: busy, question=SimpleNamespace(users=70_000, rate=rate)
    )
    assert [numbers(line) for line in compare_warnings._about_the_chosen(answer)] == told  # type: ignore[arg-type]
    nothing = SimpleNamespace(chosen=None, busy=answer.busy, question=answer.question)
    assert compare_warnings._about_the_chosen(nothing) == []  # type: ignore[arg-type]


@ORDERS
@pytest.mark.parametrize(
    ("rates", "told"), [((0.05, None), ["2", "0.0500", "20.0", "0.0400"]),
                        ((9.0, 8.0), ["2", "9.00", "20.0", "0.0400"])],
)  # fmt: skip
def test_the_policy_that_carries_most_is_shown(order, rates, told):
    """Also where it is a request in 20 s, beside one that carries none."""
    plain, *drafting = (
        SimpleNamespace(policy=name, largest_per_s=rate, best_share=None, saturated_per_s=40.0, loses=(),
                        off_from=None, searched=True)
        for name, rate in zip(("none", "K=2", "K=3"), (0.04, *rates), strict=True)
    )  # fmt: skip
    answer = SimpleNamespace(
        carried=(plain, *drafting[::order]), last=None,
        test=SimpleNamespace(slos=Slos(tpot_s=0.02, share=0.9)),
    )  # fmt: skip
    assert numbers(answer_lines(answer)[0]) == told


def test_a_fact_with_a_prefix_has_four_digits():
    row = SpecRow(key="memory", value=12_345_678_900, unit="bytes", source="", note="")
    assert shown_value(row) == "12.35 GB"
