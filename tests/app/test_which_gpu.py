"""Which GPU: the page is the command's answer, whatever is asked next."""

import dataclasses
import math
import shlex

import compared
import pytest
import show
from chosen import PageArguments
from pages_drawn import EIGHT_B, FEW, drawn
from pages_read import (
    Opened,
    commands,
    csv_rows,
    metrics,
    printed,
    set_up,
    tables,
    text_of,
)
from pages_read import charts as chart_specs

from medusa_sim.gpus.prices import prices
from medusa_sim.report.compare.sentences import workload
from medusa_sim.report.words.numbers import capitalised, significant
from medusa_sim.setups.question import SetupChoices, SetupQuestion

ASKED = (
    SetupQuestion(tokens_per_s_per_user=60.0, measure="cost"),
    SetupChoices(
        gpus=("h100-sxm", "l40s"), counts=(1,), engines=("vllm",), weight_dtypes=("bf16",),
        drafters=("none", "eagle3"),
    ),
)  # fmt: skip


def test_which_gpu_is_the_commands_answer_and_another_target_prices_nothing(
    opened: Opened, monkeypatch: pytest.MonkeyPatch
) -> None:
    page = opened("compare", **EIGHT_B, **FEW, target=60)
    usd = shlex.split(next(told for told in commands(page) if "--price" in told))
    asked = (*ASKED, usd[usd.index("--price") + 1])
    found = compared.set_ups_for(set_up(**EIGHT_B), *asked)
    assert found.chosen is not None
    said = page.success[0].value.replace("**", "")
    assert said.startswith(f"1 x {found.chosen['gpu']}, bf16, vllm, ")
    assert len(said) < 160
    assert f"60 tokens/s a user ({workload(ASKED[0])})" in text_of(page)
    decisions = tables(page)[0]
    assert list(decisions["decision"]) == ["Choice", "Safe choice", "No drafts"]
    for name, row in zip(
        decisions["set-up"], (found.chosen, found.surer.chosen, found.chosen_plain), strict=True
    ):
        assert name.startswith(f"1 x {row['gpu']}, bf16, vllm, ")
    assert (decisions["rests on"].str.len() > 0).all()
    for gpu in ASKED[1].gpus:
        assert f"**{gpu}**" in text_of(page)
    assert metrics(page)["Tokens/s a user"] == significant(found.chosen["tokens_per_s_per_user"], 3)
    rows = csv_rows(printed(next(told for told in commands(page) if told.startswith("medusa-sim compare"))))
    costs = [float(row["usd_per_million_tokens"]) for row in rows]
    assert costs == pytest.approx(found.table.usd_per_million_tokens.tolist())
    assert [row["gpu"] for row in rows if row["chosen"].lower() == "true"] == [found.chosen["gpu"]]
    monkeypatch.setattr(compared, "compare", lambda *_, **__: pytest.fail("priced again"))
    other = dataclasses.replace(ASKED[0], tokens_per_s_per_user=30.0, measure="throughput")
    moved = compared.set_ups_for(set_up(**EIGHT_B), other, *asked[1:])
    assert moved.scenarios is found.scenarios
    assert (moved.column, moved.question.tokens_per_s_per_user) == ("tokens_per_s_per_gpu", 30.0)


def test_which_gpu_searches_copies_of_every_size_and_says_what_it_rests_on(opened: Opened) -> None:
    page = opened("compare", model="deepseek-r1", drafter="mtp", gpu_choices="h200-sxm,l40s", weights="fp8")
    assert page.success[0].value.startswith("**8 x h200-sxm, ")
    text = text_of(page)
    assert "Searched: copies of 1, 2, 4 and 8 GPUs of 2 kinds" in text
    assert "**l40s**: nothing can run; 8 x l40s" in text
    command = next(told for told in commands(page) if told.startswith("medusa-sim compare"))
    assert "--gpus" not in command or "--gpus 1,2,4,8" in command
    comparison = compared.set_ups_for(
        PageArguments(model="deepseek-r1", drafter="mtp"),
        SetupQuestion(tokens_per_s_per_user=50),
        SetupChoices(
            gpus=("h200-sxm", "l40s"), counts=(1, 2, 4, 8), engines=("vllm",), weight_dtypes=("fp8",),
            drafters=("none", "mtp"),
        ),
    )  # fmt: skip
    own = comparison.warnings_of(comparison.key(comparison.chosen))
    beside = [line.value for line in page.markdown if line.value.startswith(":material/warning:")]
    assert [show.in_words(capitalised(line)) in " ".join(beside) for line in own] == [True] * len(own)
    again = opened("compare", model="deepseek-r1", drafter="mtp", gpu="h200-sxm,l40s", weights="fp8")
    assert again.success[0].value == page.success[0].value
    nothing = opened("compare", model="deepseek-r1", drafter="mtp", gpu_choices="l40s")
    assert "Searched: copies of 1, 2, 4 and 8 GPUs of l40s" in text_of(nothing)
    assert nothing.error


def test_prices_stand_side_by_side_and_can_be_changed(opened: Opened) -> None:
    page = opened("compare", **EIGHT_B, **FEW)
    listed = {
        gpu: min(each.usd_per_gpu_hour for each in prices() if each.gpu == gpu)
        for gpu in ("h100-sxm", "l40s")
    }
    shown = {gpu: page.number_input(key=f"usd_{gpu}").value for gpu in listed}
    assert shown == listed
    by_link = opened("compare", **EIGHT_B, **FEW, price="l40s=3")
    page.number_input(key="usd_l40s").set_value(3.0).run()
    for changed in (page, by_link):
        assert not any("Ignored" in line.value for line in changed.warning)
        told = next(line for line in commands(changed) if line.startswith("medusa-sim compare"))
        assert f"--price h100-sxm={listed['h100-sxm']:g},l40s=3" in told
    unpriced = opened("compare", **EIGHT_B, gpu_choices="a100-40gb,h100-sxm", copies=1, weights="bf16")
    assert "**a100-40gb**: no price" in text_of(unpriced)
    assert not any(line.label == "Refused: 0" for line in page.expander)


def test_which_gpu_says_what_cannot_be_and_draws_every_axis(opened: Opened) -> None:
    page = opened("compare", **EIGHT_B, **FEW, target=100_000)
    assert "No set-up of llama-3.1-8b keeps the limits" in page.error[0].value
    assert chart_specs(page), "what can be had is drawn all the same"
    refused = opened("compare", model="llama-3.3-70b", drafter="eagle3", gpu_choices="h100-sxm", copies="1,2")
    assert "of weights a GPU leave no room" in text_of(refused)
    for axis in ("tokens/s a GPU", "energy", "tokens/s a megawatt"):
        drawn(chart_specs(opened("compare", **EIGHT_B, **FEW, axis=axis))[0])


def test_names_of_points_do_not_stand_on_each_other(opened: Opened) -> None:
    page = opened(
        "compare", **EIGHT_B, gpu_choices="h100-sxm,h200-sxm,b200,l40s", copies="1,2", weights="bf16"
    )
    spec = chart_specs(page)[0]
    texts = next(layer for layer in spec["layer"] if layer["mark"].get("type") == "text")["data"]["values"]
    assert 2 < len(texts) < 20
    logs = [(math.log(point["x"]), math.log(point["y"])) for point in texts]
    assert len(set(logs)) == len(logs)
