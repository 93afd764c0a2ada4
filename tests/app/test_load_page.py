"""The page Under load: the package's values, its command gives the same, changes are followed."""

from __future__ import annotations

import pytest

pytest.importorskip("streamlit")

import under_load
from chosen import SetUp
from pages_read import Opened, charts, commands, csv_rows, metrics, printed

from medusa_sim.load.arguments import LoadArguments
from medusa_sim.report.text import significant

EAGLE = {"gpu": "h100-sxm", "model": "llama-3.1-8b", "drafter": "eagle3", "seqs": 64, "tpot": 12}


def test_the_answer_is_the_packages_and_the_commands(opened: Opened) -> None:
    page = opened("load", **EAGLE)
    asked = LoadArguments(policies=("none", "3"), tpot_ms=12.0, max_num_seqs=64)
    found = under_load.load(SetUp(gpu="h100-sxm", model="llama-3.1-8b", drafter="eagle3"), asked)
    plain, drafting = found.carried
    shown = metrics(page)
    assert shown["Carried within the limits"] == f"{significant(drafting.largest_per_s or 0.0, 3)}/s"
    assert shown["Always full"] == f"{significant(drafting.saturated_per_s, 3)}/s"
    assert page.success[0].value.startswith(
        "**llama-3.1-8b on h100-sxm under vllm-0.33:** With 3 drafts a step the server sustains "
    )
    assert len(charts(page)) == 2
    rows = csv_rows(printed(next(told for told in commands(page) if "--timeline" not in told)))
    assert [row["policy"] for row in rows[:2]] == ["none", "K=3"]
    last = {point.policy: point.mean for point in found.last}
    assert float(rows[-1]["tpot_mean_s"]) == last["K=3"]["tpot_mean_s"]
    assert plain.largest_per_s is not None


@pytest.mark.usefixtures("short_loads")
@pytest.mark.parametrize(
    "url",
    [
        {"policy": "schedule"},
        {"policy": "budget", "bursts": 4},
        {"drafts": 1, "ttft": 200},
        {"prompts": 2000, "outputs": 100, "shows": "goodput_per_s", "over": "kv_tokens"},
    ],
)
def test_changes_are_followed(opened: Opened, url: dict[str, object]) -> None:
    page = opened("load", **{**EAGLE, **url})
    assert page.success
    assert not page.error


@pytest.mark.usefixtures("short_loads")
def test_what_cannot_be_simulated_is_one_line(opened: Opened) -> None:
    page = opened("load", runtime="cuda-graph", acceptance="paper-fig21")
    assert "by position" in page.error[0].value
    nobody = opened("load", drafter="eagle", model="opt-13b", drafts=16)
    assert nobody.error or nobody.success
