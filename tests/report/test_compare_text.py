"""Numbers that comparisons of set-ups tell, by hand, of rows that were made up."""

from __future__ import annotations

import math
from types import SimpleNamespace
from typing import Any

import pandas as pd
import pytest
from numbers_in_text import numbers

from medusa_sim.grid.quantity import BY_NAME
from medusa_sim.report.compare import screen as compare_tables
from medusa_sim.report.compare import screen as tables
from medusa_sim.report.compare import sentences as compared
from medusa_sim.report.words.numbers import NOTHING


def row(**more: Any) -> dict[str, Any]:
    return {
        "gpus": 2, "gpu": "l4", "tp": 1, "ep": 1, "dp_attention": False, "precision": "bf16",
        "kv_precision": "bf16",
        "engine": "vllm", "drafter": "eagle3", "batch": 8, "drafts": 2, "replicas": 1, "sure": 0.85,
        "tokens_per_s_per_user": 101.6, "usd_per_million_tokens": 0.25, **more,
    }  # fmt: skip


def comparison(chosen: Any, plain: Any, *, limit_us: float = math.inf, table: Any = ()) -> Any:
    question = SimpleNamespace(
        slowest_tpot_us=limit_us, prompt_tokens=512, output_tokens=256, rate=None, users=None
    )
    return SimpleNamespace(
        chosen=chosen, chosen_plain=plain, question=question, measure="cost", column="usd_per_million_tokens",
        table=pd.DataFrame([*table, *([] if chosen is None else [chosen])]),
    )  # fmt: skip


@pytest.mark.parametrize(
    ("drafts", "told"),
    [
        ([1, 1], "eagle3 with 1 draft at 8 requests"),
        ([3, 2], "eagle3 with 2 drafts at 8 requests (3 where few run)"),
    ],
)
def test_drafts_of_a_set_up_are_those_of_its_batch_and_of_its_smallest(drafts, told):
    first, last = (row(batch=batch, drafts=count) for batch, count in zip((1, 8), drafts, strict=True))
    others = [
        row(batch=64, drafts=9),
        row(batch=1, drafts=7, gpu="a40"),
        row(batch=1, drafts=7, drafter="mtp"),
    ]
    answer = comparison(last, None, table=[*others, first])
    assert compared.drafting_text(answer, last) == told
    assert (
        compared.drafting_text(answer, row(drafter="none", replicas=2)) == "no speculation, 8 requests a copy"
    )
    assert compared.drafting_text(answer, row(drafter="none")) == "no speculation, 8 requests"


@pytest.mark.parametrize(
    ("chosen", "plain", "told"),
    [
        (row(), row(drafter="none", usd_per_million_tokens=0.5), ["2", "4", "0.500"]),
        (row(), row(drafter="none", engine="sglang", usd_per_million_tokens=0.5), ["2", "4", "16", "0.500"]),
        (row(drafter="none"), row(drafter="none"), []),
        (row(), None, []),
    ],
)
def test_the_best_without_drafts_is_named_where_it_is_another_set_up(chosen, plain, told):
    text = compared.without_text(comparison(chosen, plain))
    assert (numbers(text), text.startswith("the same")) == (told, len(told) == 3)
    asked = comparison(chosen, None, table=[row(drafter="none")])
    assert bool(compared.without_text(asked)) or chosen["drafter"] != "none"


@pytest.mark.parametrize(("sure", "told"), [(compared.SURER, False), (compared.SURER - 0.01, True)])
def test_a_surer_set_up_is_shown_where_the_chosen_one_is_less_sure(sure, told):
    answer = comparison(row(sure=sure), None)
    answer.surer = SimpleNamespace(chosen=None)
    text = compared.surer_text(answer)
    assert numbers(text) == ([f"{100 * compared.SURER:.0f}"] if told else [])
    assert compared.surer_text(comparison(None, None)) == ""


