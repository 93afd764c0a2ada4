"""The page Choose: its answer is the package's, follows its inputs, and says what it cannot do."""

import json
import re
import shlex
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import answers
import downloads
import pytest
import show
import uploads
from charts.draw import bars_spec, map_spec
from one_line import one_line
from pages_read import Opened, commands, csv_rows, metrics, printed, set_up, tables, text_of
from pages_read import charts as drawn

from medusa_sim.errors import MedusaSimError
from medusa_sim.grid.quantity import BY_NAME
from medusa_sim.grid.sweep import count_table
from medusa_sim.plan.schedule import scheduled_counts
from medusa_sim.report.charts.sweep import heat_map, speedup_chart, step_rows, two_steps
from medusa_sim.report.length_view import view_of
from medusa_sim.report.quantity_table import quantity_text
from medusa_sim.report.recommend.warnings import warnings
from medusa_sim.scenario.question import Question

EXAMPLE = Path(__file__).resolve().parents[2] / "docs" / "example_config.json"


def test_the_answer_is_the_packages_and_its_schedule_shows_both_plain_rates(opened: Opened) -> None:
    page, answer = opened("answer", batch=4), answers.planned(set_up())
    row, shown = answer.scheduled_row_at(4, 1024), metrics(page)
    assert shown["Candidates"] == str(row.candidates)
    assert shown["Speedup"] == f"{row.speedup:.2f}x"
    assert shown["Free candidates"] == str(row.free_candidates)
    assert shown["Most at once"] == str(row.max_batch_with)
    headline = page.success[0].value
    assert headline.startswith(
        "**vicuna-7b on a100-80gb-pcie, 1,024 tokens of context, no prompts, 4 requests at once: verify"
    )
    told = f"verify {row.candidates} candidates a step ({row.drafts} drafts deep), {row.speedup:.2f}x"
    assert told in headline
    first, line = answer.schedule[0], tables(page)[0].iloc[0]
    for name in ("plain_tokens_per_s_per_user", "plain_tokens_per_s"):
        assert line[BY_NAME[name].title] == quantity_text(name, getattr(first, name))
    assert line["heads"] == str(first.drafts)
    breakdown = next(line for line in commands(page) if line.startswith("medusa-sim sweep"))
    step, both = csv_rows(printed(breakdown))[0], answer.steps_at(4, 1024, scheduled=True)
    assert step["candidates"] == str(both.candidates) == shown["Candidates"]
    assert float(step["decode_step_us"]) == pytest.approx(float(both.plain.time_us))
    assert float(step["verify_step_us"]) == pytest.approx(float(both.speculative.time_us))
    page.select_slider(key="batch").set_value(48).run()  # a slider that moves is followed
    assert not page.exception
    assert metrics(page) != shown
    assert metrics(page)["Speedup"] == f"{answer.scheduled_row_at(48, 1024).speedup:.2f}x"


@pytest.mark.parametrize(
    ("url", "count"),
    [
        ({"gpu": "h100-sxm", "seq": 2000}, "Candidates"),
        ({"gpu": "h100-sxm", "model": "qwen3-30b-a3b", "tp": 2, "drafter": "eagle3", "acceptance": "0.6"},
         "Drafts"),
    ],
)  # fmt: skip
def test_the_command_gives_the_same_numbers(opened: Opened, url: dict[str, Any], count: str) -> None:
    page = opened("answer", batch=4, batch_max=8, **url)
    command = next(line for line in commands(page) if "--by-count" in line)
    assert ("--tp 2" in command) == ("**qwen3-30b-a3b on 2 x h100-sxm under" in page.success[0].value)
    rows, shown = csv_rows(printed(command)), metrics(page)
    row = next(row for row in rows if row["batch"] == "4" and row[count.lower()] == shown[count])
    assert shown["Speedup"] == f"{float(row['speedup']):.2f}x"
    if "seq" in url:
        table = count_table(
            answers.recommendation(set_up(gpu="h100-sxm", seq_len=2000), Question(batch_max=8)).cells.by_count
        )
        assert [float(row["speedup"]) for row in rows] == pytest.approx(table.column("speedup").to_pylist())


