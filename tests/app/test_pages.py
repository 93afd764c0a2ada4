"""Every page: no exception, the package's values, changes followed."""

import dataclasses
import json
import shlex
from typing import Any

import answers
import downloads
import measured
import notes
import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
import show
import uploads
from charts import answer, tree, validation
from charts.draw import lines_spec, map_spec
from chosen import PageArguments
from pages_drawn import EIGHT_B, FEW, drawn
from pages_read import (
    Opened,
    commands,
    csv_rows,
    metrics,
    printed,
    set_up,
    table_of,
    tables,
    text_of,
    unfolded,
)
from pages_read import charts as chart_specs
from views.evidence import EVERY_KERNEL, PAPERS

from medusa_sim import data
from medusa_sim.acceptance.heads import node_probabilities, optimal_order
from medusa_sim.acceptance.profile import load_acceptance
from medusa_sim.errors import DataError
from medusa_sim.gpus.gpu import load_gpu
from medusa_sim.gpus.inheritance import fitted_kernels
from medusa_sim.grid.quantity import BY_NAME
from medusa_sim.lab.reproduce import TARGETS
from medusa_sim.lab.reproduce.charts import published_chart
from medusa_sim.plan.schedule import gains_by_batch, scheduled_counts
from medusa_sim.report.charts.roofline import roofline_chart
from medusa_sim.report.charts.sweep import heat_map, speedup_chart
from medusa_sim.report.length_view import view_of
from medusa_sim.scenario.question import Question

pytestmark = pytest.mark.usefixtures("short_loads")
VIEWS = ("answer", "load", "tree", "compare", "evidence")


def test_the_named_operators_add_up_to_both_steps(opened: Opened) -> None:
    answer = answers.recommendation(set_up(), Question(batch_max=64))
    count, found = answers.operators(set_up(), answer, 8)
    both = answer.steps_at(8, 1024, scheduled=True)
    assert count == both.candidates
    for name, step in (("plain_us", both.plain), ("speculative_us", both.speculative)):
        assert sum(row[name] for row in found) == pytest.approx(float(step.time_us))
    shown = tables(opened("answer", batch=8, look="operators"))[0]
    assert list(shown["operator"]) == [row["op"] for row in found]
    assert {"qkv_proj", "attention", "gate_up_proj"} <= set(shown["operator"])


def test_what_would_change_the_answer_is_what_recommend_says(opened: Opened) -> None:
    chosen = PageArguments(**EIGHT_B)
    usual = answers.usual_request(chosen)
    changes = {f"{row['what']} {row['change']}": row["speedup"] for row in answers.changes(chosen, 8, usual)}
    assert {"acceptance -10 %", "acceptance +10 %"} <= changes.keys()
    longer = dataclasses.replace(chosen, seq_len=chosen.seq_len + 896, request=(1792, 256))
    for name, other, batch in (
        ("prompt 1,792", longer, 8),
        ("batch 16", chosen, 16),
        ("engine sglang", dataclasses.replace(chosen, runtime="sglang-0.5"), 8),
    ):
        answer = answers.recommendation(
            other, Question(batch_max=batch, request=other.request or usual, batch_min=batch)
        )
        speedup = answer.scheduled_row_at(batch, other.seq_len).speedup
        assert changes[name] == pytest.approx(speedup), name
    assert changes["acceptance -10 %"] < changes["acceptance +10 %"]
    page = opened("answer", look="what would change it", **EIGHT_B, batch=8)
    bars = chart_specs(page)[-1]["layer"][0]["data"]["values"]
    assert {bar["name"]: bar["speedup"] for bar in bars} == changes


@pytest.mark.parametrize(
    "url", [{"tp": 2, "ep": "true"}, {"weight_dtype": "int4", "kv_dtype": "fp8"}, {"runtime": "sglang"}]
)
def test_roofline_follows_the_whole_set_up(opened: Opened, url: dict[str, Any]) -> None:
    url = {"gpu": "h100-sxm", "model": "qwen3-30b-a3b", "drafter": "eagle3", "acceptance": "0.6", **url}
    page = opened("answer", look="roofline", batch=16, batch_max=16, **url)
    rows = csv_rows(printed(next(told for told in commands(page) if told.startswith("medusa-sim roofline"))))
    layers = chart_specs(page)[-1]["layer"]
    shown = next(each["data"]["values"] for each in layers if "time_us" in each["data"]["values"][0])
    assert [float(row["time_us"]) for row in rows] == pytest.approx([row["time_us"] for row in shown])


