"""Candidate trees: structure, what is rejected, every import and export format, the public trees."""

import json
import os
import re
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from matplotlib.axes import Axes
from one_line import one_line

from medusa_sim.acceptance.tree import CandidateTree
from medusa_sim.acceptance.tree_file import parsed_tree, read_tree, tree_text
from medusa_sim.acceptance.tree_picture import node_columns, svg_tree, text_tree, write_png
from medusa_sim.errors import OutputError, SpecError
from medusa_sim.outside.limits import POSITIONS

DATA = Path(os.environ.get("MEDUSA_SIM_DATA", Path(__file__).parents[3] / "shared" / "data"))
PUBLIC_TREES = DATA / "acceptance" / "medusa_trees.json"


@st.composite
def trees(draw: st.DrawFn) -> CandidateTree:
    """Random prefix-closed trees: grown node by node from a random parent with a random rank."""
    paths: list[tuple[int, ...]] = []
    for _ in range(draw(st.integers(0, 25))):
        parent = draw(st.sampled_from([(), *paths]))
        path = (*parent, draw(st.integers(0, 5)))
        if path not in paths and len(path) <= 6:
            paths.append(path)
    return CandidateTree.from_paths(draw(st.permutations(paths)))


def test_small_trees_by_hand():
    tree = CandidateTree.from_paths([[1], [0], [0, 0], [0, 1], [0, 1, 0]])
    assert tree.paths == ((0,), (1,), (0, 0), (0, 1), (0, 1, 0))
    assert tree.candidates == 6
    assert tree.depth == 3
    assert tree.parents.tolist() == [-1, 0, 0, 1, 1, 4]
    assert tree.depths.tolist() == [0, 1, 1, 2, 2, 3]
    assert tree.ranks.tolist() == [-1, 0, 1, 0, 1, 0]
    assert tree.leaves.tolist() == [2, 3, 5]
    assert tree.mask.astype(int).tolist() == [
        [1, 0, 0, 0, 0, 0], [1, 1, 0, 0, 0, 0], [1, 0, 1, 0, 0, 0], [1, 1, 0, 1, 0, 0], [1, 1, 0, 0, 1, 0],
        [1, 1, 0, 0, 1, 1],
    ]  # fmt: skip
    tree = CandidateTree.from_paths([])
    assert (tree.candidates, tree.depth, tree.leaves.tolist()) == (1, 0, [0])
    # Medusa paper Figure 2: top-2 of head 1 times top-3 of head 2 = 2 + 6 nodes
    tree = CandidateTree.cartesian([2, 3])
    assert tree.candidates == 9
    assert tree.nodes_per_depth.tolist() == [1, 2, 6]
    assert CandidateTree.chain(4).paths == ((0,), (0, 0), (0, 0, 0), (0, 0, 0, 0))


@given(tree=trees())
def test_mask_is_the_ancestors_and_itself(tree):
    for node in range(tree.candidates):
        ancestors = {node}
        while tree.parents[min(ancestors)] >= 0:
            ancestors.add(int(tree.parents[min(ancestors)]))
        assert set(np.flatnonzero(tree.mask[node]).tolist()) == ancestors
    assert np.all(tree.mask.sum(axis=1) == tree.depths + 1)


@given(tree=trees(), form=st.sampled_from(["paths", "json", "tensorrt-llm", "successors", "leaves"]))
def test_every_format_reads_back(tree, form):
    text = tree_text(tree, form)
    again = parsed_tree(text, leaves_only=form == "leaves")
    if form == "successors":  # child lists hold places, not ranks: the shape survives
        assert again.parents.tolist() == tree.parents.tolist()
    else:
        assert again == tree


@pytest.mark.parametrize(
    ("paths", "message"),
    [
        ([[0, 1]], r"\[0, 1\] lacks its prefix \[0\]"), ([[0], [0]], r"\[0\] is listed twice"),
        ([[-1]], "whole ranks from 0, given -1"), ([[0.5]], "whole ranks from 0, given 0.5"),
        ([[True]], "whole ranks"), ([["0"]], "whole ranks"), ([[]], "root is implied"),
        ([0], "non-empty list of ranks"), ([[float("nan")]], "whole ranks"),
    ],
)  # fmt: skip
def test_what_is_no_tree_is_refused(paths, message):
    with one_line(SpecError, match=message):
        CandidateTree.from_paths(paths)


def test_limits_of_ranks_and_text_behind_a_list():
    with pytest.raises(SpecError, match="rank 300000000; at most 4,095"):
        parsed_tree("[[300000000]]")
    with pytest.raises(SpecError, match="give JSON or `name"):
        parsed_tree("a=[[0]]*99999999")
    assert parsed_tree("a = [[0], [1]]  # two\n").candidates == 3


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "is empty"), ("{}", "holds no tree"), ('{"a": [[0]], "b": [[1]]}', "holds 2 trees"),
        ('{"schema": 9, "paths": [[0]]}', "schema 9"), ('"text"', "a list of paths is needed"),
        ('{"Successors": [[1], [1]]}', "two parents"), ('{"Successors": [[5]]}', "unknown"),
        ("[" * 100_000, "nested too deep"), ("x = [[0],, [1]]", "cannot be parsed.*give a list of paths"),
    ],
)  # fmt: skip
def test_files_that_hold_no_tree_are_refused(text, message):
    with one_line(SpecError, match=message):
        parsed_tree(text)