def test_every_input_changes_the_answer(opened: Opened) -> None:
    before = metrics(opened("answer", batch_max=32))
    changes = {"gpu": "l40s", "model": "llama-3-8b", "seq": 16000, "batch": 32, "heads": 1, "tp": 2}
    for name, value in changes.items():
        assert metrics(opened("answer", batch_max=32, **{name: value})) != before, name


def test_do_not_enable_is_stated_plainly(opened: Opened) -> None:
    page = opened("answer", drafter="draft-model", draft_model="llama-2-7b", acceptance="0.3", batch=8)
    assert "8 requests at once: do not enable speculation" in page.error[0].value
    assert metrics(page)["Drafts"] == "off"


@pytest.mark.parametrize(
    ("runtime", "drafter"),
    [
        ("cuda-graph", "medusa"), ("vllm-0.33", "eagle"), ("sglang-0.5", "eagle"),
        ("tensorrt-llm-1.2", "eagle3"), ("llama-cpp", "eagle3"),
    ],
)  # fmt: skip
def test_launch_settings_are_those_of_the_command(opened: Opened, runtime: str, drafter: str) -> None:
    page = opened("answer", runtime=runtime, drafter=drafter, batch_max=16, draft_path="x")
    assert any("Ignored" in each.value for each in page.warning) == (runtime == "cuda-graph")
    told = next(line for line in commands(page) if "--export" in line)
    assert printed(told).strip() in [code.value.strip() for code in page.code]


@pytest.mark.parametrize("runtime", ["vllm-0.33", "tensorrt-llm-1.2", "llama-cpp"])
def test_an_engine_without_trees_gets_no_trees_number(opened: Opened, runtime: str) -> None:
    drafter = "medusa" if runtime == "vllm-0.33" else "eagle3"
    url = {"runtime": runtime, "drafter": drafter, "batch_max": 8}
    chosen = set_up(runtime=runtime, drafter=drafter)
    assert chosen.chain_only
    for row in answers.recommendation(chosen, Question(batch_max=8)).schedule:
        assert row.chain
        assert row.candidates == row.drafts + 1
    page = opened("answer", **url)
    assert re.search(r"run \d+ drafts? a step", page.success[0].value)
    assert "candidates" not in page.success[0].value
    assert all("--chain-only" in told for told in commands(page))
    mine = opened("tree", **{**url, "kind": "my paths", "paths": "[[0], [1]]"})
    assert "verifies chains only" in mine.error[0].value
    assert not metrics(mine)
    assert not mine.success


@pytest.mark.parametrize("runtime", ["cuda-graph", "vllm-0.33"])
@pytest.mark.parametrize("batch", [1, 8])
def test_headline_schedule_tree_and_settings_name_one_answer(
    opened: Opened, runtime: str, batch: int
) -> None:
    page = opened("answer", runtime=runtime, batch=batch)
    row = answers.row_at(set_up(runtime=runtime), batch)
    cells = next(table for table in tables(page) if "batch" in table)
    ranges = cells["batch"].str.split("..", regex=False)
    mine = cells[[int(span[0]) <= batch <= int(span[-1]) for span in ranges]].iloc[0]
    if row.chain:
        assert mine["drafts"] == metrics(page)["Drafts"] == str(row.drafts)
    else:
        assert mine["candidates"] == metrics(page)["Candidates"] == str(row.candidates)
        assert mine["heads"] == str(row.drafts)
    tree = opened("tree", runtime=runtime, batch=batch)
    assert metrics(tree)["Candidates"] == str(row.candidates)
    if runtime == "vllm-0.33":  # of a step without prompts, which the other page has beside the server's
        assert metrics(tree)["Speedup of a step"] == f"{row.step_speedup:.2f}x"
        assert f"Of the step alone: {row.step_speedup:.2f}x" in text_of(page)
    else:
        assert metrics(tree)["Speedup"] == metrics(page)["Speedup"]
    assert metrics(tree)["Drafts deep"] == str(row.drafts)
    if runtime == "vllm-0.33":
        chosen = set_up(runtime=runtime)
        usual = answers.usual_request(chosen)
        settings = answers.launch_settings(chosen, Question(batch_max=64, request=usual), "x")
        assert settings.plan is not None
        drafts = settings.plan.drafts_at(batch)
        said = [part.value for part in page.markdown if f"{drafts} drafts at batch {batch}" in part.value]
        assert bool(said) == (drafts != row.drafts)