@pytest.mark.parametrize(
    ("gpu", "kernels"), [("h100-sxm", "sglang"), ("b200", "trtllm"), ("h100-sxm", "nccl")]
)
def test_every_fitted_kernel_of_a_set_is_listed(opened: Opened, gpu: str, kernels: str) -> None:
    known = fitted_kernels(load_gpu(gpu).kernels[kernels])
    assert len(measured.fits_of(gpu, kernels)) == len(known)
    shown = table_of(unfolded(opened("evidence", gpu=gpu, kernels=kernels), EVERY_KERNEL), "kernel", "fit")
    assert len(shown) == len(known)


def test_links_may_use_other_names(opened: Opened) -> None:
    eagle = {**EIGHT_B, "seqs": 16}
    page = opened("load", **eagle, policy="schedule", runtime="sglang")
    assert "--policy none,schedule" in commands(page)[0]
    assert "--runtime sglang-0.5" in commands(page)[0]
    assert not any("Ignored" in warning.value for warning in page.warning)
    section = opened("evidence", view="method", section="Symbols")
    assert not any("Ignored" in warning.value for warning in section.warning)
    other = opened("load", **eagle, policy="schedule by batch", runtime="sglang-0.5")
    assert metrics(page) == metrics(other)
    assert "h100-sxm" in next(each.value for each in opened("answer", gpu="h100", batch_max=4).warning)


def test_tree_figures_are_the_packages(opened: Opened) -> None:
    page = opened("tree", size=40, model="vicuna-13b", heads=3, runtime="cuda-graph")
    chosen = set_up(model="vicuna-13b", heads=3, runtime="cuda-graph")
    best = answers.best_tree(chosen, 40, 1)
    assert metrics(page)["Tokens per step"] == f"{answers.tree(chosen, best, 1).tokens_per_step:.2f}"
    assert metrics(page)["Candidates"] == "40"
    assert metrics(page)["Drafts deep"] == str(best.depth)
    command = next(line for line in commands(page) if "tree build" in line)
    told = json.loads(printed(f"{command} --format json"))
    assert sorted(map(tuple, told["paths"])) == sorted(best.paths)


def test_own_paths_and_widths(opened: Opened) -> None:
    page = opened("tree", kind="my paths", paths="[[0], [1], [0, 0]]", runtime="cuda-graph")
    assert metrics(page)["Candidates"] == "4"
    assert metrics(page)["Drafts deep"] == "2"
    refused = ("[[0, 0]]", "__import__('os')", "[[300000000]]", "[[0],[0,0],[99999999999]]", "{}")
    for paths in refused:  # some would fill memory
        (error,) = opened("tree", kind="my paths", paths=paths).error
        assert "\n" not in error.value
    page = opened("tree", kind="widths per head", w1=3, w2=2, w3=0, runtime="cuda-graph")
    assert metrics(page)["Candidates"] == "10"
    page = opened("tree", kind="widths per head", w1=16, w2=16, w3=16)
    assert "at most 256" in page.error[0].value
    page = opened("tree", kind="widths per head", w1=0)
    assert "at least one guess" in page.error[0].value


def test_validation_scores_are_the_commands(opened: Opened) -> None:
    page = opened("evidence", kernels="paper", rows="medusa_table8.csv")
    command = next(line for line in commands(page) if "validate" in line)
    rows = csv_rows(printed(f"{command} --format csv"))
    whole = [row for row in rows if row["size"] == "all"]
    for row in whole:
        assert metrics(page)[f"{row['op']} {row['dtype']}"] == f"{100 * float(row['mean']):.1f} %"


def test_every_target_of_the_papers_is_shown(opened: Opened) -> None:
    page = opened("evidence", kernels="paper")
    assert page.selectbox(key="target").options == [target.title for target in TARGETS.values()]
    for target in ("table1", "figure9", "figure21", "figure7b", "rsd-figure1", "rsd-figure5"):
        unfolded(page, PAPERS).selectbox(key="target").set_value(target)
        unfolded(page, PAPERS)
        assert TARGETS[target].title in text_of(page)
        assert not page.exception
        assert not page.error
        assert chart_specs(page)