def test_public_formats_and_leaf_lists_only_when_asked():
    expected = CandidateTree.from_paths([[0], [1], [0, 0]])
    assert parsed_tree("small = [[0], [1],\n  [0, 0],]\nother = [[0]]\n", name="small") == expected
    assert parsed_tree('{"medusa_choices": [[0], [1], [0, 0]]}') == expected
    assert parsed_tree('{"first": [[0]], "second": [[0], [1], [0, 0]]}', name="second") == expected
    with pytest.raises(SpecError, match="did you mean 'second'"):
        parsed_tree('{"first": [[0]], "second": [[0]]}', name="secnd")
    assert CandidateTree.from_paths([[0, 1], [2]], leaves_only=True).candidates == 4
    with pytest.raises(SpecError, match="--leaves-only"):
        CandidateTree.from_paths([[0, 1], [2]])


@pytest.mark.skipif(not PUBLIC_TREES.exists(), reason="needs the public trees beside the checkout")
def test_the_nine_public_trees_have_64_candidates():
    names = json.loads(PUBLIC_TREES.read_text())
    loaded = {name: read_tree(PUBLIC_TREES, name=name) for name in names}
    assert len(loaded) == 9
    assert {tree.candidates for tree in loaded.values()} == {64}
    assert max(max(path) for tree in loaded.values() for path in tree.paths) == 9
    assert max(tree.depth for tree in loaded.values()) <= 5
    assert loaded["mc_sim_7b_63"].nodes_per_depth.tolist() == [1, 10, 28, 23, 2]


@given(tree=trees())
def test_drawings_show_every_node(tree):
    probability = 0.5 ** tree.depths.astype(float)
    assert len(text_tree(tree, probability).splitlines()) == tree.candidates
    drawn = svg_tree(tree, probability)
    assert (drawn.count("<circle"), drawn.count("<line")) == (tree.candidates, tree.candidates - 1)
    width, height = map(float, re.findall(r'viewBox="0 0 (\d+) (\d+)"', drawn)[0])
    places = np.array(re.findall(r'<circle cx="([-.\d]+)" cy="([-.\d]+)"', drawn), dtype=float)
    assert ((places > 0.0) & (places < [width, height])).all()
    assert (np.diff(places[np.argsort(tree.depths, kind="stable"), 1]) >= 0.0).all()
    columns = node_columns(tree)
    for level in range(tree.depth + 1):
        across = np.sort(columns[tree.depths == level])
        assert np.all(np.diff(across) >= 0.5 - 1e-12)


def test_text_drawing_by_hand():
    tree = CandidateTree.from_paths([[0], [1], [0, 2]])
    assert text_tree(tree) == "root\n├─ 0\n│  └─ 2\n└─ 1"


def test_png_is_written_whole_or_not_at_all(tmp_path):
    write_png(CandidateTree.cartesian([2, 2]), tmp_path / "tree.png")
    assert (tmp_path / "tree.png").read_bytes().startswith(b"\x89PNG")
    with pytest.raises(OutputError, match="cannot write"):
        write_png(CandidateTree.chain(1), tmp_path / "nowhere" / "tree.png")
    assert [path.name for path in tmp_path.iterdir()] == ["tree.png"]


def test_a_picture_joins_every_node_to_its_parent(tmp_path, monkeypatch):
    joined: list[tuple[list[float], list[float]]] = []
    plot = Axes.plot
    monkeypatch.setattr(Axes, "plot", lambda axes, *line, **look: joined.append(line) or plot(axes, *line))
    write_png(CandidateTree.from_paths([(0,), (1,), (0, 0)]), tmp_path / "tree.png")
    assert [y for _, y in joined] == [[0.0, -1.0], [0.0, -1.0], [-1.0, -2.0]]


def test_a_picture_has_a_node_with_its_rank_for_each():
    """Of a root with two children and one behind the first: rank 0 under rank 0, rank 1 beside it."""
    tree = CandidateTree.from_paths([(0,), (1,), (0, 0)])
    text = svg_tree(tree, np.array([1.0, 0.5, 0.25, 0.125]))
    assert re.findall(r">([^<]*)</text>", text) == ["root", "0", "1", "0"]
    assert text.count("<line") == 3
    white = [ink == "#ffffff" for ink in re.findall(r'<text [^>]*fill="([^"]*)"', text)]
    assert white == [True, True, False, False]  # on nodes darker than 0.6, of the root of a probability
    assert re.findall(r"<title>([^<]*)</title>", text)[3] == "path [1], reached with probability 0.2500"


@pytest.mark.parametrize("order", [1, -1])
def test_one_path_that_is_too_long_is_refused_beside_short_ones(order):
    paths = [(0,) * depth for depth in range(1, POSITIONS + 2)][::order]
    assert len(CandidateTree.from_paths(sorted(paths)[:-1]).paths) == POSITIONS
    with pytest.raises(SpecError):
        CandidateTree.from_paths(paths)
