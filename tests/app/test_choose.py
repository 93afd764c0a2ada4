"""The page Choose: its answer is the package's, follows its inputs, and says what it cannot do."""

from __future__ import annotations

import json
import shlex
from pathlib import Path

import pytest

pytest.importorskip("streamlit")

import answers
import inputs
import show
import uploads
from charts import choose as charts
from conftest import Opened, commands, csv_rows, metrics, printed

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
    headline = page.success[0].value
    assert headline.startswith("**vicuna-7b on a100-80gb-pcie, batch 4: verify")
    assert (
        f"verify {row.candidates} candidates a step ({row.drafts} drafts deep), {row.speedup:.2f}x"
        in headline
    )


def test_the_command_gives_the_same_numbers(opened: Opened) -> None:
    page = opened("choose", batch=4, batch_max=8, gpu="h100-sxm", seq_len=2000)
    command = next(told for told in commands(page) if "--by-count" in told)
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
    assert "batch 8: do not enable speculation" in page.error[0].value
    assert metrics(page)["Best candidate count"] == "off"


@pytest.mark.parametrize("engine", ["vllm", "sglang", "tensorrt-llm", "tgi", "json"])
def test_launch_settings_are_those_of_the_command(opened: Opened, engine: str) -> None:
    page = opened("choose", engine=engine)
    found = [told for told in commands(page) if f"--export {engine}" in told]
    if not found:  # what an engine cannot do is said instead
        assert page.info
        return
    assert printed(found[0]).strip() in [code.value.strip() for code in page.code]


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
    assert sum(cell["best"] for cell in cells) == 5


def test_the_breakdown_is_the_commands(opened: Opened) -> None:
    page = opened("choose", batch=4)
    command = next(told for told in commands(page) if "--format json" in told)
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
    for name, step in (("plain", plain), ("speculative", speculative)):
        mine = [row for row in rows if row["step"] == name]
        assert sum(row["time_us"] for row in mine) == pytest.approx(float(step.time_us))
        assert sum(row["share"] for row in mine) == pytest.approx(1.0)
    ends = [
        row["to"]
        for row in charts.breakdown_chart(charts.breakdown_rows(plain, speculative))["data"]["values"]
    ]
    assert max(ends) == pytest.approx(max(float(plain.time_us), float(speculative.time_us)) / 1e3)


def test_the_map_marks_where_speculation_begins_to_lose() -> None:
    table = count_table(answers.recommendation(set_up(), 64).surface)
    layers = charts.speedup_map(table, 64)["layer"]
    edges = [row for layer in layers[3:] for row in layer["data"]["values"]]
    speedup = {
        (row["batch"], row["candidates"]): row["speedup"]
        for row in charts.speedup_map(table, 64)["data"]["values"]
    }
    below = [row for row in layers[3]["data"]["values"] if row["batch"] == 64]
    assert edges
    assert len(below) == 1
    counts = sorted(count for batch, count in speedup if batch == 64)
    crossed = below[0]["candidates"]
    assert speedup[64, crossed] >= 0.995 > speedup[64, counts[counts.index(crossed) + 1]]


def test_commands_break_between_options_only() -> None:
    words = [
        "recommend",
        "--gpu",
        "a100-80gb-pcie",
        "--candidates-max",
        "128",
        "--by-count",
        "--batch",
        "1..64",
    ]
    told = show.command([*words, "1..64", "--model", "a model", "--format", "csv"])
    shown = show.wrapped(f"{told}\n{told}")
    lines = shown.splitlines()
    assert max(map(len, lines)) <= 66
    assert shlex.split(shown.replace("\\\n", " ")) == [*shlex.split(told), *shlex.split(told)]
    for line in lines:
        assert line.rstrip("\\ ").split()[-1] not in {"--gpu", "--batch", "--candidates-max", "--model"}


def test_a_schedule_shows_both_plain_rates(opened: Opened) -> None:
    page = opened("choose")
    answer = answers.recommendation(set_up(), 64)
    shown = page.dataframe[0].value.iloc[0]
    row = answer.schedule[0]
    assert shown["tokens/s a user (plain)"].endswith(f"({row.plain_tokens_per_s_per_user:,.0f})")
    assert shown["tokens/s (plain)"].endswith(f"({row.plain_tokens_per_s:,.0f})")
    assert shown["drafts"] == str(row.drafts)