def test_baselines_differ(opened: Opened) -> None:
    frame = measured.reproduced("figure22").frame
    fixed, same = (published_chart(frame, f"speedup_{each}").series for each in ("fixed", "same"))
    alike = {
        kind: [
            np.array_equal(one.y, other.y) for one, other in zip(fixed, same, strict=True) if one.line == kind
        ]
        for kind in {each.line for each in fixed}
    }
    assert all(alike.pop("")), "what is published"
    assert not all(same for lines in alike.values() for same in lines)
    drawn(lines_spec(published_chart(frame, "speedup_fixed")))


def test_borrowed_kernels_and_acceptance_are_shown(opened: Opened) -> None:
    page = opened("evidence", gpu="rtx-4090")
    assert any("kernels are borrowed from" in caption.value for caption in page.caption)
    assert not page.warning
    lent = text_of(opened("compare", model="qwen3-8b", drafter="medusa", **FEW))
    assert "cceptance medusa1-vicuna-7b was measured on another model" in lent
    scenario = answers.scenario_of(set_up(gpu="rtx-4090"))
    assert "was not measured" in notes.accuracy(scenario)


def test_uploads_are_read_as_data() -> None:
    assert uploads.text("a", b"[[0]]") == "[[0]]"
    with pytest.raises(DataError, match="UTF-8"):
        uploads.text("a", b"\xff\xfe")
    with pytest.raises(DataError, match="at most"):
        uploads.checked("a", b"x" * 10, 5)


@pytest.mark.filterwarnings("ignore")
def test_charts_are_valid_specifications() -> None:
    points = answers.roofline(set_up(gpu="a40"), 4, 16)
    drawn(lines_spec(roofline_chart(points, load_gpu("a40"), "fp16")))
    chosen = PageArguments(**EIGHT_B)  # whose changes another test asks for
    drawn(answer.tornado_chart(answers.changes(chosen, 8, answers.usual_request(chosen)), 2.0))
    rows = gains_by_batch(answers.recommendation(set_up(), Question(batch_max=8)).rows_at(1024))
    drawn(answer.batch_chart(rows, 4, chains=False))
    heads = load_acceptance("medusa1-vicuna-7b").heads
    assert heads is not None
    for size in (2, 64):
        best = optimal_order(heads, size).tree(size)
        drawn(tree.tree_chart(best, node_probabilities(best, heads)))
    view = view_of(
        answers.recommendation(set_up(), Question(batch_max=8)).cells.by_count, 1024, [1, 2, 4], {1: 2, 8: 1}
    )
    drawn(map_spec(heat_map(view, "")))
    drawn(lines_spec(speedup_chart(view, "", chains=True)))
    drawn(tree.budget_chart(answers.tree_curve(set_up(), 1, 16), (2, 1.5, 1.4)))
    drawn(validation.band_chart(measured.fits_of("h100-sxm", "sglang")))
    frame = pd.DataFrame({"time_us": [1.0, 2.0], "predicted_us": [1.1, 1.9], "op": ["a", "b"]})
    drawn(lines_spec(validation.scatter_chart(frame, "time_us", "predicted_us", "us", ("op",))))
    picture = downloads.picture(tree.tree_chart(best, node_probabilities(best, heads)), "png")
    assert isinstance(picture, bytes)
    assert picture.startswith(b"\x89PNG")


def test_no_count_of_the_schedule_is_missing_from_the_chart() -> None:
    chosen = PageArguments(gpu="l40s", model="qwen3-8b", drafter="eagle3", runtime="sglang-0.5")
    found = answers.recommendation(chosen, Question(batch_max=256))
    rows, room = gains_by_batch(found.rows_at(1024)), found.scheduled_row_at(64, 1024).max_batch_with
    spec = answer.batch_chart(rows, 64, chains=True)
    ribbon = next(each for each in spec["layer"] if "x2" in each["encoding"])["data"]["values"]
    counts, drawn_rows = scheduled_counts(found.rows_at(1024)), spec["data"]["values"]
    last = drawn_rows[-1]["batch"]
    for batch in range(1, last + 1):
        (own,) = [each["text"] for each in ribbon if each["batch"] <= batch][-1:]
        assert own == {1: "off", 2: "1 draft"}.get(counts[batch], f"{counts[batch] - 1} drafts"), batch
    assert room <= last < len(rows)
    assert drawn_rows[-1]["speedup"] > 1.0, "the end of memory is no speedup of 1"
    texts = [row["text"] for each in spec["layer"] if each["mark"]["type"] == "text"
             for row in each["data"]["values"]]  # fmt: skip
    assert texts[0] == f"{counts[1] - 1} drafts"
    assert f"no room beyond {last}" in texts
    drawn(spec)


