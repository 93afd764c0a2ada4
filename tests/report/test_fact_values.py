"""Numbers of facts, hidden lines and tables of choices, by hand, of answers that were made up."""

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from numbers_in_text import numbers

from medusa_sim.plan.break_even import BreakEven
from medusa_sim.plan.shortfall import Change, Shortfall
from medusa_sim.plan.verdict import Stretch
from medusa_sim.report.load.screen import context_text
from medusa_sim.report.recommend import facts as recommended
from medusa_sim.report.screen import Fact, Screen, screen_text
from medusa_sim.report.sweep.sentences import engine_text
from medusa_sim.report.words import standing
from medusa_sim.report.words.memory import missing_text, would_fit
from medusa_sim.report.words.numbers import spans_text
from medusa_sim.step.memory import MemoryParts


def _row(batch_max: int, **more: Any) -> Any:
    given = {
        "batch_max": batch_max, "seq_len": 512, "speedup": 1.5, "chain": False, "chain_speedup": 1.2,
        "chain_candidates": 4, "speedup_heads_on_accepted_row": 1.52, "required_acceptance_factor": 0.6,
        "required_tokens_per_step": 1.75, "speedup_acceptance_minus_10_percent": 1.3,
        "speedup_acceptance_plus_10_percent": 1.7, "held_by": "memory", "option": object(),
    }  # fmt: skip
    made: Any = type("Row", (), {**given, **more})()
    return made


def _facts(*rows: Any, lengths: tuple[int, ...] = (512,), counts: int = 0) -> dict[str, list[list[str]]]:
    answer = SimpleNamespace(
        question=SimpleNamespace(seq_len=lengths), by_drafts=range(counts), chains=False,
        scenario=SimpleNamespace(runtime=SimpleNamespace(engine=None), traffic=None, guessed_from=None),
    )  # fmt: skip
    told: dict[str, list[list[str]]] = {}
    for fact in recommended.drafting_facts(answer, rows):
        told.setdefault(fact.label, []).append(numbers(fact.text))
    return told


def test_what_speculation_gains_is_shown_of_the_first_row_and_what_if_it_differs_of_the_last():
    """A tree of 1.5 is 25 % faster than a chain of 1.2; heads on one row gain 1 % at least."""
    told = _facts(_row(8), _row(64, speedup_acceptance_minus_10_percent=1.1))
    assert told == {
        "Why not more": [["8", "64"]],
        "Heads": [["1.52", "1.50", "8"]],
        "Tree": [["25", "4", "1.20", "8"]],
        "Acceptance ±10 %": [["10", "1.10", "64", "10", "1.70"], ["1.75", "0.60"]],
    }
    assert _facts(_row(8), lengths=(512, 1024))["Why not more"] == [["8", "512"]]
    assert "Heads" not in _facts(_row(8, speedup_heads_on_accepted_row=1.514))
    assert "Tree" not in _facts(_row(8, chain=True))
    assert not _facts()


def test_what_a_guess_adds_to_the_best_that_was_measured_is_shown():
    """Drafts 1 to 3 were measured: 2.0 with 2 is their best, and the row's 4 are said to give 5 % more."""
    gains = {1: 1.6, 2: 2.0, 3: 1.9, 4: 2.1}
    row = SimpleNamespace(drafts=4, candidates=5, batch_min=1, seq_len=512, speedup_at_batch_min=2.1)
    answer = SimpleNamespace(
        by_drafts=[SimpleNamespace(drafts=k, candidates=k + 1, speedup=gain) for k, gain in gains.items()],
        question=SimpleNamespace(seq_len=(512,)), chains=True, schedule=[row],
        scenario=SimpleNamespace(guessed_from=4),
    )  # fmt: skip
    text = recommended._guess(answer, row)
    assert numbers(text) == ["2", "2.00", "1", "4", "5.0"]
    answer.scenario.guessed_from = 5
    assert not recommended._guess(answer, row)


@pytest.mark.parametrize("counts", [0, 1, 2])
def test_counts_are_listed_where_there_are_others(monkeypatch, counts):
    monkeypatch.setattr(recommended, "_drafts", lambda answer: "1.1 and 1.2")
    assert ("Other counts" in _facts(_row(8), counts=counts)) == (counts > 1)