def test_a_typed_rate_answers(opened: Opened) -> None:
    for given in ("0.7", "0.78,0.60,0.42", "2.1@3", "60%@3"):
        page = opened("answer", drafter="ngram", acceptance=given, batch_max=8)
        assert page.success
        told = next(line for line in commands(page) if "--by-count" in line)
        assert shlex.split(told)[shlex.split(told).index("--acceptance") + 1] == given
        assert printed(told)
    page = opened("answer", acceptance="/etc/passwd")
    assert page.error[0].value.startswith("Acceptance '/etc/passwd': give a measured profile")


def test_a_request_stands_beside_the_decoding_gain(opened: Opened) -> None:
    page = opened("answer", prompt=2000, output_tokens=300, batch=2, batch_max=8)
    answer = answers.recommendation(set_up(seq_len=2150), Question(batch_max=8, request=(2000, 300)))
    told = answer.request_at(2, 2150)
    assert told is not None
    assert "2,000 in, 300 out" in page.success[0].value
    assert metrics(page)["End to end"] == f"{told.request_speedup:.2f}x"
    row = answer.scheduled_row_at(2, 2150)  # the request half way through its output
    assert metrics(page)["Speedup"] == f"{row.speedup:.2f}x"  # of a server that reads such prompts
    assert max(told.request_speedup, row.speedup) < row.step_speedup


def test_a_batch_without_room_says_what_fits_and_gains(opened: Opened) -> None:
    page = opened("answer", model="vicuna-33b", batch=64, batch_max=64)
    fits = answers.recommendation(set_up(model="vicuna-33b"), Question(batch_max=64)).where_it_fits[0]
    told = f"Batch {fits.batch_max} is the largest that fits with it: {fits.speedup:.2f}x"
    assert told in page.error[0].value
    assert not page.success
    assert not drawn(page)
    page = opened("answer", gpu="l40s", model="llama-3.1-70b", drafter="eagle3", batch=8)
    assert "GB" in page.error[0].value
    assert "“GPUs” 4" in text_of(page)
    assert not drawn(page)  # no curve follows "does not fit"
    assert not metrics(page)


@pytest.mark.parametrize(
    "chosen",
    [
        {
            "runtime": "tensorrt-llm-1.2",
            "model": "llama-3.1-8b",
            "drafter": "eagle3",
            "gpu": "b200",
            "tp": 16,
        },
        {
            "runtime": "sglang-0.5",
            "model": "qwen3-30b-a3b",
            "drafter": "eagle3",
            "acceptance": "0.6",
            "tp": 2,
        },
        {"gpu": "rtx-4090", "weight_dtype": "int4", "kv_dtype": "fp8"},
        {"runtime": "cuda-graph", "acceptance": "paper-fig21", "seq_len": 4000},
        {"runtime": "hf-eager", "model": "vicuna-33b"},
        {"runtime": "vllm-0.33", "drafter": "ngram", "acceptance": "0.1"},
        {"runtime": "vllm-0.33", "drafter": "suffix"},  # typical rates
        {"model": "qwen3-8b"},  # acceptance of another model
    ],
)
def test_every_warning_of_the_command_stands_on_the_page(opened: Opened, chosen: dict[str, Any]) -> None:
    asked = set_up(**chosen, is_step="seq_len" in chosen)
    answer = answers.recommendation(asked, Question(batch_max=64, request=answers.usual_request(asked)))
    names = {"runtime": "runtime", "seq_len": "seq"}
    page = opened("answer", batch_max=64, **{names.get(name, name): value for name, value in chosen.items()})
    lines, text = warnings(answer), text_of(page)
    assert lines
    for line in lines:
        words = re.sub(r"\\([$*_~<\[\]`])", r"\1", show.in_words(line))
        assert words[1:] in text, words
    if "weight_dtype" in chosen:
        assert "borrowed from l40s" in text
        assert "unpacking of a KV cache in fp8" in text
        assert "--weight-dtype int4" in next(line for line in commands(page) if "--by-count" in line)
    if "seq_len" in chosen:
        assert any("**Context**: " in each.value for each in page.markdown)