def test_the_load_shows_where_queues_grow(opened: Opened) -> None:
    page = opened("load", **EIGHT_B, seqs=32)
    axis = BY_NAME["rate_per_s"].axis
    spec = next(each for each in chart_specs(page) if each["layer"][0]["encoding"]["x"]["title"] == axis)
    rates = {row["x"] for each in spec["layer"] for row in each["data"]["values"] if "x" in row}
    full = float(metrics(page)["Always full"].removesuffix("/s"))
    assert max(rates) > full > min(rates)
    told = next(line for line in commands(page) if "--rate" in line)
    assert {float(rate) for rate in told.partition("--rate ")[2].split()[0].split(",")} <= rates


def test_evidence_opens_with_what_is_near(opened: Opened) -> None:
    page = opened("evidence", **EIGHT_B)
    assert not [box for box in page.selectbox if box.key == "target"], "the papers are folded"
    far = opened("evidence", gpu="l40s", model="qwen3-8b", drafter="eagle3")
    near, away = (next(each for each in tables(one) if "differs in" in each) for one in (page, far))
    assert "inside what was measured" in text_of(page) or "measured in another version" in text_of(page)
    assert near["differs in"][0] == "nothing"
    assert "engine" not in away["differs in"][0]
    assert len(near) == len(away), "all that is held"
    assert near["error"].str.endswith(" %").all()
    answer = opened("answer", gpu="l40s", model="qwen3-8b", drafter="eagle3", batch_max=4)
    assert "No public measurement near this set-up is held" in text_of(answer)


def test_hover_says_dollars_and_no_drafts(opened: Opened) -> None:
    page = opened("compare", **EIGHT_B, **FEW)
    layers = chart_specs(page)[0]["layer"]
    tips = next(each["encoding"]["tooltip"] for each in layers if "tooltip" in each["encoding"])
    forms = {tip["title"]: tip.get("format", "") for tip in tips}
    assert forms[BY_NAME["usd_per_million_tokens"].title].startswith("$")
    assert not [form for form in forms.values() if form.endswith("s")], "SI prefixes: $ 308m"
    points = [row for each in layers for row in each["data"]["values"] if "set_up" in row]
    assert {str(row["drafts"]) for row in points} >= {"none", "3"}
    assert all(" to " in row["interval"] for row in points)


def test_downloads_are_the_command_lines_formats() -> None:
    table = pa.table({"batch": [1, 2], "speedup": [1.5, None]})
    assert downloads.csv_bytes(table) == b"batch,speedup\n1,1.5\n2,\n"
    assert json.loads(downloads.json_bytes(table, "medusa-sim x", "rows", {}))["rows"][1]["speedup"] is None


def test_the_report_marks_what_is_recommended(monkeypatch: pytest.MonkeyPatch) -> None:
    """The schedule shares counts between batches, which a batch's own best does not."""
    from medusa_sim.report.recommend import page

    views = []
    drawn = page.view_pictures
    monkeypatch.setattr(page, "view_pictures", lambda *a, **k: views.append(a[0]) or drawn(*a, **k))
    shown = set_up()
    answer = answers.recommendation(shown, Question(batch_max=64))
    text = notes.report_html(shown, answer, "x")
    scheduled = scheduled_counts(answer.rows_at(shown.seq_len))
    (view,) = views
    marked = dict(zip(view.batch.tolist(), view.counts[view.best].tolist(), strict=True))
    assert marked == {size: scheduled[size] for size in marked}
    own = {size: answer.scheduled_row_at(size, shown.seq_len).best_candidates for size in marked}
    assert own != marked
    assert "what is recommended" in text
    assert "best count of the grid" not in text


