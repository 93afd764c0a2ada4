"""Where a set-up stands among what was measured, by hand: spans, groups, formats, expected errors."""

import math
from types import SimpleNamespace

import numpy as np
import pytest
from left_out import numbers_left_out

from medusa_sim.doubts.standing import Standing, near_groups, standing
from medusa_sim.engines.accuracy_groups import _value, groups, span_of, table_text, weights_of
from medusa_sim.engines.served_groups import known_kinds
from medusa_sim.models.named import load_model
from medusa_sim.scenario.scenario import Scenario
from medusa_sim.step.step import decode_step

RATES = "0.7,0.5,0.35"
"""Three drafts: 1 + 0.7 + 0.5 + 0.35 = 2.55 tokens a step."""


def dense(runtime: str, **more: object) -> Scenario:
    given = {"gpu": "h100-sxm", "model": "llama-3.1-8b", "drafter": "eagle3", "acceptance": RATES, **more}
    return Scenario(**given, runtime=runtime)


def test_a_span_is_its_ends():
    assert (span_of([8, 1, 4]), span_of(["8", 8.0]), span_of([np.nan])) == ("1 to 8", "8", "")


def test_a_cell_is_a_number_where_its_column_has_numbers():
    assert [_value(*cell) for cell in (("rows", "12"), ("error", "0.5"), ("held", ""), ("what", "7"))] == [
        12, 0.5, None, "7",
    ]  # fmt: skip
    assert _value("rows", "x") == "x"


def test_groups_are_written_as_they_are_read(tmp_path):
    folder = tmp_path / "profiles"
    folder.mkdir()
    (folder / "accuracy.csv").write_text(table_text(groups()[:7]), encoding="utf-8")
    assert groups(tmp_path) == groups()[:7]


def test_groups_that_changed_on_disk_are_seen_by_a_scenario_that_was_asked_before(tmp_path):
    folder = tmp_path / "profiles"
    folder.mkdir()
    path = folder / "accuracy.csv"
    asked = dense("vllm-0.15", data_dir=tmp_path)
    own = near_groups(dense("vllm-0.15"))
    path.write_text(table_text(own[:1]), encoding="utf-8")
    assert near_groups(asked) == own[:1]
    path.write_text(table_text(own[:2]), encoding="utf-8")
    assert near_groups(asked) == own[:2]
    assert standing(asked) is standing(asked)


@pytest.mark.parametrize(
    ("model", "weights"), [("llama-3.1-8b", "bf16"), ("gpt-oss-120b", "mxfp4"), ("deepseek-r1", "fp8_block")]
)
def test_a_model_has_the_format_of_most_of_its_weights(model, weights):
    assert weights_of(load_model(model)) == weights


@pytest.mark.parametrize(
    ("set_up", "requests"),
    [
        ({"gpu": "h100-sxm", "runtime": "vllm-0.15"}, 16), ({"gpu": "h100-sxm", "runtime": "cuda-graph"}, 16),
        ({"gpu": "rtx-4090", "runtime": "llama.cpp-cuda"}, 1),
    ],
)  # fmt: skip
def test_the_band_is_of_a_plain_step_of_sixteen_requests_and_of_one_on_ones_own_machine(set_up, requests):
    """The half of its logarithm: that of the whole step, high over low."""
    asked = Scenario(model="llama-3.1-8b", drafter="ngram", acceptance=0.5, **set_up)
    step = decode_step(asked.setting, np.asarray(requests), np.asarray(asked.length))
    found = standing(asked)
    assert found.half_width == pytest.approx(math.log(math.sqrt(float(step.high_us / step.low_us))))


def test_an_expected_error_is_that_of_groups_as_new():
    """Inside what was measured the class's own, of another version at least that of versions."""
    kinds = known_kinds()
    served = {"gpu": "h200-sxm", "model": "llama-3.1-70b", "dtype": "fp8", "tp": 4}
    own = standing(dense("vllm-0.15", **served))
    assert (own.kind, own.expected) == ("measured", kinds["measured"].error)
    assert own.between == own.nearness.widening.step_share
    later = standing(dense("vllm-0.60", **served))
    assert later.expected == max(later.nearness.known.error, kinds["version"].error)
    assert later.between > own.between
    assert own.nearest == "llama-3.1-70b in vllm-0.15 on h200-sxm, fp8"
    none = Standing(nearness=None, half_width=0.1)
    assert (none.kind, none.expected, none.between, none.nearest) == ("unserved", None, 0.0, "")


@pytest.mark.parametrize(
    ("error", "wider", "told"), [(0.5, True, 0.5), (0.001, True, None), (0.001, False, 0.001)]
)
def test_another_version_is_expected_to_err_as_versions_do_at_least(error, wider, told):
    difference = SimpleNamespace(is_other_version=wider)
    nearness = SimpleNamespace(known=SimpleNamespace(error=error), difference=difference)
    found = Standing(nearness=nearness, half_width=0.1).expected
    assert found == (known_kinds()["version"].error if told is None else told)


def test_what_is_left_out_is_nothing():
    assert numbers_left_out("doubts") == {}