@pytest.mark.parametrize(
    ("fits", "lengths", "told"),
    [
        ([[True], [True], [True]], [512], ["1.10x", "batch 1,", "1.30x", "batch 64"]),
        ([[False], [True], [True]], [512], ["1.30x", "batch 64"]),
        (
            [[True] * 2] * 3,
            [512, 1024],
            ["1.10x", "batch 1 of length 512", "1.35x", "batch 64 of length 1,024"],
        ),
    ],
)
def test_an_engines_chain_is_shown_at_the_first_and_the_last_batch(fits, lengths, told):
    gains = np.array([[1.1, 1.15], [1.2, 1.25], [1.3, 1.35]])[:, : len(lengths), None]
    cells = SimpleNamespace(
        surface=SimpleNamespace(seq_len=np.array(lengths), batch=np.array([1, 8, 64])), speedup=gains,
        fits=np.array(fits)[..., None], shape=(3, len(lengths)),
        configurations=SimpleNamespace(candidates=np.array([4])), configuration_at=lambda b, s, k: 0,
        scenario=SimpleNamespace(runtime=SimpleNamespace(name="sglang-0.5")),
    )  # fmt: skip
    text = engine_text(cells)
    assert text.count("3 drafts") == sum(part.startswith("1.") for part in told)
    assert all(part in text for part in told)
    assert ("length" in text) == (len(lengths) > 1)
    cells.fits[:] = False
    assert not engine_text(cells)


def test_what_is_missing_and_what_would_do_is_shown_in_gb():
    parts = MemoryParts(70e9, 0.0, 20e9, 1.5e9)
    change = Change(option="--tp 2", needed_bytes=46e9, usable_bytes=75.9e9)
    lacking = Shortfall(batch=64, seq_len=4096, parts=parts, usable_bytes=75.9e9, changes=(change,))
    assert numbers(missing_text(lacking)) == ["64", "4,096", "91.5", "75.9"]
    assert would_fit(lacking) == ["--tp 2 (46.0 of 75.9 GB)"]


@pytest.mark.parametrize(
    ("warnings", "details", "told"),
    [(2, 0, []), (3, 0, ["1"]), (2, 1, ["1"]), (5, 2, ["3", "2"])],
)
def test_two_warnings_are_shown_and_the_rest_is_counted(warnings, details, told):
    lines = tuple(f"word{'x' * index}" for index in range(warnings))
    facts = tuple(Fact("Note", "said", detail=index < details) for index in range(details + 1))
    text = screen_text(Screen(asked="", facts=facts, warnings=lines), 80, None)
    assert text.count("warning: ") == min(warnings, 2)
    hidden = text.partition("(")[2].partition(" with")[0]
    assert numbers(hidden) == told
    assert ("warnings" in hidden, "facts" in hidden) == (warnings > 3, details > 1)


@pytest.mark.parametrize(("requests", "told"), [(1, "1 request "), (2, "2 requests ")])
def test_requests_of_a_context_are_counted(requests, told):
    even = BreakEven(known=(Stretch(1, 512, "pays"),))
    (line,) = context_text(SimpleNamespace(context=(requests, even)))
    assert told in line
    assert not context_text(SimpleNamespace(context=None))


def test_stretches_with_a_batch_between_them_stay_apart():
    assert spans_text([(1, 2), (4, 5), (6, 6)]) == "1..2, 4..6"
    assert spans_text([(1, 2), (3, 5)]) == "1..5"
    assert spans_text([(1, 64), (1, 40)]) == "1..64"  # of two lengths
    assert spans_text([(10, 20), (1, 5)]) == "1..5, 10..20"


@pytest.mark.parametrize(
    ("scope", "engine", "told"), [("model", "vllm", 1), ("block", "vllm", 0), ("model", None, 0)]
)
def test_how_sure_an_answer_is_is_shown_of_whole_models_in_engines(monkeypatch, scope, engine, told):
    found = SimpleNamespace(half_width=0.123, expected=None, kind="measured")
    monkeypatch.setattr(standing, "standing", lambda scenario: found)
    scenario = SimpleNamespace(scope=scope, runtime=SimpleNamespace(engine=engine))
    assert [numbers(fact.text) for fact in standing.standing_fact(scenario)] == [["80", "12.3"]] * told
