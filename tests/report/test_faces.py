"""What Python hands out of an answer holds the answer's own numbers, none of them rounded."""

from __future__ import annotations

import json
import re
from functools import cache
from typing import Any

import numpy as np
import pytest

import medusa_sim as ms
from medusa_sim.errors import UsageError
from medusa_sim.report.load.values import timeline_arrow
from medusa_sim.report.recommend.python import schedule_arrow
from medusa_sim.scenario.defaults import DEFAULT_SEQ_LEN

SCENARIO = ms.Scenario(
    gpu="h100-sxm", model="llama-3.1-8b", drafter="eagle3", acceptance="0.7,0.5,0.3", runtime="vllm"
)


@cache
def recommended() -> Any:
    return SCENARIO.recommend(batch=range(1, 65))


@cache
def simulated() -> Any:
    return SCENARIO.simulate([2], 4.0, requests=60, seeds=2, search=False)


def test_the_schedule_is_a_row_a_range_and_its_figures_are_the_rows_own():
    found = recommended()
    rows, frame = found.answer.schedule, found.schedule
    assert len(frame) == len(rows)
    for name in ("batch_min", "batch_max", "candidates", "speedup", "tokens_per_s"):
        assert frame[name].tolist() == [getattr(row, name) for row in rows]
    assert frame["speedup_low"].tolist() == [row.interval_low for row in rows]
    assert found.schedule_row is rows[0]
    assert found.enable
    at = found.at(rows[-1].batch_max)
    assert (at.batch_max, at.seq_len, at.drafts) == (rows[-1].batch_max, DEFAULT_SEQ_LEN, rows[-1].drafts)


def test_steps_of_every_count_are_those_of_a_sweep():
    frame = SCENARIO.recommend(batch=[1, 8]).by_count
    swept = SCENARIO.sweep(batch=[1, 8], candidates=[1, 2, 3, 4])
    pairs = frame.merge(swept, on=["batch", "candidates"], suffixes=("", "_swept"))
    assert len(pairs) == 8
    assert pairs.step_speedup.tolist() == pytest.approx(pairs.speedup_swept.tolist(), rel=1e-12)


def test_a_schedules_nested_values_are_json_in_a_table():
    found = recommended()
    table = schedule_arrow(found.answer).to_pylist()
    values = found.to_dict()["schedule"]
    for row, told in zip(table, values, strict=True):
        for name in ("paths", "quicker_larger", "next_count", "near_best"):
            assert row[name] is None if told[name] is None else json.loads(row[name]) == _as_json(told[name])
        assert row["speedup"] == told["speedup"]


def _as_json(value: Any) -> Any:
    return json.loads(json.dumps(value))


def test_parts_of_both_steps_add_up_to_no_more_than_the_step():
    steps = recommended().to_dict()["steps"]
    for name in ("plain_us", "speculative_us"):
        step = dict(steps[name])
        whole = step.pop("step")
        assert 0.5 * whole < sum(step.values()) <= whole * (1 + 1e-12)
    assert steps["speculative_us"]["drafter"] > 0.0
    assert "drafter" not in steps["plain_us"]


def test_an_export_has_the_drafts_of_the_schedule_and_refuses_a_number_as_its_engine():
    found = SCENARIO.recommend(batch=range(1, 17))
    told = found.export("vllm", draft_path="some/head").text
    drafts = int(re.findall(r'"num_speculative_tokens": ?(\d+)', told)[0])
    assert found.schedule.drafts.tolist() == [drafts] == [4]
    with pytest.raises(UsageError, match="engine"):
        found.export(3)


def test_a_load_hands_out_a_row_a_policy_and_rate_with_means_over_its_seeds():
    found = simulated()
    (point,), frame = found.answer.points, found.frame
    assert frame.policy.tolist() == [point.policy]
    for name in ("tpot_mean_s", "ttft_p50_s", "tokens_per_s"):
        assert frame[name].tolist() == [np.mean([seed[name] for seed in point.values])]
    assert (frame.tpot_mean_s_low[0], frame.tpot_mean_s_high[0]) == pytest.approx(point.band("tpot_mean_s"))
    assert found.carried.empty
    assert found.to_dict()["rows"][0]["tokens_per_s"] == frame.tokens_per_s[0]
    # bins of the timeline one after another, to the end of the run
    line = timeline_arrow(found.answer).to_pandas()
    assert found.timeline.equals(line)
    assert (np.diff(line.time_s) > 0.0).all()
    assert line.time_s.iloc[-1] == pytest.approx(point.first_result.end_s, rel=0.02)
    assert set(line.rate_per_s) == {4.0}


def test_a_check_hands_out_a_row_a_part_and_says_which_is_off():
    predicted_ms = float(SCENARIO.sweep(batch=4, candidates=1).tpot_us[0]) / 1e3
    fine, slow = (
        SCENARIO.check(batch=4, seq_len=DEFAULT_SEQ_LEN, drafts=0, tpot_ms=factor * predicted_ms)
        for factor in (1.0, 3.0)
    )
    assert (fine.is_inside, fine.off) == (True, ())
    assert (slow.is_inside, slow.off) == (False, ("plain",))
    (row,) = slow.frame.to_dict("records")
    assert row["measured_us"] == pytest.approx(3e3 * predicted_ms)
    assert row["predicted_us"] == pytest.approx(1e3 * predicted_ms)
    assert row["costs_us"] == pytest.approx(2e3 * predicted_ms)
    assert slow.values["measured_us"] == row["measured_us"]
    assert (slow.values["inside"], len(slow.values["next"])) == (False, 1)


@pytest.mark.parametrize("face", [recommended, simulated], ids=["recommend", "simulate"])
def test_a_notebook_shows_the_sentence_and_the_numbers(face):
    found = face()
    page = found._repr_html_()
    assert repr(found) == found.sentence
    assert page.count("<tr") > 1
    frame = found.schedule if face is recommended else found.frame
    assert f"{frame.tokens_per_s[0]:.3g}" in page
