"""The page Tree: the tree lies on the curve where it is the best one, large masks are handed out as files."""

from __future__ import annotations

import io
from typing import Any

import numpy as np
import pytest

pytest.importorskip("streamlit")

import answers
import show
from charts import tree as charts
from pages_read import Opened, commands, csv_rows, figures, metrics, printed, set_up
from pages_read import charts as drawn
from streamlit.testing.v1 import AppTest

from medusa_sim.acceptance.tree import CandidateTree


def budget(page: AppTest) -> tuple[dict[str, dict[int, float]], dict[str, dict[str, Any]]]:
    """Both lines of the budget chart by count, and the tree at hand on each of them."""
    spec = next(
        each for each in drawn(page) if "layer" in each and "what" in str(each["layer"][0]["encoding"])
    )
    lines: dict[str, dict[int, float]] = {}
    for row in spec["layer"][0]["data"]["values"]:
        lines.setdefault(row["what"], {})[row["candidates"]] = row["value"]
    return lines, {row["what"]: row for row in spec["layer"][1]["data"]["values"]}


@pytest.mark.parametrize(
    ("size", "batch", "runtime"), [(2, 1, "hf-eager"), (16, 8, "cuda-graph"), (200, 2, "cuda-graph")]
)
def test_the_best_tree_of_its_size_lies_on_the_curve(
    opened: Opened, size: int, batch: int, runtime: str
) -> None:
    lines, here = budget(opened("tree", size=size, batch=batch, gpu="h100-sxm", runtime=runtime))
    for what, row in here.items():
        assert row["candidates"] == size
        assert row["value"] == pytest.approx(lines[what][size])


@pytest.mark.parametrize(
    "url",
    [
        {},
        {"runtime": "hf-eager", "batch": 4},
        {"model": "vicuna-13b"},
        {"drafter": "eagle"},
        {"runtime": "vllm-0.33", "drafter": "draft-model", "acceptance": "0.7,0.5,0.4"},
    ],
)
def test_the_command_gives_the_curve(opened: Opened, url: dict[str, Any]) -> None:
    page = opened("tree", size=40, **url)
    rows = csv_rows(printed(next(told for told in commands(page) if "--by-count" in told)))
    lines, _ = budget(page)
    assert [int(row["candidates"]) for row in rows] == [*lines["speedup"]]
    for what, column in (("tokens per step", "tokens_per_step"), ("speedup", "speedup")):
        assert [float(row[column]) for row in rows] == pytest.approx([*lines[what].values()])


def test_answers_follow_what_is_asked() -> None:
    tree = CandidateTree.cartesian([3, 2])
    first = answers.tree(set_up(), tree, 2).speedup
    assert answers.tree(set_up(), tree, 2).speedup == first
    others = (
        answers.tree(set_up(gpu="l40s"), tree, 2),
        answers.tree(set_up(seq_len=200), tree, 2),
        answers.tree(set_up(), tree, 3),
        answers.tree(set_up(model="vicuna-13b"), tree, 2),
        answers.tree(set_up(), CandidateTree.cartesian([2, 2]), 2),
    )
    assert first not in [other.speedup for other in others]


def test_rates_of_a_chain_have_a_short_curve(opened: Opened) -> None:
    page = opened("tree", drafter="eagle", kind="my paths", paths="[[0], [0, 0]]")
    assert not page.error
    lines, here = budget(page)
    assert max(lines["speedup"]) == 6
    assert here["speedup"]["value"] == pytest.approx(lines["speedup"][3])


def test_ranks_of_a_fitted_tail_are_told(opened: Opened) -> None:
    def captions(paths: str) -> str:
        return " ".join(
            each.value for each in opened("tree", kind="my paths", paths=paths, runtime="cuda-graph").caption
        )

    assert "fitted tail" in captions("[[0], [11]]")
    assert "fitted tail" not in captions("[[0], [1]]")


@pytest.mark.parametrize(("size", "is_drawn"), [(128, True), (129, False), (256, False)])
def test_large_masks_are_a_line_and_a_file(opened: Opened, size: int, is_drawn: bool) -> None:
    page = opened("tree", size=size, runtime="cuda-graph")
    assert len(drawn(page)) == (3 if is_drawn else 2)
    lines = [each.value for each in page.markdown if "at most 128" in each.value]
    assert len(lines) == (0 if is_drawn else 1)
    if lines:
        assert f"{size} candidates" in lines[0]
        assert "CSV" in lines[0]
        assert "\n" not in lines[0]
    page.session_state[f"{show.FILES}mask"] = page.session_state[f"{show.FILES}mask-rows"] = True
    page.run()
    labels = [each.proto.label for each in page.get("download_button") if "mask" in each.proto.id]
    assert labels == (["PNG", "SVG", "CSV"] if is_drawn else ["CSV"])


def test_the_file_is_the_mask() -> None:
    for tree in (CandidateTree.cartesian([3, 2]), CandidateTree.chain(200)):
        text = show.csv_bytes(charts.mask_table(tree)).decode()
        read = np.loadtxt(io.StringIO(text), delimiter=",", skiprows=1)
        assert np.array_equal(read[:, 0], np.arange(tree.candidates))
        assert np.array_equal(read[:, 1:].astype(bool), tree.mask)


def test_the_interval_says_what_it_is(opened: Opened) -> None:
    page = opened("tree", acceptance="python-stdlib-medusa-1")
    found = next(each for each in figures(page) if each["Label"] == "Tokens per step")
    assert found["Delta"].endswith("(80 %)")
    assert "80 % interval from the sample sizes" in found["meaning"]
    assert "model error" in found["meaning"]


def test_the_caption_of_the_tree_says_what_is_drawn(opened: Opened) -> None:
    def caption(**url: Any) -> str:
        return str(opened("tree", runtime="cuda-graph", **url).caption[0].value)

    assert "Numbers: ranks" in caption(size=64)
    assert "Numbers" not in caption(size=65)
    assert "independent" in caption()
    assert metrics(opened("tree", size=65, runtime="cuda-graph"))["Candidates"] == "65"


def test_what_the_set_up_rests_on_stands_below_the_headline(opened: Opened) -> None:
    url = {"gpu": "h200-sxm", "model": "llama-3.1-8b", "drafter": "eagle3", "engine": "vllm-0.33"}
    page = opened("tree", **url)
    lines = answers.scenario_of(set_up(**url)).warnings
    assert lines
    shown = [each.value for each in page.markdown]
    for line in lines:
        assert any(show.in_words(line[1:]) in each for each in shown)