def test_the_chosen_set_up_is_shown_with_its_worth_speed_and_certainty():
    text = compared.chosen_text(comparison(row(), None, limit_us=12_500.0))
    assert numbers(text)[-4:] == ["0.250", "102", "80.0", "85"]
    assert numbers(compared.chosen_text(comparison(row(), None)))[-2:] == ["0.250", "102"]


def test_a_set_up_under_load_is_shown_in_shares_milliseconds_and_tokens():
    point = SimpleNamespace(mean={"ttft_p50_s": 0.25, "tpot_p50_s": 0.0125})
    given = {"row": row(ttft_ms=200.0), "gpus": 4, "replicas": 2, "share": 0.934, "point": point}
    text = compared.loaded_line(SimpleNamespace(**given, usd_per_million_tokens=0.125))
    assert numbers(text) == ["4", "4", "2", "2", "93", "250", "80.0", "0.125"]
    alone = SimpleNamespace(
        **{**given, "replicas": 1, "row": row(ttft_ms=200.0, drafts=0)}, usd_per_million_tokens=math.nan
    )
    assert numbers(compared.loaded_line(alone)) == ["4", "4", "1", "93", "250", "80.0"]


def priced(speed: float, **more: Any) -> dict[str, Any]:
    """A row at this speed, a tenth below and a fifth above it in its band, for $2 a million tokens."""
    return {
        "gpu": "a", "gpus": 1, "tp": 1, "ep": 1, "dp_attention": False, "precision": "bf16",
        "kv_precision": "bf16", "engine": "vllm", "drafter": "eagle3", "drafts": 3, "batch": 8,
        "tokens_per_s_per_user": speed, "tokens_per_s_per_user_low": 0.9 * speed,
        "tokens_per_s_per_user_high": 1.2 * speed, "tokens_per_s_per_gpu": 8.0 * speed,
        "usd_per_million_tokens": 2.0, "joule_per_token": 0.5, "sure": 1.0, "chosen": False, **more,
    }  # fmt: skip


def test_a_decision_has_the_speed_and_the_cost_of_its_three_rows(monkeypatch):
    """The plain row rests on its own kind of measurement; where nothing is sure enough it is said once."""
    monkeypatch.setattr(tables, "drafting_text", lambda answer, row: row["drafter"])
    monkeypatch.setattr(tables, "rests_on", lambda scenario, plain: f"plain {plain}")
    answer = SimpleNamespace(
        chosen=priced(120.0, sure=0.83, usd_per_million_tokens=1.2345), surer=SimpleNamespace(chosen=None),
        chosen_plain=priced(60.0, drafter="none", sure=0.5), measure="cost", scenario=lambda row: None,
        column="usd_per_million_tokens",
    )  # fmt: skip
    choice, safe, plain = tables.decision_table(answer).rows  # type: ignore[arg-type]
    assert choice[2:] == ("1.23", "120", "108 to 144", "83 %", "plain False")
    assert plain[2:] == ("2.00", "60.0", "54.0 to 72.0", "50 %", "plain True")
    assert numbers(safe[1]) == ["90"]
    assert set(safe[2:]) == {NOTHING}


@pytest.mark.parametrize(("sure", "is_shown"), [((1.0, 1.0), False), ((1.0, 0.7), True)])
def test_rows_of_set_ups_have_their_bands_and_are_sure_where_something_was_asked(sure, is_shown):
    rows = pd.DataFrame([
        priced(100.0, sure=sure[0], chosen=True), priced(50.0, sure=sure[1], drafts=0, drafter="none"),
    ])  # fmt: skip
    table = compare_tables.rows_table(rows, "made")
    found = {header: column for header, *column in zip(table.headers, *table.rows, strict=True)}
    assert found[BY_NAME["interval"].title] == ["90.0-120", "45.0-60.0"]
    assert found[BY_NAME["drafts"].title] == ["3", NOTHING]
    assert next(iter(found.values())) == ["*", ""]
    assert (BY_NAME["sure"].title in found) == is_shown
