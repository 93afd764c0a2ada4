"""The page Choose: its answer is the package's, follows its inputs, and says what it cannot do."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

pytest.importorskip("streamlit")

import answers
import inputs
import uploads
from charts import choose as charts
from conftest import Opened, csv_rows, metrics, printed

from medusa_sim.errors import DataError, MedusaSimError, SpecError
from medusa_sim.plan.by_count import count_table
from medusa_sim.plan.recommend import at_batch, steps_at

EXAMPLE = Path(__file__).resolve().parents[2] / "docs" / "example_config.json"


def set_up(**changes: object) -> inputs.SetUp:
    values = {
        "gpu": "a100-80gb-pcie",
        "model": "vicuna-7b",
        "runtime": "cuda-graph",
        "seq_len": 1024,
        "drafter": "medusa",
        "heads": 5,
        "draft_model": None,
        "acceptance": None,
    }
    return inputs.SetUp(**{**values, **changes})  # type: ignore[arg-type]


def test_the_answer_is_the_packages(opened: Opened) -> None:
    page = opened("choose", batch=4)
    row = at_batch(answers.recommendation(set_up(), 64), 4, 1024)
    shown = metrics(page)
    assert shown["Best candidate count"] == str(row.candidates)
    assert shown["Speedup"] == f"{row.speedup:.2f}x"
    assert shown["Free token budget"] == str(row.free_candidates)
    assert shown["Largest batch"] == str(row.max_batch_with)
    assert f"Verify {row.candidates} candidates" in page.success[0].value


def test_the_command_gives_the_same_numbers(opened: Opened) -> None:
    page = opened("choose", batch=4, batch_max=8, gpu="h100-sxm", seq_len=2000)
    command = next(code.value for code in page.code if "--by-count" in code.value)
    rows = csv_rows(printed(command))
    mine = [row for row in rows if row["batch"] == "4"]
    best = max(mine, key=lambda row: float(row["speedup"]))
    assert metrics(page)["Best candidate count"] == best["candidates"]
    assert metrics(page)["Speedup"] == f"{float(best['speedup']):.2f}x"
    table = count_table(answers.recommendation(set_up(gpu="h100-sxm", seq_len=2000), 8).surface)
    assert [float(row["speedup"]) for row in rows] == pytest.approx(table.column("speedup").to_pylist())


@pytest.mark.parametrize(
    ("name", "value"),
    [("gpu", "l40s"), ("model", "llama-3-8b"), ("seq_len", 16000), ("batch", 32), ("heads", 1)],
)
def test_every_input_changes_the_answer(opened: Opened, name: str, value: object) -> None:
    before, after = opened("choose"), opened("choose", **{name: value})
    assert metrics(before) != metrics(after)


def test_a_slider_that_moves_is_followed(opened: Opened) -> None:
    page = opened("choose")
    first = metrics(page)
    page.slider(key="batch").set_value(48).run()
    assert not page.exception
    assert metrics(page) != first
    row = at_batch(answers.recommendation(set_up(), 64), 48, 1024)
    assert metrics(page)["Speedup"] == f"{row.speedup:.2f}x"


def test_do_not_enable_is_said_plainly(opened: Opened) -> None:
    page = opened("choose", drafter="draft-model", draft_model="llama-2-7b", rate=30, batch=8)
    assert "Do not enable speculation" in page.error[0].value
    assert metrics(page)["Best candidate count"] == "off"


@pytest.mark.parametrize("engine", ["vllm", "sglang", "tensorrt-llm", "tgi", "json"])
def test_launch_settings_are_those_of_the_command(opened: Opened, engine: str) -> None:
    page = opened("choose", engine=engine)
    codes = [code.value for code in page.code]
    commands = [value for value in codes if value.startswith("medusa-sim") and f"--export {engine}" in value]
    if not commands:  # what an engine cannot do is said instead
        assert page.info
        return
    assert printed(commands[0]).strip() in [value.strip() for value in codes]


def test_bad_values_in_the_link_are_ignored_with_a_note(opened: Opened) -> None:
    page = opened("choose", gpu="no-such", batch="x", seq_len=-5, nonsense=1)
    note = page.warning[0].value
    assert all(name in note for name in ("gpu=no-such", "batch=x", "seq_len=-5", "nonsense"))
    assert "\n" not in note
    assert metrics(page) == metrics(opened("choose"))


def test_a_good_link_leaves_no_note(opened: Opened) -> None:
    page = opened("choose", gpu="a40", batch=2, drafter="medusa", objective="throughput")
    assert not any("Ignored" in warning.value for warning in page.warning)
    assert page.selectbox(key="gpu").value == "a40"
    assert page.selectbox(key="objective").value == "throughput"


def test_what_the_package_refuses_is_one_line(opened: Opened) -> None:
    page = opened("choose", gpu="rtx-a6000", model="llama-3-8b", runtime="paper")
    for error in page.error:
        assert "\n" not in error.value
        assert "Traceback" not in error.value


def test_an_own_config_is_read_strictly() -> None:
    content = EXAMPLE.read_bytes()
    assert uploads.config_bytes("config.json", content) == content
    own = set_up(model="config.json", config=content)
    assert answers.model_of(own).layers == json.loads(content)["num_hidden_layers"]
    assert answers.recommendation(own, 8).schedule
    for bad, told in (
        (b"", "empty"),
        (b"x" * 1_000_001, "at most 1,000,000"),
        (b"{not json", "config.json"),
        (b"[]", "config.json"),
        (b'{"model_type": "llama"}', "config.json"),
        (b"\xff\xfe\x00", "config.json"),
    ):
        with pytest.raises((DataError, SpecError), match=told) as caught:
            uploads.config_bytes("config.json", bad)
        assert isinstance(caught.value, MedusaSimError)
        assert "\n" not in str(caught.value)


def test_charts_hold_the_search(opened: Opened) -> None:
    answer = answers.recommendation(set_up(), 16)
    table = count_table(answer.surface)
    spec = charts.speedup_chart(table, [1, 16])
    line = spec["layer"][1]["data"]["values"]
    assert {row["batch"].partition(":")[0] for row in line} == {"batch 1", "batch 16"}
    rings = spec["layer"][4]["data"]["values"]
    for batch, ring in zip((1, 16), rings, strict=True):
        best = at_batch(answer, batch, 1024)
        assert ring["candidates"] == best.candidates
        assert ring["batch"] == f"batch {batch}: {best.candidates} ({best.speedup:.2f}x)"
    cells = charts.speedup_map(table, 16)["data"]["values"]
    assert {cell["batch"] for cell in cells} == {1, 2, 4, 8, 16}
    assert sum(cell["text"].endswith("*") for cell in cells) == 5


def test_the_breakdown_is_the_commands(opened: Opened) -> None:
    page = opened("choose", batch=4)
    command = next(code.value for code in page.code if "--format json" in code.value)
    told = json.loads(printed(command))["steps"]
    both = steps_at(answers.recommendation(set_up(), 64), 4, 1024)
    assert told["candidates"] == both.candidates
    for name, step in (("plain_us", both.plain), ("speculative_us", both.speculative)):
        assert told[name]["step"] == pytest.approx(float(step.time_us))
        assert told[name]["mlp"] == pytest.approx(float(step.parts_us["mlp"]))


def test_the_breakdown_adds_up() -> None:
    from medusa_sim.step.step import decode_step, verify_step

    setting = answers.setting_of(set_up())
    plain, speculative = decode_step(setting, 4, 1024), verify_step(setting, 4, 1024, 16)
    rows = charts.breakdown_rows(plain, speculative).to_pylist()
    for name, step in (("plain step", plain), ("speculative step", speculative)):
        mine = [row for row in rows if row["step"] == name]
        assert sum(row["time_us"] for row in mine) == pytest.approx(float(step.time_us))
        assert sum(row["share"] for row in mine) == pytest.approx(1.0)
    ends = [
        row["to"]
        for row in charts.breakdown_chart(charts.breakdown_rows(plain, speculative))["data"]["values"]
    ]
    assert max(ends) == pytest.approx(max(float(plain.time_us), float(speculative.time_us)) / 1e3)
