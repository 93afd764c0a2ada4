"""The page Tree: the tree lies on the curve where it is the best one, large masks are handed out as files."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

pytest.importorskip("streamlit")

import answers
from conftest import Opened, commands, csv_rows, printed
from conftest import charts as drawn
from streamlit.testing.v1 import AppTest
from test_choose import set_up

from medusa_sim.acceptance.optimise import optimal_order
from medusa_sim.acceptance.profile import load_acceptance


def budget(page: AppTest) -> tuple[dict[str, dict[int, float]], dict[str, dict[str, Any]]]:
    """Both lines of the budget chart by count, and the tree at hand on each of them."""
    spec = next(
        each for each in drawn(page) if "layer" in each and "what" in str(each["layer"][0]["encoding"])
    )
    lines: dict[str, dict[int, float]] = {}
    for row in spec["layer"][0]["data"]["values"]:
        lines.setdefault(row["what"], {})[row["candidates"]] = row["value"]
    return lines, {row["what"]: row for row in spec["layer"][1]["data"]["values"]}


@pytest.mark.parametrize(("size", "batch"), [(2, 1), (4, 1), (16, 8), (40, 1), (200, 2)])
def test_no_tree_of_its_size_lies_above_the_curve(opened: Opened, size: int, batch: int) -> None:
    lines, here = budget(opened("tree", size=size, batch=batch, gpu="h100-sxm"))
    for row in here.values():
        assert row["candidates"] == size
    assert here["speedup"]["value"] <= lines["speedup"][size] * (1 + 1e-9)
    assert here["speedup"]["value"] >= lines["speedup"][size] * 0.97


def test_fewer_heads_lie_on_the_curve_where_they_give_the_fastest_tree(opened: Opened) -> None:
    lines, here = budget(opened("tree", size=16, depth=2))
    assert here["speedup"]["value"] == pytest.approx(lines["speedup"][16])


@pytest.mark.parametrize(
    "url", [{}, {"runtime": "hf-eager", "batch": 4}, {"accuracies": "medusa1-vicuna-13b"}]
)
def test_the_commands_give_the_curve(opened: Opened, url: dict[str, Any]) -> None:
    page = opened("tree", size=40, **url)
    told = [line for line in commands(page) if line.startswith("medusa-sim sweep")]
    rows = [row for line in told for row in csv_rows(printed(line))]
    lines, _ = budget(page)
    assert [int(row["candidates"]) for row in rows] == [*lines["speedup"]]
    for what, column in (("tokens per step", "tokens_per_step"), ("speedup", "speedup")):
        assert [float(row[column]) for row in rows] == pytest.approx([*lines[what].values()])
    assert any("as many heads as it is deep" in caption.value for caption in page.caption)


def test_best_trees_are_cached_and_follow_what_is_asked() -> None:
    heads = load_acceptance("medusa1-vicuna-7b").heads
    assert heads is not None
    first = answers.best_trees(set_up(), heads, 2, 64)
    answers._best_trees.clear(set_up(), heads, 2, 64, answers.data_version())
    again = answers.best_trees(set_up(), heads, 2, 64)
    assert np.array_equal(first.speedup, again.speedup)
    for other in (
        answers.best_trees(set_up(gpu="l40s"), heads, 2, 64),
        answers.best_trees(set_up(), heads.first(2), 2, 64),
        answers.best_trees(set_up(), heads, 3, 64),
    ):
        assert not np.array_equal(first.speedup, other.speedup)
    small, large = (optimal_order(heads.first(2), size).tree(size) for size in (8, 12))
    assert answers.tree_speedup(set_up(), small, heads, 2) == pytest.approx(first.speedup[7])
    assert answers.tree_speedup(set_up(), large, heads, 2) == pytest.approx(first.speedup[11])
