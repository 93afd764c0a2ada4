"""Facts of screens about a load, a comparison and a sweep, by hand, of answers that were made up."""

from types import SimpleNamespace
from typing import Any

import numpy as np
import pandas as pd
import pytest
from numbers_in_text import numbers

from medusa_sim.grid.axes import Grid
from medusa_sim.load.arguments import LoadArguments
from medusa_sim.report.compare import python as compare_values
from medusa_sim.report.compare import screen as compared
from medusa_sim.report.load import screen as loaded
from medusa_sim.report.sweep import page as swept
from medusa_sim.setups.setup import SET_UP


def load_test(asked: LoadArguments | None = None, **more: Any) -> Any:
    given = {
        "limits": lambda drafts: SimpleNamespace(max_requests=64, token_budget=2048), "source": None,
        "sample": SimpleNamespace(
            count=500, prompt_tokens=np.array([600.0, 800.0]), output_tokens=np.array([100.0, 80.0])
        ),
        "asked": asked or LoadArguments(),
        "scenario": SimpleNamespace(runtime=SimpleNamespace(engine=None, name="cuda-graph")),
        "spread": 0.0, "drafts_max": 0, "seeds": 1,
    }  # fmt: skip
    return SimpleNamespace(**given | more)


@pytest.mark.parametrize(
    ("more", "told"),
    [
        ({}, []),
        ({"asked": LoadArguments(cancelled=0.125)}, [["12"]]),
        ({"spread": 0.75, "drafts_max": 3}, [["0.750"]]),
        ({"spread": 0.75}, []),
        ({"drafts_max": 3}, []),
    ],
)
def test_what_is_shown_of_a_server(monkeypatch, more, told):
    monkeypatch.setattr(loaded, "search_requests", lambda test: 300)
    first, *others, runs = loaded.server_facts(load_test(**more))
    assert (numbers(first.text), first.detail) == (["64", "2048"], False)
    assert [numbers(fact.text) for fact in others] == told
    assert numbers(runs.text) == ["1", "500", "300"]


@pytest.mark.parametrize("changed", [{}, {"max_num_seqs": 9}, {"max_num_batched_tokens": 9}])
def test_limits_of_an_engine_are_a_detail_where_nobody_changed_them(monkeypatch, changed):
    monkeypatch.setattr(loaded, "search_requests", lambda test: 500)
    test = load_test(
        LoadArguments(prefix_hit_rate=0.256, **changed),
        scenario=SimpleNamespace(runtime=SimpleNamespace(engine="vllm", name="vllm-0.33")),
    )
    first, found, _ = loaded.server_facts(test)
    assert (first.detail, "vllm-0.33" in first.text) == (not changed,) * 2
    assert numbers(found.text) == ["26"]


@pytest.mark.parametrize("drafting", [0.0, 0.25])
def test_where_the_time_of_a_load_goes_is_shown_of_every_policy(monkeypatch, drafting):
    for name in ("sessions_text", "context_text", "acceptance_facts", "measured_facts", "server_facts",
                 "kernel_facts"):  # fmt: skip
        monkeypatch.setattr(loaded, name, lambda *given: [])
    mean = {"share_drafting": drafting, "share_decoding": 0.4, "share_prompts": 0.2, "share_idle": 0.15,
            "requests_decoding": 12.345}  # fmt: skip
    points = [SimpleNamespace(policy="none", mean=mean, arrivals_per_s=np.inf)] * 2
    off = [SimpleNamespace(off_from=None), SimpleNamespace(off_from=9)]
    for carried, is_told in ((off, True), (off[::-1], True), (off[:1], False), ([], False)):
        answer = SimpleNamespace(
            last=points, carried=carried,
            test=SimpleNamespace(servers=[], policies=["none"], scenario=None, drafts_max=0),
        )  # fmt: skip
        goes = list(loaded.facts(answer))
        told = [numbers(fact.text) for fact in goes if fact.label == "Time goes to"]
        assert told == [["40", *(["25"] if drafting else []), "20", "15", "12.3"]] * 2
        assert [fact.label for fact in goes].count("Off from") == is_told


@pytest.mark.parametrize(("ups", "told"), [(0, []), (1, ["1"]), (2, ["2"])])
@pytest.mark.parametrize("refused", [0, 1, 3])
def test_ties_and_refusals_of_a_comparison_are_counted(monkeypatch, ups, told, refused):
    for name in ("without_text", "surer_text", "measured_text"):
        monkeypatch.setattr(compared, name, lambda answer: "")
    monkeypatch.setattr(compared, "name_of", lambda row: row["at"])
    monkeypatch.setattr(compared, "drafting_text", lambda answer, row: "")
    monkeypatch.setattr(compared, "measure_text", lambda answer, row: "")
    items = [
        SimpleNamespace(reason="r" if place < 2 else "s", setup=f"<{place}>") for place in range(refused)
    ]
    answer = SimpleNamespace(runners_up=pd.DataFrame({"at": ["best", "next"][:ups]}), refused=items)
    facts = list(compared.facts(answer))
    tied = [fact.text for fact in facts if fact.label == "Tied"]
    assert [numbers(text) for text in tied] == ([told] if told else [])
    assert all("first best" in text for text in tied)
    of_refused = [fact.text for fact in facts if fact.label == "Refused"]
    lines = {0: [], 1: ["<0>: r"], 3: ["<0> and 1 more: r", "<2>: s"]}[refused]
    assert of_refused[1:] == lines
    assert [numbers(text) for text in of_refused[:1]] == ([[str(refused)]] if refused else [])


def test_rows_of_a_comparison_know_their_warnings_by_number():
    rows = pd.DataFrame([dict.fromkeys(SET_UP, place) for place in (1, 0, 1)])
    by = {(0,) * len(SET_UP): ["old"], (1,) * len(SET_UP): ["far", "old"]}
    answer = SimpleNamespace(warnings=["far", "old"], warnings_by_set_up=by, table=rows)
    assert compare_values.with_warnings(answer).warnings.tolist() == ["1 2", "2", "1 2"]


@pytest.mark.parametrize(("batches", "cut"), [(swept._MOST_ROWS, False), (swept._MOST_ROWS + 1, True)])
def test_a_table_of_rows_says_where_it_ends(monkeypatch, batches, cut):
    asked = []
    rows = SimpleNamespace(lists=lambda names, most: asked.append(most) or {"batch": [1, 2]})
    monkeypatch.setattr(swept, "sweep", lambda items, grid: iter([rows]))
    monkeypatch.setattr(swept.TextTable, "rounded", lambda rows, title: title)
    title = swept.rows_table(None, Grid.of(range(1, batches + 1), [512], [1]))
    assert numbers(title) == ([str(swept._MOST_ROWS), str(batches)] if cut else [])
    assert asked == [swept._MOST_ROWS]