@pytest.mark.parametrize("size", ["1m", "3m"])
def test_steps_and_runs_of_the_decoder_are_those_of_the_command(opened: Opened, size: str) -> None:
    gpu = f"cpu-emerald-rapids-{size}"
    pages = {latency: opened("evidence", gpu=gpu, latency=latency) for latency in ("measured", "calibrated")}
    for latency, page in pages.items():
        assert not page.exception
        told = next(line for line in commands(page) if "validate decoder" in line)
        assert f"--latency {latency}" in told
        folder = data.find("profiles/decoder", gpu)
        assert folder is not None
        cells = measured.decoder_cells(gpu, str(folder), latency)
        assert set(cells["batch"]) == {1, 2, 4, 8}
        assert (cells["predicted_us"] > 0).all()
        spec = next(spec for spec in chart_specs(page) if "step (us)" in json.dumps(spec))
        assert len(cells) in [len(layer["data"]["values"]) for layer in spec["layer"] if "data" in layer]
    found = {
        latency: [table.to_csv() for table in tables(page) if "quantity" in table]
        for latency, page in pages.items()
    }
    assert len(found["measured"]) == 1
    assert found["measured"] != found["calibrated"]


def test_a_device_measured_in_one_dtype_takes_it(opened: Opened) -> None:
    gpu = "cpu-emerald-rapids-50m"
    page = opened("answer", gpu=gpu, model="llama-68m", runtime="kernel", batch_max=8)
    assert not page.exception
    assert not any("dtype" in error.value for error in page.error)
    command = next(line for line in commands(page) if "--by-count" in line)
    assert "--dtype fp32" in command
    assert printed(command)


def test_the_report_is_of_the_set_up_shown() -> None:
    def report_of(shown: PageArguments) -> str:
        return notes.report_html(
            shown, answers.recommendation(shown, Question(batch_max=4)), show.command(list(shown.options))
        )

    assert "<html" in report_of(set_up())[:200]
    other = report_of(set_up(acceptance="python-stdlib-medusa-1", heads=3))
    assert "--acceptance python-stdlib-medusa-1" in other
    assert "--heads 3" in other
    answer = answers.recommendation(set_up(), Question(batch_max=4))
    known, own = (notes.schedule_files(each, answer, "x") for each in (set_up(), set_up(config=b"{}")))
    assert [suffix for suffix, _, _ in known] == ["csv", "json", "html"]
    assert [suffix for suffix, _, _ in own] == ["csv", "json"]


UNUSUAL: tuple[dict[str, object], ...] = (
    {"gpu": "cpu-emerald-rapids-3m", "model": "llama-68m", "runtime": "kernel"},
    {"gpu": "rtx-4090", "weight_dtype": "int4", "kv_dtype": "fp8", "heads": 3, "prompt": 100,
     "output_tokens": 9, "batch": 2, "batch_max": 8},
    {"gpu": "l40s", "runtime": "vllm-0.33", "drafter": "draft-model", "acceptance": "0.8,0.6",
     "kind": "my paths"},
)  # fmt: skip


@pytest.mark.parametrize(
    ("view", "url"),
    [
        pytest.param(
            view, url, marks=[] if (turn + at) % 3 == 0 else [pytest.mark.nightly], id=f"{view}-{at}"
        )
        for turn, view in enumerate(VIEWS)
        for at, url in enumerate(UNUSUAL)
    ],
)
def test_commands_of_every_page_are_those_that_the_command_line_takes(
    opened: Opened, view: str, url: dict[str, object]
) -> None:
    from medusa_sim.cli import cli

    for told in commands(opened(view, **(FEW if view == "compare" else {}), **url)):
        program, name, *words = shlex.split(told)
        assert program == "medusa-sim"
        context = cli.make_context("medusa-sim", [name, *words], resilient_parsing=False)
        command = cli.get_command(context, name)
        assert command is not None
        command.make_context(name, words, parent=context)


@pytest.mark.parametrize("view", ["answer", "evidence"])
def test_models_that_were_measured_on_a_device_are_offered_with_it(opened: Opened, view: str) -> None:
    url = {"gpu": "cpu-emerald-rapids-3m", "model": "llama-3m", "runtime": "kernel", "seq": 512}
    page = opened(view, **url, **({"view": "numbers in use"} if view == "evidence" else {}))
    assert not page.error
    assert not any("Ignored" in warning.value for warning in page.warning)
    told = next(line for line in commands(page) if "llama-3m" in line and " -o " not in line)
    assert "llama-3m/config.json" in told
    assert printed(told)
    assert "llama-3m" not in opened("evidence", view="numbers in use").selectbox(key="model").options