def test_a_fault_is_one_line_with_a_link(opened: Opened, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object) -> object:
        raise ZeroDivisionError("division by zero in /some/where.py")

    monkeypatch.setattr(answers, "recommendation", broken)
    with pytest.raises(AssertionError, match=r"ZeroDivisionError.*\?gpu=l40s") as caught:
        opened("answer", gpu="l40s")
    assert "where.py" not in str(caught.value)
    assert "Traceback" not in str(caught.value)


@pytest.mark.parametrize(
    ("url", "refused"),
    [
        ({"drafter": "draft-model", "draft_model": "qwen3-0.6b", "acceptance": "0.7"}, "cannot speculate"),
        ({"drafter": "mtp", "acceptance": "0.7"}, "no MTP module"),
        ({"acceptance": "0.9,0.95"}, "acceptance"),
    ],
)
@pytest.mark.parametrize("view", ["answer", "tree"])
def test_what_cannot_be_answered_says_why(
    opened: Opened, view: str, url: dict[str, str], refused: str
) -> None:
    assert refused in opened(view, batch=2, **url).error[0].value


def test_links_may_call_inputs_as_options(opened: Opened) -> None:
    page = opened("answer", **{"seq": 2000, "weight-dtype": "int4", "batch-max": 8})
    assert page.number_input(key="seq").value == 2000
    assert page.selectbox(key="weight_dtype").value == "int4"
    assert not any("Ignored" in warning.value for warning in page.warning)
    assert metrics(page) == metrics(opened("answer", seq=2000, weight_dtype="int4", batch_max=8))


def test_bad_values_in_the_link_are_ignored_with_a_note(opened: Opened) -> None:
    page = opened("answer", gpu="no-such", batch="x", seq=-5, nonsense=1)
    note = page.warning[0].value
    assert all(name in note for name in ("gpu=no-such", "batch=x", "seq=-5", "nonsense"))
    assert "\n" not in note
    assert metrics(page) == metrics(opened("answer", gpu="h100-sxm"))  # what the app opens on


def test_an_own_config_is_read_strictly() -> None:
    content = EXAMPLE.read_bytes()
    assert uploads.model_bytes("config.json", content) == content
    own = set_up(model="config.json", config=content)
    assert answers.published_model(own).layers == json.loads(content)["num_hidden_layers"]
    assert answers.recommendation(own, Question(batch_max=8)).schedule
    broken = (b"{not json", b"[]", b'{"model_type": "llama"}', b"\xff\xfe\x00")
    cases = (
        (b"", "empty"),
        (b"x" * 8_000_001, "at most 8,000,000"),
        *((bad, "config.json") for bad in broken),
    )
    for bad, told in cases:
        with one_line(MedusaSimError, match=told):
            uploads.model_bytes("config.json", bad)


@pytest.mark.parametrize(
    "chosen",
    [
        {}, {"gpu": "h100-sxm", "model": "llama-3.1-8b", "drafter": "eagle3"},
        {"drafter": "draft-model", "draft_model": "llama-2-7b", "acceptance": "0.3", "runtime": "vllm-0.33"},
    ],
)  # fmt: skip
def test_rings_and_frames_are_what_is_recommended(chosen: dict[str, Any]) -> None:
    answer = answers.recommendation(set_up(**chosen), Question(batch_max=16))
    counts = scheduled_counts(answer.rows_at(1024))
    assert set(counts) == set(range(1, 17))
    shown = {batch: counts[batch] for batch in (1, 16)}
    view = view_of(answer.cells.by_count, 1024, sorted(set(counts.values())), shown)
    lines = speedup_chart(view, "", chains=answer.chains)
    assert [name.partition(":")[0] for name in lines.names] == ["batch 1", "batch 16"]
    cells = heat_map(view, "", chains=answer.chains).cells
    framed = {cell.batch: cell.count for cell in cells if cell.is_best}
    for batch, ring in zip((1, 16), (each for each in lines.series if each.marker == "o"), strict=True):
        row = answer.scheduled_row_at(batch, 1024)
        named = row.drafts if answer.chains else row.candidates
        assert list(ring.x) == [framed[batch]] == [named]
        assert list(ring.y) == pytest.approx([row.speedup])
        assert f"batch {batch}: {'off' if row.candidates == 1 else named}" in ring.name


def test_the_breakdown_adds_up() -> None:
    from medusa_sim.step.step import decode_step, speculative_step

    setting = answers.scenario_of(set_up()).setting
    plain, speculative = decode_step(setting, 4, 1024), speculative_step(setting, 4, 1024, 16)
    both = [("plain", plain), ("speculative", speculative)]
    rows = step_rows(both)
    for name, step in both:
        mine = [row for row in rows if row["step"] == name]
        assert sum(row["time_us"] for row in mine) == pytest.approx(float(step.time_us))
        assert sum(row["share"] for row in mine) == pytest.approx(1.0)
    ends = [row["to"] for row in bars_spec(two_steps(both))["data"]["values"]]
    assert max(ends) == pytest.approx(max(float(plain.time_us), float(speculative.time_us)) / 1e3)


def test_the_map_marks_where_speculation_begins_to_lose() -> None:
    answer = answers.planned(set_up(runtime="cuda-graph"))
    counts = scheduled_counts(answer.rows_at(1024))
    shown = {batch: counts[batch] for batch in (1, 8, 64)}
    chart = heat_map(view_of(answer.cells.by_count, 1024, [1, 2, 4, 8, 16, 32, 64], shown), "")
    below, beside = chart.crossings
    assert beside
    speedup = {(cell.batch, cell.count): cell.speedup for cell in chart.cells}
    (crossed,) = [count for batch, count in below if batch == 64]
    known = list(chart.counts)
    assert speedup[64, crossed] >= 0.995 > speedup[64, known[known.index(crossed) + 1]]
    rules = [each for each in map_spec(chart)["layer"] if each["mark"]["type"] == "rule"]
    assert [len(each["data"]["values"]) for each in rules] == [len(below), len(beside)]


def test_commands_break_between_options_only() -> None:
    words = [
        "recommend", "--gpu", "a100-80gb-pcie", "--candidates-max", "128", "--by-count", "--batch", "1..64",
    ]  # fmt: skip
    told = show.command([*words, "1..64", "--model", "a model", "--format", "csv"])
    shown = downloads.wrapped(f"{told}\n{told}")
    lines = shown.splitlines()
    assert max(map(len, lines)) <= 66
    assert shlex.split(shown.replace("\\\n", " ")) == [*shlex.split(told), *shlex.split(told)]
    for line in lines:
        assert line.rstrip("\\ ").split()[-1] not in {"--gpu", "--batch", "--candidates-max", "--model"}


def test_the_slider_reaches_what_memory_holds(opened: Opened) -> None:
    chosen = set_up(gpu="h100-sxm", model="llama-3.1-8b", drafter="eagle3", runtime="vllm-0.33")
    page = opened("answer", gpu="h100-sxm", model="llama-3.1-8b", drafter="eagle3", runtime="vllm-0.33")
    held = answers.planned(chosen).schedule[0].max_batch_without
    assert page.select_slider(key="batch").options[-1] == str(held) == str(answers.room(chosen))
    assert f"--batch 1..{held}" in commands(page)[0]


def test_what_is_kept_stands_beside_what_is_asked(opened: Opened) -> None:
    url = {"gpu": "h100-sxm", "model": "llama-3.1-8b", "drafter": "eagle3", "runtime": "vllm-0.33"}
    kept = urlencode({**url, "gpu": "l40s", "batch": 8})
    page = opened("beside", kept=kept, **url)
    (told,) = tables(page)
    told = told.set_index("what")
    assert list(told.index[:3]) == ["GPU", "Requests at once", "speedup"], "what differs first"
    assert [*told["A"][:2], *told["B"][:2]] == ["l40s", "8", "h100-sxm", "1"]
    for side, gpu, batch in (("A", "l40s", 8), ("B", "h100-sxm", 1)):
        row = answers.row_at(set_up(**{**url, "gpu": gpu}), batch)
        assert told[side]["speedup"] == f"{row.speedup:.2f}x"
    assert len(drawn(page)) == 1
    assert "Keep an answer" in opened("beside", **url).info[0].value
    same = opened("beside", kept=urlencode({**url, "batch": 1}), **url)
    assert any("equally many tokens/s" in line.value for line in same.markdown)
